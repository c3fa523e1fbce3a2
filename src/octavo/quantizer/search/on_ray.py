"""A search whose candidates are measured on a Ray cluster, several at a time, some before it is known whether they will count.

What is tried, and in which order it is listed, is the search's own: the front is the one that a search without Ray finds. Each
worker loads the model, and runs it in float, once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from ...errors import QuantizationError, check_path
from ...frontends.load import load
from ...frontends.symbols import SizeOption
from ...profiling.model_profile import Profile
from ...profiling.ray_cluster import DEATHS, Workers, connected, loaded, model_content
from ..tune import Steps
from .bench import Bench
from .result import Candidate, SearchResult
from .search import search


def search_on_ray(
    source: str | Path,
    profile: Profile,
    data: Iterable[Any] | None = None,
    *,
    address: str | None = None,
    shapes: Mapping[str, Sequence[int | str]] | None = None,
    sizes: Mapping[str, SizeOption] | None = None,
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
    shapes, sizes
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
    model = load(path, shapes=shapes, sizes=sizes)
    with connected(address, what="a search", error_of=QuantizationError) as ray:
        work = model_content(path), dict(shapes or {}), dict(sizes or {})
        return search(model, profile, data, measuring=partial(_RayBench, ray=ray, work=work), **options)


@dataclass(kw_only=True, eq=False)
class _RayBench(Bench):
    """Measures candidates as tasks; `work` is the model's content, its shapes and sizes."""

    ray: Any
    work: tuple[Any, ...]
    _begun: dict[Steps, Any] = field(default_factory=dict[Steps, Any])

    def start(self, float_metric: float | None = None) -> None:
        super().start(float_metric)
        self._workers = Workers(self.ray, _started, (*self.work, self.options, self.float_metric), lost=_lost)
        self.width = self._workers.width

    def begin(self, candidates: Sequence[Steps]) -> None:
        new = [steps for steps in candidates if steps not in self._begun]
        self._begun |= {steps: self._workers.submit(Bench.measure, steps) for steps in new}

    def measure(self, steps: Steps) -> Candidate:
        self.begin([steps])
        return self._workers.result(self._begun[steps])


def _lost(name: str) -> QuantizationError:
    return QuantizationError(f"the cluster lost one candidate {DEATHS + 1} times ({name}); look at the workers' memory")


def _started(content: bytes, shapes: Any, sizes: Any, options: dict[str, Any], float_metric: float | None) -> Bench:
    """Return what measures candidates in a worker."""
    bench = Bench(model=loaded(content, shapes, sizes), **options)
    bench.start(float_metric)
    return bench
