"""The whole path on one page: load -> profile -> quantize -> lower -> build -> run.

Each stage is a package that knows no other; what joins them stands here and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import tvm

from .backends.cpu.kernels import NO_SCHEDULES, Schedules, multiplies_bfloat16
from .backends.cpu.link import link
from .backends.cpu.lowering import Lowered, lower_composites
from .backends.devices import device_backend
from .backends.protocol import Backend
from .backends.tuning import Tuning, schedules_of
from .build import BoundCall, ConstantPool, Description, Executable, OutputSpec, constant_bytes, generate
from .corrections import Corrector, corrected_on, samples_of
from .device_models import compiled_for, lowered_for, observing_for, profiling_target
from .equalization import Equalizer
from .errors import CompileError, ModelError, ProfileError, QuantizationError, TargetError, check_path, check_type
from .explanation import ExplainedOp, Explanation, explained_ops, names_before_quantizing, output_specs, ports
from .float_heads import float_heads
from .float_values import FloatValues
from .graph import Model
from .graph.inputs import input_specs
from .graph.lineage import lineage_paused
from .graph.model import with_model
from .graph.passes import run_as_pass
from .heap import trim_heap
from .importer import load
from .numerics.floats.half import HALF_DTYPES, HalfDtype
from .partition.pipeline import integer_claims, is_partitioned, partition_module
from .profile import Carried, Checkpoint, ImageFolder, Instrumented, Profile, check_model, instrument, select, unfit_tensors
from .profile.collect import collect, preprocessing_of
from .profile.kept_samples import KEEP_SAMPLES, check_keep
from .quantize import QuantizationPlan, QuantizedModel, Recipe, Remedies, export_onnx
from .quantize import quantize as quantize_model
from .quantize.choice import ParamsOf
from .quantize.ranges import takes_only_ends
from .quantize.recipe import Preset
from .simulation import costliest, fused_functions, remedies, wide_weights
from .target import TargetDescription
from .target.cpu_features import features_of, names_of
from .target.precision import Precision
from .target_choice import ResolvedTarget, TargetLike, check_compiles_here, check_is_host, present_features, resolve_target

__all__ = [
    "BoundCall",
    "Executable",
    "ExplainedOp",
    "Explanation",
    "ImageFolder",
    "Model",
    "Profile",
    "QuantizationPlan",
    "Recipe",
    "TargetDescription",
    "compile",
    "explain",
    "export_onnx",
    "load",
    "load_executable",
    "partition",
    "profile",
    "quantize",
]

PRECISIONS = ("float32", *HALF_DTYPES)
"""What a float model can be compiled to."""

MAX_THREADS = 256
"""Of one call."""


# ------------------------------------------------------------------------------------------------- the stages in order


def profile(
    model: Model,
    batches: Any,
    *,
    target: TargetLike = None,
    tensors: str | Iterable[str] | None = None,
    threads: int | None = None,
    numbers: Iterable[int] | None = None,
    checkpoint: str | Path | None = None,
    every: int = 100,
    resume: str | Path | None = None,
    progress: Callable[[int], None] | None = None,
    keep_samples: int = KEEP_SAMPLES,
    state: Mapping[str, str] | None = None,
) -> Profile:
    """Run calibration data through the float model with an observer on every tensor.

    Parameters
    ----------
    batches
        A stream of arrays or {input name: array}, or an ImageFolder; their first dimension is any multiple of the model's.
    target
        None or "cpu": the model runs on this machine; a GPU ("cuda", "cuda.sm_80"): on that, and is observed there. Statistics of
        the same values are the same bytes; sums of floats differ in their last bits (docs/gpus.md).
    tensors
        Patterns of the tensors to profile: ids, names in the source, or ops ("Conv", "features.1*"); all by default.
    threads
        As `compile` takes it.
    numbers
        The samples' numbers in the whole data set, where `batches` are a part of it; 0, 1, 2 ... by default.
    checkpoint, every
        A file that always holds the profile of the samples so far, less the last `every` at most. It stays when all is done.
    resume
        That file: its samples are skipped, so `batches` must give the same samples as before. The result is the profile of all.
    progress
        Called after each sample with the number of samples so far.
    keep_samples
        Samples that the profile and its file keep at most, of one run each, 32 MiB in all, so that later stages can run the model
        again; which ones depends on what they hold alone. 0 keeps none: where the profile is given away and inputs are private.
    state
        {output: input} that carries the one to the other from sample to sample, from zeros on; `batches` hold the other inputs,
        and their order counts.

    Returns
    -------
    Profile
        Minimum, maximum, histogram and counts for each TensorId; the same bytes however the samples are split or ordered.

    Raises
    ------
    DataError
        A batch that doesn't fit the model; an empty data set.
    ProfileError
        `resume` is no profile, or one of another model or of other tensors; `checkpoint` can't be written;
        `keep_samples` is no number of samples.
    TargetError, CompileError
        A target that is neither this machine nor a GPU that it has; an op that the GPU has no kernel for.
    """
    checked = checked_model(model)
    check_keep(keep_samples)
    path = None if checkpoint is None else check_path(checkpoint, ProfileError, "the path of a checkpoint to write")
    start = None if resume is None else Profile.load(resume)
    chosen = None if tensors is None else (tensors,) if isinstance(tensors, str) else tuple(tensors)
    if state:
        floats = compile(checked, target=target, threads=threads)
        names = [spec.source_name for spec in floats.outputs]
        batches = Carried(input_specs(checked), names, floats, batches, state)
    instrumented, executable = profiler(checked, resolve_threads(threads), chosen, target)
    return collect(
        checked,
        instrumented,
        executable.attach,
        batches,
        numbers=numbers,
        preprocessing=preprocessing_of(batches),
        keep_samples=keep_samples,
        checkpoint=None if path is None else Checkpoint(path=path, every=every),
        resume=start,
        progress=progress,
    )


_Profilers = dict[tuple[int, tuple[str, ...] | None, str], tuple[Instrumented, Executable]]
_PROFILERS: WeakKeyDictionary[Model, _Profilers] = WeakKeyDictionary()


def lower(
    module: tvm.IRModule,
    target: TargetDescription,
    isas: tuple[str, ...],
    threads: int,
    ids: Collection[str] = (),
    precision: Precision | None = None,
    schedules: Schedules = NO_SCHEDULES,
    backends: Sequence[Backend] = (),
) -> Lowered:
    """Partition a module whose constants are bound, where it is not yet, and lower its composites to kernel calls.

    `ids` are the source model's TensorIds; `backends` choose their ops before `target`, the host's; see `partition_module` and
    `lower_composites` for the rest.
    """
    parts = module if is_partitioned(module) else partition_module(module, target, ids, precision, **_choosers(backends))
    lowered: list[Lowered] = []

    def lower_parts(parts: tvm.IRModule) -> tvm.IRModule:
        lowered.append(lower_composites(parts, target, isas, threads, precision, schedules, backends))
        return lowered[0].module

    run_as_pass("lower", parts, lower_parts)
    return lowered[0]


def _choosers(backends: Sequence[Backend]) -> dict[str, Any]:
    """Return what partition is told of back ends: who chooses before the host, and for whom the host computes."""
    simulated = [backend.description.name for backend in backends if not backend.has_own_code]
    return {"vendors": [backend.description for backend in backends], "simulated": simulated}


def linked(lowered: Lowered, target: tvm.target.Target) -> tvm.IRModule:
    """Return a lowered module with its kernels in it."""
    return run_as_pass("link", lowered.module, lambda module: link(lowered, target))


def profiler(
    model: Model, threads: int, tensors: tuple[str, ...] | None = None, target: TargetLike = None
) -> tuple[Instrumented, Executable]:
    """Instrument and build a model once: the parts of a data set profiled one by one share it. Raises as `profile`."""
    chosen, profilers = profiling_target(target), _PROFILERS.setdefault(model, {})
    key = threads, tensors, "" if chosen.device is None else chosen.device.name
    if key not in profilers:
        instrumented = instrument(model, select(model, tensors))
        with lineage_paused():
            if chosen.device is not None:
                profilers[key] = instrumented, observing_for(chosen.device, model, instrumented.module, chosen)
            else:
                lowered = lower(instrumented.module, chosen.description, chosen.isas, threads, model.tensors)
                profilers[key] = instrumented, _build(lowered, model, chosen, threads, outputs=())
                del lowered
        trim_heap(model.constant_bytes)
    return profilers[key]


def quantize(
    model: Model,
    profile: Profile | None = None,
    *,
    target: TargetLike = "cpu",
    recipe: Recipe | None = None,
    params: ParamsOf | None = None,
    plan: QuantizationPlan | str | Path | None = None,
    preset: Preset = "balanced",
) -> QuantizedModel:
    """Quantize a float model to QDQ form, where the target has integer kernels.

    Parameters
    ----------
    profile
        Of this very model; another one's is refused (ProfileError).
    target
        As `compile` takes it: what its description can run in integers is quantized.
    recipe
        The user's wishes; the defaults are per-axis symmetric int8 weights, per-tensor asymmetric uint8 activations, min-max.
    params
        Called with a `TensorChoice` (TensorId, name, op, statistics of the profile, the parameters that it would get) for each
        activation and weight, it returns QuantParams, a TensorSupport, or None to keep them. As with `Recipe.tensors`, what the
        target asks besides still counts: where both can't be, the op stays float with the reason.
    plan
        What an earlier call decided (`QuantizedModel.plan`), as it was or edited, or the path of its file: these layers with
        these parameters, and no others. In place of profile, recipe and params.
    preset
        How much to try. "fast" corrects biases by what the profile says, and runs nothing; "balanced" runs samples to correct
        them, evens out channels and rounds weights by what their layers read; "best" also tries several ranges of activations,
        which takes about ten times as long. What the recipe says other than by default counts.

    Raises
    ------
    ProfileError
        A profile of another model, or none where there is no plan.
    QuantizationError
        An unknown preset; a recipe or params that ask for what there is not; a plan that cannot be read, or that model or target
        cannot take.
    """
    checked, chosen = checked_model(model), resolve_target(target)
    if plan is not None:
        if any(given is not None for given in (profile, recipe, params)) or preset != "balanced":
            raise QuantizationError("a plan says all that profile, recipe, preset and params decide: give it alone")
        read = plan if isinstance(plan, QuantizationPlan) else QuantizationPlan.load(plan)
        return _quantized_for(chosen, checked, plan=read)
    check_type(profile, Profile, ProfileError, "a Profile, which octavo.profile returns and Profile.load reads")
    check_type(recipe, Recipe | None, QuantizationError, "an octavo.Recipe")
    check_type(params, Callable | None, QuantizationError, "a function of a TensorChoice that returns QuantParams or None")
    assert profile is not None, "its type was checked"
    check_model(profile, checked)
    _check_ranges_suffice(profile, recipe or Recipe())
    return _quantized_for(chosen, checked, profile, (recipe or Recipe()).with_preset(preset), params)


def _check_ranges_suffice(profile: Profile, recipe: Recipe) -> None:
    """Raise QuantizationError for an estimator that a profile made of another tool's ranges has nothing for."""
    names = [recipe.range_estimator, *(said.range_estimator for said in recipe.overrides.values() if said.range_estimator)]
    unfit = next((name for name in names if not takes_only_ends(name)), None)
    if profile.ranges_alone_from and unfit is not None:
        raise QuantizationError(
            f"the profile holds ranges alone, from {profile.ranges_alone_from}, and {unfit} needs histograms: take min_max, or "
            "profile the model on samples"
        )


