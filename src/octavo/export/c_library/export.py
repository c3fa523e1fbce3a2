"""A model as a C library: the whole path, and instead of an Executable a folder of C."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ...compiler.backends.tuning import Tuning, schedules_of
from ...compiler.explanation import output_specs
from ...compiler.partition.pipeline import lower
from ...compiler.target_choice import ResolvedTarget, TargetLike, check_emits, check_is_host, portable_targets, resolve_target
from ...errors import CompileError, ExecutableError, check_path, check_type
from ...ir.graph import Model
from ...ir.graph.growing_states import with_growing_states
from ...ir.graph.inputs import input_specs
from ...ir.graph.model import checked_model
from ...ir.qdq.interface import input_params, output_params
from ...numerics import PerTensor, QuantParams
from ...profiling import Profile
from ...quantizer.compile import prepared
from ...quantizer.recipe import Recipe
from ...runtime.cpu_features import names_of
from ...runtime.inputs import InputSpec
from ...target.precision import Precision
from .dimensions import carried_pairs, dimensions_of
from .folder import check_folder, write_c_library
from .library import CLibrary, CTensor, Variant, variant_of

_RESERVED = frozenset(("main", "int", "char", "void", "const", "static", "m", "c", "objects", "workspace", "inputs", "outputs"))


@dataclass(frozen=True, kw_only=True, slots=True)
class CFolder:
    """What `export_c` wrote: the folder, the libraries in it that were linked, sizes in bytes, and what a CPU must have.

    Where the model leaves sizes open, the workspace is a Size of its dimensions.
    """

    path: Path
    libraries: tuple[Path, ...]
    workspace: int
    constants: int
    features: tuple[str, ...]


def export_c(
    model: Model,
    folder: str | Path,
    *,
    name: str = "model",
    target: TargetLike = None,
    precision: str | None = None,
    profile: Profile | None = None,
    recipe: Recipe | None = None,
    tuning: str | Path | Tuning | None = None,
    multiversion: bool = False,
    carry: Mapping[str, str] | None = None,
) -> CFolder:
    """Compile a model to a C library that needs nothing but libc.

    Parameters
    ----------
    folder
        The folder to write; one that this function wrote is replaced, another is refused.
    name
        Prefix of all that the library defines and of its files, a C identifier in lower case.
    target, precision, profile, recipe, tuning
        As `compile` takes them. A target need not be this machine's: where no compiler for it is on PATH, the folder holds
        objects and source alone.
    multiversion
        Whether the library has code for x86 CPUs with AVX2, AVX-VNNI and AVX-512 VNNI, and takes what its CPU can run. `target`
        then says what is quantized for alone, and no tuning fits.
    carry
        {output name: input name}: what each step hands to the next, as `Executable.session` takes it. The library then has
        functions that keep this state in memory of the caller's.

    Raises
    ------
    TargetError, ProfileError, QuantizationError, TuningError
        As `compile` raises them; also for a target whose object files are neither ELF nor WebAssembly.
    ModelError
        The model has a shape that depends on values.
    CompileError
        As `compile` raises it; an op that only TVM's runtime can run; a name that is no C identifier.
    DataError
        An output that can't be carried to its input.
    ExecutableError
        The folder holds other files, or cannot be written.
    """
    _check_name(name)
    check_folder(check_path(folder, ExecutableError, "the path of the folder to write"))
    chosen = resolve_target(target)
    check_is_host(chosen, "C library")
    check_emits(chosen, as_c=True)
    model, wanted = prepared(checked_model(model), chosen, precision, profile, recipe)
    if multiversion:
        variants = tuple(variant_for(model, resolve_target(each), wanted) for each in portable_targets())
    else:
        variants = (variant_for(model, chosen, wanted, tuning),)
    module = model.bound()
    inputs, outputs = input_specs(model), output_specs(model)
    taken = _tensors([(spec.source_name, spec.dtype, spec.shape) for spec in inputs], input_params(module))
    library = CLibrary(
        name=name,
        inputs=tuple(
            replace(tensor, start=_start(spec, carry or {}), indices=spec.indices)
            for spec, tensor in zip(inputs, taken, strict=True)
        ),
        outputs=_tensors([(spec.source_name, spec.dtype, spec.shape) for spec in outputs], output_params(module)),
        variants=variants,
        dimensions=dimensions_of(inputs),
        carried=carried_pairs(inputs, outputs, variants[0].growing, carry or {}),
    )
    libraries = write_c_library(folder, library, chosen.llvm)
    features = names_of(variants[-1].features)
    return CFolder(
        path=Path(folder), libraries=libraries, workspace=library.workspace, constants=library.constants, features=features
    )


def variant_for(
    model: Model, target: ResolvedTarget, precision: Precision | None = None, tuning: str | Path | Tuning | None = None
) -> Variant:
    """Return the calls and the objects of a model for one target."""
    schedules = schedules_of(tuning, target.isa, target.processor)
    module = with_growing_states(model.bound())
    return variant_of(
        lower(module, target.host, target.isas, 1, model.tensors, precision, schedules, target.backends), target.llvm
    )


def _check_name(name: str) -> None:
    check_type(name, str, CompileError, "a C identifier")
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or name in _RESERVED:
        raise CompileError(f"{name!r} cannot name a C library: take lower case letters, digits and _, such as 'mobilenet'")


def _start(spec: InputSpec, carry: Mapping[str, str]) -> bytes | None:
    """Return the bytes that a carried input begins as, where the source states them."""
    if spec.start is None or spec.source_name not in carry.values():
        return None
    if spec.start.shape != spec.shape:
        raise CompileError(
            f"carry: {spec.source_name!r} of open sizes begins as {list(spec.start.shape)} numbers of the file; "
            "load the model with fixed sizes for a C library"
        )
    return spec.start.tobytes()


def _tensors(specs: Sequence[tuple[str, str, tuple[int, ...]]], params: Sequence[QuantParams | None]) -> tuple[CTensor, ...]:
    return tuple(_tensor(*spec, known) for spec, known in zip(specs, params, strict=True))


def _tensor(name: str, dtype: str, shape: tuple[int, ...], params: QuantParams | None) -> CTensor:
    if params is None or not isinstance(params.granularity, PerTensor):
        return CTensor(name=name, dtype=dtype, shape=shape)
    return CTensor(name=name, dtype=dtype, shape=shape, scale=float(params.scale), zero_point=int(params.zero_point))
