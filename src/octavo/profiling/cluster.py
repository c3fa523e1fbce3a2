"""Profiling on more than one machine: parts of a stream of samples as tasks of Ray, merged as they come back.

Merging is exact and knows no order, so the profile has the bytes of one stream's, whichever worker did what and however often
one died. Each worker loads and compiles the model for itself. Needs Ray, which `pip install 'octavo[ray]'` brings, and Octavo on
every machine. How a part is profiled is profile.py's business.
"""

from __future__ import annotations

import hashlib
import importlib
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..compiler.compile import resolve_threads
from ..errors import DataError, ProfileError, check_path
from ..frontends.load import load
from ..ir.graph.inputs import input_specs
from ..ir.graph.model import Model
from ..runtime.inputs import split_batch
from . import KEEP_SAMPLES, check_keep, checked_batches, preprocessing_of, select
from .model_profile import Profile
from .profile import profile
from .ray_cluster import DEATHS, connected, model_content, result_of

Runs = list[dict[str, npt.NDArray[Any]]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """What every task does with its part.

    Parameters
    ----------
    digest
        Of the model's content: a worker that knows it loads nothing.
    shapes, tensors, threads, keep_samples
        As `load` and `profile` take them.
    """

    digest: str
    shapes: dict[str, tuple[int, ...]] | None
    tensors: tuple[str, ...] | None
    threads: int
    keep_samples: int


def profile_on_ray(
    source: str | Path,
    batches: Any,
    *,
    address: str | None = None,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
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
    shapes
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
    model = load(path, shapes=shapes)
    chosen = None if tensors is None else (tensors,) if isinstance(tensors, str) else tuple(tensors)
    select(model, chosen)
    content = model_content(path)
    work = Work(
        digest=hashlib.sha256(content).hexdigest(),
        shapes=None if shapes is None else dict(shapes),
        tensors=chosen,
        threads=resolve_threads(threads),
        keep_samples=keep_samples,
    )
    with connected(address, what="profiling", error_of=ProfileError) as ray:
        merged = _merged(ray, work, content, _parts(model, batches, samples_per_task), progress)
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
    ray: Any, work: Work, content: bytes, parts: Iterator[tuple[list[int], Runs]], progress: Callable[[int], None] | None
) -> Profile | None:
    """Have every part profiled, a few at a time, and merge what comes back in the order that it comes."""
    task = ray.remote(num_cpus=work.threads, max_retries=DEATHS)(_profile_part)
    # In a list, so that a task is given the reference and fetches the model only where it must.
    model = [ray.put(content)]
    most = max(2, 2 * int(ray.cluster_resources().get("CPU", 1)) // work.threads)
    pending: list[Any] = []
    merged: Profile | None = None

    def take() -> None:
        nonlocal merged, pending
        (ready, *_), pending = ray.wait(pending, num_returns=1)
        part: Profile = result_of(ray, ready, lost=_lost)
        merged = part if merged is None else merged.merge(part)
        if progress is not None:
            progress(merged.samples)

    for numbers, runs in parts:
        pending.append(task.remote(work, model, numbers, runs))
        if len(pending) >= most:
            take()
    while pending:
        take()
    return merged


def _lost(name: str) -> ProfileError:
    return ProfileError(
        f"the cluster lost one part of the samples {DEATHS + 1} times ({name}); look at the workers' memory, "
        "or give fewer samples to a task"
    )


_MODELS: dict[str, Model] = {}
"""Of this worker, by the content's digest and the shapes: the parts of a run share what was compiled."""


def _profile_part(work: Work, content: list[Any], numbers: list[int], runs: Runs) -> Profile:
    """Run in a worker: profile one part."""
    key = f"{work.digest} {sorted((work.shapes or {}).items())}"
    if key not in _MODELS:
        ray: Any = importlib.import_module("ray")
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model"
            path.write_bytes(ray.get(content[0]))
            _MODELS[key] = load(path, shapes=work.shapes)
    return profile(
        _MODELS[key], runs, tensors=work.tensors, threads=work.threads, numbers=numbers, keep_samples=work.keep_samples
    )