def quantize_with(
    model: Model, profile: Profile, changes: Remedies, *, target: TargetLike = "cpu", recipe: Recipe | None = None
) -> QuantizedModel:
    """Quantize a float model by its profile with these remedies from the start; see `quantize` for the rest."""
    checked = checked_model(model)
    check_model(profile, checked)
    return _quantized_for(resolve_target(target), checked, profile, recipe, changes=changes)


def requantize(
    model: Model,
    plan: QuantizationPlan,
    changes: Remedies,
    *,
    target: TargetLike = "cpu",
    corrector_of: Callable[[Model], Corrector] | None = None,
) -> QuantizedModel:
    """Apply a plan to a float model, but for what these remedies leave float; see `quantize` for the rest.

    Parameters
    ----------
    plan
        An activation that has 16 bits by `changes` has such parameters in it.
    corrector_of
        Given the float model whose ops become integer, returns what corrects weights and biases anew; None keeps the plan's.
    """
    return _quantized_for(resolve_target(target), checked_model(model), plan=plan, changes=changes, corrector_of=corrector_of)


def _quantized_for(
    target: ResolvedTarget,
    model: Model,
    profile: Profile | None = None,
    recipe: Recipe | None = None,
    params: ParamsOf | None = None,
    plan: QuantizationPlan | None = None,
    changes: Remedies | None = None,
    corrector_of: Callable[[Model], Corrector] | None = None,
) -> QuantizedModel:
    targets = target.described or (target.description,)
    vendors = [backend.description.name for backend in target.backends if backend.has_own_code]
    samples = [] if profile is None else samples_of(model, profile)
    here, wishes = resolve_target(None), recipe or Recipe()
    _PROFILERS.pop(model, None)  # its constants need not be there once more while the model is quantized
    few = corrected_on(samples, wishes)
    floats, even_out = FloatValues(here.host, here.isas, here.llvm), None
    has_functions = any(support.float_function for support in target.description.ops)
    heads = Remedies()
    if profile is not None and params is None and has_functions and not target.backends and wishes.may_leave_float:
        heads = Remedies(float_tensors=float_heads(model, profile))
    with ThreadPoolExecutor(1) as beside:
        if profile is not None and samples:
            even_out = Equalizer(
                profile,
                samples,
                floats,
                beside,
                results=profile.kept_results,
                only_ranges=wishes.has_plain_ranges,
                has_functions=has_functions,
            )
        make = partial(quantize_model, model, profile, target=target.description, targets=targets, equalize=even_out)
        make = partial(make, claims_of=lambda module: integer_claims(module, *targets, vendors=vendors))
        return make(
            recipe=wishes,
            params=params,
            plan=plan,
            changes=wide_weights(model, make, wishes, samples=samples, target=here)
            .with_more(heads)
            .with_more(changes or Remedies()),
            corrector_of=partial(Corrector, samples=few, target=here, floats=floats) if samples else corrector_of,
            find_remedies=partial(remedies, samples=samples, target=here) if samples else None,
            find_costliest=partial(costliest, samples=samples, target=here) if samples else None,
            find_functions=partial(fused_functions, samples=samples, target=here) if samples else None,
        )


