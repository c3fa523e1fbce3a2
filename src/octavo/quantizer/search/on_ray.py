"""A search whose candidates are measured on a Ray cluster, several at a time, some before it is known whether they will count.

What is tried, and in which order it is listed, is the search's own: the front is the one that a search without Ray finds. Each
worker loads the model, and runs it in float, once.
"""

from __future__ import annotations

import hashlib
import importlib
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...errors import QuantizationError, check_path
from ...frontends.load import load
from ...profiling.model_profile import Profile
from ...profiling.ray_cluster import DEATHS, connected, model_content, result_of
from ..tune import Steps
from .bench import BENCH_OPTIONS, Bench, Measurement
from .result import SearchResult
from .search import search_with

_POLL = 0.2
"""Seconds after which a wait looks for Ctrl-C."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Work:
    """What every task measures with: the model's content and shapes, and what `Bench` is made of besides."""

    content: bytes
    shapes: dict[str, tuple[int, ...]] | None
    options: dict[str, Any]
    float_metric: float


def search_on_ray(
    source: str | Path,
    profile: Profile,
    data: Iterable[Any] | None = None,
    *,
    address: str | None = None,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    **options: Any,
) -> SearchResult:
    """Search as `octavo.search` does, candidates measured on a Ray cluster; the same result, unless its time runs out.

    Parameters
    ----------
    source
        Path of a .onnx or .tflite file; its content is sent to the workers.
    profile, data
        As `search` takes them.
    address
        Of the cluster, as ray.init takes it. None: the one that RAY_ADDRESS names, or one started on this machine for this call.
    shapes
        As `octavo.load` takes them.
    options
        Those of `search`. Its `evaluate` is sent to the workers with what it refers to; a `cost` that measures time measures
        it beside other workers. On machines of several kinds the `target` is an ISA: "cpu" is what a worker's machine has.

    Raises
    ------
    QuantizationError
        As `search`; or Ray is not installed, the cluster is not to be reached, or workers keep dying.
    """
    path = check_path(source, QuantizationError, "the path of a model file")
    model = load(path, shapes=shapes)
    with connected(address, what="a search", error_of=QuantizationError) as ray:
        measures = _OnRay(ray=ray, content=model_content(path), shapes=None if shapes is None else dict(shapes))
        return search_with(measures, model, profile, data, **options)


@dataclass(kw_only=True, slots=True, eq=False)
class _OnRay:
    """Measures candidates as tasks."""

    ray: Any
    content: bytes
    shapes: dict[str, tuple[int, ...]] | None
    _task: Any = None
    _work: list[Any] = field(default_factory=list[Any])
    """The reference of the work, in a list, so that a task fetches it only where it must; and its digest."""
    _begun: dict[Steps, Any] = field(default_factory=dict[Steps, Any])

    @property
    def width(self) -> int:
        return max(1, int(self.ray.cluster_resources().get("CPU", 1)))

    def start(self, bench: Bench) -> None:
        options = {name: getattr(bench, name) for name in BENCH_OPTIONS}
        work = _Work(content=self.content, shapes=self.shapes, options=options, float_metric=bench.float_metric)
        pickled = importlib.import_module("ray.cloudpickle").dumps(work)
        self._task = self.ray.remote(num_cpus=1, max_retries=DEATHS)(_measure)
        self._work = [self.ray.put(pickled), hashlib.sha256(pickled).hexdigest()]

    def begin(self, candidates: Sequence[Steps]) -> None:
        for steps in candidates:
            if steps not in self._begun:
                self._begun[steps] = self._task.remote(self._work, steps)

    def measure(self, steps: Steps, check: Callable[[], None]) -> Measurement:
        self.begin([steps])
        while not self.ray.wait([self._begun[steps]], num_returns=1, timeout=_POLL)[0]:
            check()
        return result_of(self.ray, self._begun[steps], lost=_lost)


def _lost(name: str) -> QuantizationError:
    return QuantizationError(f"the cluster lost one candidate {DEATHS + 1} times ({name}); look at the workers' memory")


_BENCHES: dict[str, Bench] = {}
"""Of this worker, by the digest of the work: its candidates share the model and its float outputs."""


def _measure(work: list[Any], steps: Steps) -> Measurement:
    """Run in a worker: measure one candidate."""
    reference, digest = work
    if digest not in _BENCHES:
        ray: Any = importlib.import_module("ray")
        _BENCHES.clear()  # a worker that outlives a search keeps no model of it
        _BENCHES[digest] = _bench(importlib.import_module("pickle").loads(ray.get(reference)))
    return _BENCHES[digest].measure(steps, lambda: None)


def _bench(work: _Work) -> Bench:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model"
        path.write_bytes(work.content)
        model = load(path, shapes=work.shapes)
    bench = Bench(model=model, **work.options)
    bench.start(work.float_metric)
    return bench
