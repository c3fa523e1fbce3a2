"""Profiling on more than one machine: parts of a stream of samples as tasks of Ray, merged as they come back.

Merging is exact and knows no order, so the profile has the bytes of one stream's, whichever worker did what and however often
one died. Each worker loads and compiles the model for itself. Needs Ray, which `pip install 'octavo[ray]'` brings, and Octavo on
every machine. How a part is profiled is profile.py's business.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..compiler.compile import resolve_threads
from ..errors import DataError, ProfileError, check_path
from ..frontends.load import load
from ..frontends.symbols import SizeOption
from ..ir.graph.inputs import input_specs
from ..ir.graph.model import Model
from ..runtime.inputs import split_batch
from . import KEEP_SAMPLES, check_keep, checked_batches, preprocessing_of, select
from .model_profile import Profile
from .profile import profile
from .ray_cluster import DEATHS, Workers, connected, loaded, model_content

Runs = list[dict[str, npt.NDArray[Any]]]


def profile_on_ray(
    source: str | Path,
    batches: Any,
    *,
    address: str | None = None,
    shapes: Mapping[str, Sequence[int | str]] | None = None,
    sizes: Mapping[str, SizeOption] | None = None,
    tensors: str | Iterable[str] | None = None,
    threads: int | None = None,
    samples_per_task: int = 32,
    progress: Callable[[int], None] | None = None,
    keep_samples: int = KEEP_SAMPLES,
) -> Profile:
    """Profile a model on a Ray cluster; the same bytes as `profile` gives.

    Parameters
    ----------
    source
        Path of a .onnx or .tflite file; its content is sent to the workers.
    batches, tensors, threads, keep_samples
        As `profile` takes them. The samples are read here, a few tasks ahead of the workers, and sent.
    address
        Of the cluster, as ray.init takes it. None: the one that RAY_ADDRESS names, or one started on this machine for this call.
    shapes, sizes
        As `load` takes them.
    samples_per_task
        Samples of one task, at least 1: what is done again where a worker dies.
    progress
        Called with the number of samples profiled so far, each time a part is back.

    Raises
    ------
    ProfileError
        Ray is not installed, the cluster is not to be reached, or workers keep dying.
    DataError, ModelError
        As `load` and `profile` raise them.
    """
    if isinstance(samples_per_task, bool) or samples_per_task < 1:
        raise ProfileError(f"samples_per_task must be a number of samples, 1 or more, got {samples_per_task!r}")
    check_keep(keep_samples)
    path = check_path(source, ProfileError, "the path of a model file")
    model = load(path, shapes=shapes, sizes=sizes)
    chosen = None if tensors is None else (tensors,) if isinstance(tensors, str) else tuple(tensors)
    select(model, chosen)
    options: dict[str, Any] = {"tensors": chosen, "threads": resolve_threads(threads), "keep_samples": keep_samples}
    given = model_content(path), dict(shapes or {}), dict(sizes or {})
    with connected(address, what="profiling", error_of=ProfileError) as ray:
        workers = Workers(ray, loaded, given, cpus=options["threads"], lost=_lost)
        merged = _merged(workers, options, _parts(model, batches, samples_per_task), progress)
    if merged is None:
        raise DataError("no samples: the data set is empty; give at least one batch")
    return replace(merged, preprocessing=preprocessing_of(batches))


def _parts(model: Model, batches: Any, samples: int) -> Iterator[tuple[list[int], Runs]]:
    """Cut a stream into parts: the numbers of its samples, and its runs."""
    specs = input_specs(model)
    sizes = {spec.shape[0] if spec.shape else 1 for spec in specs}
    rows = sizes.pop() if len(sizes) == 1 else 1
    runs: Runs = []
    first = 0
    for index, batch in enumerate(checked_batches(batches)):
        for arrays in split_batch(specs, batch, where=f"batch {index}", finite=False):
            runs.append({spec.id: np.ascontiguousarray(array) for spec, array in zip(specs, arrays, strict=True)})
            if len(runs) * rows >= samples:
                yield list(range(first, first + len(runs) * rows)), runs
                first, runs = first + len(runs) * rows, []
    if runs:
        yield list(range(first, first + len(runs) * rows)), runs


def _merged(
    workers: Workers, options: dict[str, Any], parts: Iterator[tuple[list[int], Runs]], progress: Callable[[int], None] | None
) -> Profile | None:
    """Have every part profiled, a few at a time, and merge what comes back in the order that it comes."""
    pending: list[Any] = []
    merged: Profile | None = None

    def take() -> None:
        nonlocal merged, pending
        (ready, *_), pending = workers.ray.wait(pending, num_returns=1)
        part: Profile = workers.result(ready)
        merged = part if merged is None else merged.merge(part)
        if progress is not None:
            progress(merged.samples)

    for numbers, runs in parts:
        pending.append(workers.submit(_profile_part, runs, numbers, options))
        if len(pending) >= 2 * workers.width:
            take()
    while pending:
        take()
    return merged


def _lost(name: str) -> ProfileError:
    return ProfileError(
        f"the cluster lost one part of the samples {DEATHS + 1} times ({name}); look at the workers' memory, "
        "or give fewer samples to a task"
    )


def _profile_part(model: Model, runs: Runs, numbers: list[int], options: dict[str, Any]) -> Profile:
    """Run in a worker: profile one part."""
    return profile(model, runs, numbers=numbers, **options)