def partition(model: Model, *, target: TargetLike = None) -> tvm.IRModule:
    """Outline what a target computes in kernels of its own: composites that are complete in their attributes.

    Each composite is a private function with attributes that a code generator reads (see `octavo.composites.attributes`). The
    module is TVM's own: it can be saved, loaded and printed, and ``octavo.compile(octavo.load(module))`` gives the same bytes as
    compiling the model.

    Parameters
    ----------
    model
        In QDQ form or float.
    target
        As `compile` takes it.

    Raises
    ------
    TargetError
        An unknown target.
    """
    checked = checked_model(model)
    chosen = resolve_target(target)
    has_kernels = chosen.device is None
    parts = partition_module(
        checked.bound(), chosen.host, checked.tensors, **_choosers(chosen.backends), float_kernels=has_kernels
    )
    return with_model(parts, replace(checked, shown_names=tuple(names_before_quantizing(checked).items())))


def compile(
    model: Model,
    *,
    target: TargetLike = None,
    threads: int | None = None,
    precision: str | None = None,
    profile: Profile | None = None,
    recipe: Recipe | None = None,
    tuning: str | Path | Tuning | None = None,
) -> Executable:
    """Compile a model, float, QDQ or pre-quantized, to machine code.

    Parameters
    ----------
    target
        None or "cpu" for this machine; an ISA's name ("x86.avx512_vnni", "x86.avx2", "generic") for this machine with that
        ISA's kernels, without the wider vectors that a CPU of that ISA lacks; an LLVM target such as "llvm -mcpu=cascadelake",
        or a tvm Target; a TargetDescription, or the path of one (JSON), for the ops that it lists in kernels of this machine; a
        Backend (`octavo.backends`), for the ops that it describes in its own code, and the rest in kernels of this machine; a GPU
        ("cuda", "cuda.sm_80") for the whole model on it. The environment variable OCTAVO_TARGET, an ISA's name, narrows what
        "this machine" is where no ISA is given here.
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
        An accumulator that could overflow, an unknown precision, one for a quantized model, or a failure of code generation.
    """
    return compile_sharing(
        model, None, target=target, threads=threads, precision=precision, profile=profile, recipe=recipe, tuning=tuning
    )


