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
from functools import partial
from pathlib import Path
from typing import Any

from ...errors import QuantizationError, check_path
from ...frontends.load import load
from ...profiling.model_profile import Profile
from ...profiling.ray_cluster import DEATHS, connected, model_content, result_of
from ..tune import Steps
from .bench import Bench
from .result import Candidate, SearchResult
from .search import search

_POLL = 0.2
"""Seconds after which a wait looks for Ctrl-C."""


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
        Those of `search`. Its `evaluate` is sent to the workers with what it refers to. On machines of several kinds the
        `target` is an ISA: "cpu" is what a worker's machine has.

    Raises
    ------
    QuantizationError
        As `search`; or Ray is not installed, the cluster is not to be reached, or workers keep dying.
    """
    path = check_path(source, QuantizationError, "the path of a model file")
    model = load(path, shapes=shapes)
    with connected(address, what="a search", error_of=QuantizationError) as ray:
        work = model_content(path), None if shapes is None else dict(shapes)
        return search(model, profile, data, bench_of=partial(_RayBench, ray=ray, work=work), **options)


@dataclass(kw_only=True, eq=False)
class _RayBench(Bench):
    """Measures candidates as tasks.

    Parameters
    ----------
    work
        The model's content, and its shapes.
    """

    ray: Any
    work: tuple[Any, ...]
    _task: Any = None
    _sent: list[Any] = field(default_factory=list[Any])
    """The reference of the work, in a list, so that a task fetches it only where it must; and its digest."""
    _begun: dict[Steps, Any] = field(default_factory=dict[Steps, Any])

    @property
    def width(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return max(1, int(self.ray.cluster_resources().get("CPU", 1)))

    def start(self, float_metric: float | None = None) -> None:
        super().start(float_metric)
        pickled = importlib.import_module("ray.cloudpickle").dumps((*self.work, self.options, self.float_metric))
        self._task = self.ray.remote(num_cpus=1, max_retries=DEATHS)(_measure)
        self._sent = [self.ray.put(pickled), hashlib.sha256(pickled).hexdigest()]

    def begin(self, candidates: Sequence[Steps]) -> None:
        for steps in candidates:
            if steps not in self._begun:
                self._begun[steps] = self._task.remote(self._sent, steps)

    def measure(self, steps: Steps, check: Callable[[], None]) -> Candidate:
        self.begin([steps])
        while not self.ray.wait([self._begun[steps]], num_returns=1, timeout=_POLL)[0]:
            check()
        return result_of(self.ray, self._begun[steps], lost=_lost)


def _lost(name: str) -> QuantizationError:
    return QuantizationError(f"the cluster lost one candidate {DEATHS + 1} times ({name}); look at the workers' memory")


_BENCHES: dict[str, Bench] = {}
"""Of this worker, by the digest of the work: its candidates share the model and its float outputs."""


def _measure(sent: list[Any], steps: Steps) -> Candidate:
    """Run in a worker: measure one candidate."""
    reference, digest = sent
    if digest not in _BENCHES:
        ray: Any = importlib.import_module("ray")
        _BENCHES.clear()  # a worker that outlives a search keeps no model of it
        content, shapes, options, float_metric = importlib.import_module("pickle").loads(ray.get(reference))
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model"
            path.write_bytes(content)
            bench = Bench(model=load(path, shapes=shapes), **options)
        bench.start(float_metric)
        _BENCHES[digest] = bench
    return _BENCHES[digest].measure(steps, lambda: None)
