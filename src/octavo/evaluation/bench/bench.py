"""Bench: Octavo and its peers on the same model, input and threads, timed in alternating rounds of one process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from ...compiler.target_choice import TargetLike
from ...compiler.text_table import markdown_table
from ...ir.graph import Model
from ...ir.graph.inputs import check_fixed, random_inputs
from ...ir.graph.model import checked_model
from ...profiling.model_profile import Profile
from ...quantizer.compile import compile
from ...runtime.executable import Executable
from ...runtime.llvm_host import processor_name
from .peers import PEERS, Arrays, Peer, PeerTask
from .timing import time_alternating

SEED = 0
OURS = "Octavo"


@dataclass(frozen=True, kw_only=True, slots=True)
class BenchRow:
    """One runtime at one thread count.

    Parameters
    ----------
    runtime, version
        Who ran.
    threads
        Threads of one inference.
    median_ms
        Median time of one inference, in milliseconds; None if the peer did not run.
    ratio
        Its median over Octavo's: above 1, Octavo is faster. None if the peer did not run.
    max_abs_error
        Largest difference of an output value from Octavo's, in the outputs' own units (quantization steps where they are
        integers); None for Octavo itself, for a peer that did not run, or where the outputs have other shapes.
    note
        Why it did not run, else "".
    """

    runtime: str
    version: str
    threads: int
    median_ms: float | None = None
    ratio: float | None = None
    max_abs_error: float | None = None
    note: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class BenchReport:
    """Rows in the order they were measured, and what they were measured on."""

    model: str
    processor: str
    seconds: float
    rows: tuple[BenchRow, ...]

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self)

    def to_markdown(self) -> str:
        """Return a heading line and a table; the column "vs Octavo" is the peer's time over Octavo's."""
        rows = [
            (
                row.runtime,
                row.version,
                str(row.threads),
                row.note or f"{row.median_ms:.3f}",
                "" if row.ratio is None else f"{row.ratio:.2f}x",
                "" if row.max_abs_error is None else f"{row.max_abs_error:.3g}",
            )
            for row in self.rows
        ]
        headers = ("runtime", "version", "threads", "median ms", "vs Octavo", "max difference")
        return f"{self.model} on {self.processor}\n\n{markdown_table(headers, rows, numbers=(2, 3, 4, 5))}"


def _max_abs_error(ours: Arrays, theirs: Arrays) -> float | None:
    if [value.shape for value in ours] != [value.shape for value in theirs]:
        return None
    return max(float(np.abs(a.astype(np.float64) - b.astype(np.float64)).max()) for a, b in zip(ours, theirs, strict=True))


def _unreadable(peer: Peer, path: Path) -> str:
    return "" if path.suffix in peer.suffixes else f"reads no {path.suffix or 'such'} file"


def bench(
    model: Model,
    path: Path,
    *,
    against: Sequence[str],
    threads: Sequence[int] = (1,),
    seconds: float = 2.0,
    target: TargetLike = None,
    precision: str | None = None,
    profile: Profile | None = None,
    progress: Callable[[int], None] | None = None,
) -> BenchReport:
    """Time `model`, compiled by Octavo, against the peers that read `path`, which holds the same model.

    Parameters
    ----------
    against
        Names of peers, keys of PEERS.
    threads
        Thread counts to time at, one after the other.
    seconds
        Time spent on each runtime at each thread count.
    target, precision, profile
        As `compile` takes them. Peers that can compute in bfloat16 do so, too, where that is asked for; else they take float32.
    progress
        Called with 1 after each thread count.

    Raises
    ------
    PeerError
        A peer is not installed.
    ModelError
        The model leaves sizes open.
    CompileError
        The model cannot be compiled.
    """
    peers = [PEERS[name] for name in against]
    for peer in peers:
        peer.require()
    check_fixed(checked_model(model), "runtimes are compared on a model")
    inputs = random_inputs(model)
    rows: list[BenchRow] = []
    for count in threads:
        executable = compile(model, target=target, threads=count, precision=precision, profile=profile)
        task = PeerTask(path=path, model=model, inputs=inputs, threads=count, precision=precision or "float32")
        rows.extend(_rows(executable, task, peers, seconds))
        if progress is not None:
            progress(1)
    return BenchReport(model=path.name, processor=processor_name(), seconds=seconds, rows=tuple(rows))


def _rows(executable: Executable, task: PeerTask, peers: Sequence[Peer], seconds: float) -> list[BenchRow]:
    ours = list(executable(task.inputs).values())
    prepared = {peer.name: peer.prepare(task) for peer in peers if not _unreadable(peer, task.path)}
    calls: dict[str, Callable[[], object]] = {
        OURS: executable.bind(task.inputs).run,
        **{name: one.call for name, one in prepared.items()},
    }
    timings = time_alternating(calls, seconds=seconds)
    base = timings[OURS].median_ms
    rows = [BenchRow(runtime=OURS, version=metadata.version("octavo"), threads=task.threads, median_ms=base, ratio=1.0)]
    for peer in peers:
        row: dict[str, Any] = {"runtime": peer.label, "version": peer.version, "threads": task.threads}
        if peer.name in prepared:
            median = timings[peer.name].median_ms
            error = _max_abs_error(ours, prepared[peer.name].outputs())
            rows.append(BenchRow(**row, median_ms=median, ratio=median / base, max_abs_error=error))
        else:
            rows.append(BenchRow(**row, note=_unreadable(peer, task.path)))
    return rows