def compile_sharing(
    model: Model,
    pool: ConstantPool | None,
    *,
    target: TargetLike = None,
    threads: int | None = None,
    precision: str | None = None,
    profile: Profile | None = None,
    recipe: Recipe | None = None,
    tuning: str | Path | Tuning | None = None,
) -> Executable:
    """Compile a model whose constants lie in `pool`, beside those of others, which is not whole before all are compiled.

    See `compile` for the rest.
    """
    chosen = resolve_target(target)
    check_compiles_here(chosen)
    count = resolve_threads(threads)
    model, wanted = prepared(model, chosen, precision, profile, recipe)
    schedules = schedules_of(tuning, chosen.isa, chosen.processor)
    if chosen.device is not None:
        return compiled_for(chosen.device, checked_model(model), chosen, schedules)
    module, backends = checked_model(model).bound(), chosen.backends
    lowered = lower(module, chosen.host, chosen.isas, count, model.tensors, wanted, schedules, backends)
    return _build(lowered, model, chosen, count, outputs=output_specs(model), pool=pool)


def prepared(
    model: Model, target: ResolvedTarget, precision: str | None, profile: Profile | None, recipe: Recipe | None = None
) -> tuple[Model, Precision | None]:
    """Return the model that is lowered, quantized first where `profile` is for that, and what it is downcast to."""
    wanted = _wanted_precision(model, target, precision, profile)
    if profile is not None and wanted is None:
        checked = checked_model(model)
        check_type(recipe, Recipe | None, QuantizationError, "an octavo.Recipe")
        check_model(profile, checked)
        _check_ranges_suffice(profile, recipe or Recipe())
        return _quantized_for(target, checked, profile, recipe), None
    if recipe is not None:
        raise QuantizationError("a recipe says how to quantize by a profile: give one, and no 16-bit precision")
    return model, wanted


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


