"""Profile: calibration data runs through a float model with an observer on every tensor."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from ..compiler.compile import build_executable, compile_model, resolve_threads
from ..compiler.constant_block import constant_block
from ..compiler.device_models import observing_for, profiling_target
from ..compiler.partition.pipeline import lower
from ..compiler.target_choice import TargetLike
from ..errors import ProfileError, check_path
from ..ir.graph import Model
from ..ir.graph.inputs import input_specs
from ..ir.graph.lineage import lineage_paused
from ..ir.graph.model import checked_model
from ..runtime.executable import Executable
from ..runtime.heap import trim_heap
from .carried import Carried
from .checkpoint import Checkpoint
from .collect import collect, preprocessing_of
from .instrument import Instrumented, instrument
from .kept_samples import KEEP_SAMPLES, check_keep
from .model_profile import Profile
from .selection import select


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
        {output: input} that carries the one to the other from sample to sample, from what the source states, or zeros, on;
        `batches` hold the other inputs, and their order counts.

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
        floats = compile_model(checked, target=target, threads=threads)
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
                with constant_block(model.constant_bytes):
                    lowered = lower(instrumented.module, chosen.description, chosen.isas, threads, model.tensors)
                    profilers[key] = instrumented, build_executable(lowered, model, chosen, threads, outputs=())
                del lowered
        trim_heap(model.constant_bytes)
    return profilers[key]


def forget_profilers(model: Model) -> None:
    """Let what profiled a model go, which holds its constants once more."""
    _PROFILERS.pop(model, None)
