"""Compile and explain, as `octavo` has them: what their options ask of a model before, quantizing by a profile, is done first.

The compiler takes models as they are (`compiler/compile.py`).
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from ..compiler.backends.cpu.kernels import multiplies_bfloat16
from ..compiler.backends.tuning import Tuning
from ..compiler.compile import compile_model, resolve_threads
from ..compiler.device_models import lowered_for
from ..compiler.explanation import ExplainedOp, Explanation, explained_ops, output_specs, ports
from ..compiler.on_call import OnCallExecutable
from ..compiler.partition.pipeline import op_records
from ..compiler.target_choice import ResolvedTarget, TargetLike, check_compiles_here, check_is_host, resolve_target
from ..errors import CompileError, ProfileError, QuantizationError, check_type
from ..ir.graph import Model
from ..ir.graph.inputs import input_specs
from ..ir.graph.model import checked_model
from ..ir.graph.unbound import UnboundModel
from ..ir.qdq.block_activations import with_block_activations
from ..numerics.floats.half import HALF_DTYPES, HalfDtype
from ..profiling import Profile, check_model, unfit_tensors
from ..runtime.executable import Executable
from ..target.precision import Precision
from .plan import QuantizedModel
from .quantize import by_profile, check_subject
from .recipe import Recipe

PRECISIONS = ("float32", *HALF_DTYPES)
"""What a float model can be compiled to."""


def compile(
    model: Model,
    *,
    target: TargetLike = None,
    threads: int | None = None,
    precision: str | None = None,
    profile: Profile | None = None,
    recipe: Recipe | None = None,
    tuning: str | Path | Tuning | None = None,
    block_activations: str = "float32",
) -> Executable:
    """Compile a model, float, QDQ or pre-quantized, to machine code; an UnboundModel when it is called.

    Parameters
    ----------
    target
        None or "cpu" for this machine; an ISA's name ("x86.avx512_vnni", "x86.avx2", "generic") for this machine with that
        ISA's kernels, without the wider vectors that a CPU of that ISA lacks; an LLVM target such as "llvm -mcpu=cascadelake",
        or a tvm Target; a TargetDescription, or the path of one (JSON), for the ops that it lists in kernels of this machine; a
        Backend (`octavo.compiler.backends`), for the ops that it describes in its own code, and the rest in kernels of this
        machine; a GPU ("cuda", "cuda.sm_80") for the whole model on it. The environment variable OCTAVO_TARGET, an ISA's name,
        narrows what "this machine" is where no ISA is given here.
    threads
        Threads that share one call where it pays, at least 1; None means 1. On a machine with fewer cores a call takes as many
        threads as there are. Results don't depend on it.
    precision
        "bfloat16" or "float16" keeps the tensors and weights of a float model in 16 bits; sums, and what the model takes and
        gives, stay float32. Products are those of bfloat16 where the machine has them (bf16), else of float32. None, or
        "float32", leaves the model as it is.
    profile
        Of this model, which is float: it is quantized first, as `quantize(model, profile, target=target, recipe=recipe)` does.
        With a 16-bit `precision` nothing is quantized: tensors whose values that cannot hold stay float32, and `explain` says so.
        Without a profile, what leaves float16's range becomes infinite.
    recipe
        How to quantize by that profile.
    tuning
        What `octavo.tune` returns, or its file: kernels that it knows take the schedules that it measured to be best, the others
        choose their own. Results don't depend on it.
    block_activations
        How exact products with weights in blocks read float32 activations, where neither the file (`accuracy_level` of ONNX
        Runtime's MatMulNBits) nor the recipe says so: as integers with a scale for each block, "int8" of 8 bits (W4A8),
        "bfloat16" of 16 (no less exact than bfloat16), "float32" of 24 (no less exact than float32).

    Raises
    ------
    TargetError
        An unknown target, one that code cannot be linked for here, or a GPU with what is for CPUs alone.
    ProfileError
        A profile of another model.
    QuantizationError
        A profile for a model that is quantized already, or a recipe without anything to quantize by.
    TuningError
        `tuning` can't be read, or was measured on another processor or for another ISA.
    CompileError
        An accumulator that could overflow, an unknown precision or `block_activations`, a precision for a quantized model, or a
        failure of code generation.
    """
    chosen = resolve_target(target)
    check_compiles_here(chosen)  # before what may take minutes
    resolve_threads(threads)
    if isinstance(model, UnboundModel) and profile is None and recipe is None:
        options: dict[str, Any] = {"threads": threads, "precision": precision, "tuning": tuning}
        return OnCallExecutable(model, partial(compile, target=target, block_activations=block_activations, **options))
    prepared_model, downcast = prepared(model, chosen, precision, profile, recipe, block_activations)
    return compile_model(prepared_model, target=chosen, threads=threads, precision=downcast, tuning=tuning)


def explain(
    subject: Model | Executable,
    *,
    target: TargetLike = None,
    precision: str | None = None,
    profile: Profile | None = None,
    recipe: Recipe | None = None,
    block_activations: str = "float32",
) -> Explanation:
    """Say for each op whether it is integer, which kernel runs, why where it is float, and of a downcast model what is 16 bits.

    A Model is lowered as `compile` does with these options, not built; an Executable says what it is made of.
    """
    if isinstance(subject, Executable):
        ops = tuple(ExplainedOp(**entry) for entry in subject.description.ops)
        return Explanation(ops=ops, inputs=ports(subject.inputs), outputs=ports(subject.outputs))
    chosen = resolve_target(target)
    model, downcast = prepared(subject, chosen, precision, profile, recipe, block_activations)
    model = checked_model(model)
    if chosen.device is not None:
        records = lowered_for(chosen.device, model).records
    else:
        module, backends = model.bound(runs=False), chosen.backends
        records = op_records(module, chosen.host, chosen.isas, model.tensors, downcast, backends)
    ops = explained_ops(records, model)
    journal = model.plan.journal.lines if isinstance(model, QuantizedModel) else ()
    return Explanation(ops=ops, inputs=ports(input_specs(model)), outputs=ports(output_specs(model)), journal=journal)


def prepared(
    model: Model,
    target: ResolvedTarget,
    precision: str | None,
    profile: Profile | None,
    recipe: Recipe | None = None,
    block_activations: str = "float32",
) -> tuple[Model, Precision | None]:
    """Return the model that is lowered, quantized first where `profile` is for that, and what it is downcast to."""
    wanted = _wanted_precision(model, target, precision, profile)
    if profile is not None and wanted is None:
        quantized = by_profile(target, model, check_subject(model, profile, recipe), recipe)
        return with_block_activations(quantized, block_activations), None
    if recipe is not None:
        raise QuantizationError("a recipe says how to quantize by a profile: give one, and no 16-bit precision")
    return with_block_activations(checked_model(model), block_activations), wanted


def _wanted_precision(model: Model, target: ResolvedTarget, precision: str | None, profile: Profile | None) -> Precision | None:
    """Return what a float model is downcast to on a target; None where it is not."""
    check_type(precision, str | None, CompileError, f"a precision ({', '.join(PRECISIONS)})")
    check_type(profile, Profile | None, ProfileError, "a Profile, which octavo.profile returns and Profile.load reads")
    if precision not in (None, *PRECISIONS):
        raise CompileError(f"unknown precision {precision!r}: choose from {', '.join(PRECISIONS)}")
    if precision not in HALF_DTYPES:
        return None
    check_is_host(target, "16-bit precision")
    dtype: HalfDtype = "bfloat16" if precision == "bfloat16" else "float16"
    kept: dict[str, str] = {}
    if profile is not None:
        check_model(profile, checked_model(model))
        kept = unfit_tensors(profile, dtype)
    has_products = dtype == "bfloat16" and multiplies_bfloat16(target.llvm, target.isas, target.host.extensions)
    return Precision(dtype=dtype, has_products=has_products, kept=kept)