def _build(
    lowered: Lowered,
    model: Model,
    target: ResolvedTarget,
    threads: int,
    outputs: tuple[OutputSpec, ...],
    pool: ConstantPool | None = None,
) -> Executable:
    module = linked(lowered, target.llvm)
    code = generate(module, target.llvm, threads=threads, pool=pool)
    description = Description(
        inputs=input_specs(model),
        outputs=outputs,
        fingerprint=model.fingerprint,
        target=str(target.llvm),
        isa=target.isas[0],
        features=names_of(features_of(target.llvm)),
        threads=threads,
        weight_bytes=constant_bytes(module),
        workspace=code.workspace,
        shared_units=0 if code.control is None else code.control.units,
        any_batch=model.any_batch and all(output.shape for output in outputs),
        batch_range=model.batch_range,
        batch_obstacle=model.batch_obstacle,
        ops=tuple(asdict(op) for op in explained_ops(lowered.records, model)),
    )
    return Executable(code, description)


def load_executable(path: str | Path) -> Executable:
    """Load an executable that `Executable.save` wrote. It holds machine code: load only files you trust."""
    return Executable.load(path, present_features(), lambda name, data, constants: device_backend(name).loaded(data, constants))


# ---------------------------------------------------------------------------------------------------------- explanation


def explain(
    subject: Model | Executable,
    *,
    target: TargetLike = None,
    precision: str | None = None,
    profile: Profile | None = None,
    recipe: Recipe | None = None,
) -> Explanation:
    """Say for each op whether it is integer, which kernel runs, why where it is float, and of a downcast model what is 16 bits.

    A Model is lowered as `compile` does with these options, not built; an Executable says what it is made of.
    """
    if isinstance(subject, Executable):
        ops = tuple(ExplainedOp(**entry) for entry in subject.description.ops)
        return Explanation(ops=ops, inputs=ports(subject.inputs), outputs=ports(subject.outputs))
    chosen = resolve_target(target)
    subject, wanted = prepared(subject, chosen, precision, profile, recipe)
    if chosen.device is not None:
        ops = explained_ops(lowered_for(chosen.device, checked_model(subject)).records, subject)
        return Explanation(ops=ops, inputs=ports(input_specs(subject)), outputs=ports(output_specs(subject)))
    module, backends = checked_model(subject).bound(), chosen.backends
    lowered = lower(module, chosen.host, chosen.isas, 1, subject.tensors, wanted, backends=backends)
    ops = explained_ops(lowered.records, subject)
    return Explanation(ops=ops, inputs=ports(input_specs(subject)), outputs=ports(output_specs(subject)))


# ----------------------------------------------------------------------------------------------------------- the edges


def checked_model(model: Model) -> Model:
    """Return `model`; ModelError if it is no Model: a path, say, that nobody loaded."""
    check_type(model, Model, ModelError, "a Model, which octavo.load returns")
    return model


def resolve_threads(threads: int | None) -> int:
    """Return the number of chunks: 1 for None. TargetError if it is below 1 or beyond any machine's use."""
    if threads is None:
        return 1
    check_type(threads, int | np.integer, TargetError, "a whole number of threads")
    if not 1 <= threads <= MAX_THREADS:
        raise TargetError(f"threads must be 1 to {MAX_THREADS}, got {threads}")
    return int(threads)
