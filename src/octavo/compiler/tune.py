"""Tune: measure the schedules that the kernels of a model could have, inside the running model, and keep those that win.

    search    each kernel's next alternative, all kernels at once, against the model as its kernels chose, in alternating rounds
    confirm   the winners together against the same, in fresh rounds; what doesn't win again is dropped

On this machine, on one thread, every layer is timed where it runs: behind the layer before, with the caches as that left them; on
a device by its own clock. A winner must beat the kernel's own choice by more than the rounds' spread. It writes no file.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ..errors import CompileError, TuningError, check_type
from ..ir.graph import Model
from ..ir.graph.inputs import check_fixed, random_inputs
from ..ir.graph.model import checked_model
from ..runtime.llvm_host import processor_name
from .backends.cpu.link import link
from .backends.protocol import DeviceBackend, DeviceClock
from .backends.tunable import Schedule, Tunable
from .backends.tuning import Tuning, Winner
from .codegen.layer_clock import TimedCalls, timed_calls
from .device_models import partitioned_for
from .partition.pipeline import lower
from .target_choice import ResolvedTarget, TargetLike, check_runs_here, resolve_target
from .text_table import markdown_table

ROUNDS = 15
BURST_S = 2e-3  # a turn of one contender lasts so long, or three runs
CONFIRMATIONS = 3
MARGIN = 0.01  # a winner saves more than this share of a kernel's time ...
CLOCK_US = 0.06  # ... and more than the clock can err by in each call
FIRST_COMPILATION_S = 0.3  # of one kernel, until it is known


@dataclass(frozen=True, kw_only=True, slots=True)
class TunedKernel:
    """The calls of one key in a model.

    Parameters
    ----------
    key, calls
        Name of the work, and how many calls do it.
    before, after
        The kernel's own schedule and the one kept; the same where nothing beat it.
    before_us, after_us
        Median microseconds of all calls together, in the same rounds.
    tried
        How many alternatives were measured.
    """

    key: str
    calls: int
    before: Schedule
    after: Schedule
    before_us: float
    after_us: float
    tried: int


@dataclass(frozen=True, kw_only=True, slots=True)
class TuningReport:
    """What tuning found: `tuning` is for `octavo.compile`. Times of the whole model are medians over the same rounds."""

    tuning: Tuning
    kernels: tuple[TunedKernel, ...]
    before_ms: float
    after_ms: float
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        kernels = [
            {
                "key": each.key,
                "calls": each.calls,
                "before": str(each.before),
                "after": str(each.after),
                "before_us": each.before_us,
                "after_us": each.after_us,
                "tried": each.tried,
            }
            for each in self.kernels
        ]
        totals = {"before_ms": self.before_ms, "after_ms": self.after_ms, "seconds": self.seconds}
        return {"isa": self.tuning.isa, "processor": self.tuning.processor, **totals, "kernels": kernels}

    def to_markdown(self) -> str:
        """Return a table of the kernels, the largest share of the time first, and the total."""
        rows = [
            (
                each.key,
                str(each.calls),
                str(each.before),
                "" if each.after == each.before else str(each.after),
                str(each.tried),
                f"{each.before_us:.1f}",
                f"{each.after_us:.1f}",
                "" if each.after == each.before else f"{1 - each.after_us / each.before_us:.1%}",
            )
            for each in self.kernels
        ]
        headers = ("kernel", "calls", "chosen", "better", "tried", "us before", "us after", "gain")
        gain = 1 - self.after_ms / self.before_ms
        won = sum(each.after != each.before for each in self.kernels)
        total = f"{self.before_ms:.3f} ms before, {self.after_ms:.3f} ms after: {gain:.1%} gained"
        tried = sum(each.tried for each in self.kernels)
        end = f"{won} of {len(self.kernels)} kernels improved, {tried} schedules measured in {self.seconds:.0f} s"
        return f"{markdown_table(headers, rows, numbers=(1, 4, 5, 6, 7))}\n\n{total}; {end}"


def tune(
    model: Model, *, target: TargetLike = None, seconds: float = 60.0, progress: Callable[[int], None] | None = None
) -> TuningReport:
    """Measure the schedules that the kernels of a model could have on this machine, and keep those that beat their own choice.

    Parameters
    ----------
    target
        As `compile` takes it; this machine must have it, the GPU too.
    seconds
        Time to spend, about: it compiles the model at least once, and begins nothing that it can't end.
    progress
        Called after each turn with the number of schedules measured in it.

    Returns
    -------
    TuningReport
        `.tuning` is for `octavo.compile(model, tuning=...)`, and has `.save`.

    Raises
    ------
    TuningError
        `seconds` is no positive number.
    TargetError
        This machine does not have the target.
    ModelError
        The model leaves sizes open.
    CompileError
        The model can't be compiled, or runs on TVM's virtual machine, whose calls can't be timed one by one.
    """
    check_type(seconds, int | float, TuningError, "a number of seconds")
    if not 0 < seconds < float("inf"):
        raise TuningError(f"seconds must be a positive number, got {seconds}")
    chosen = resolve_target(target)
    check_fixed(checked_model(model), "kernels are timed on a model")
    if chosen.device is None:
        check_runs_here(chosen)
        search = _Search(seconds, _HostBench(checked_model(model), chosen))
    else:
        search = _Search(seconds, _DeviceBench(checked_model(model), chosen.device.present()))
    while search.turn(progress):
        pass
    return search.report()


class _Contender(Protocol):
    """The model compiled with some schedules, to be timed."""

    @property
    def tunables(self) -> Mapping[str, Tunable]:
        """What can be chosen of its kernels, by their keys."""
        ...

    @property
    def calls(self) -> Mapping[str, int]:
        """How many calls each key has."""
        ...

    def burst(self, runs: int) -> dict[str, float]:
        """Return the microseconds of all calls of each key together, and of the whole model under "", over some runs."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class _Costs:
    """Seconds that a contender took: to lower it, to compile it."""

    lowering: float
    compiling: float


class _Bench(Protocol):
    """What compiles a model with schedules, and times it."""

    isa: str
    processor: str

    def contender(self, schedules: Mapping[str, Schedule]) -> tuple[_Contender, _Costs]:
        """Return the model compiled with these schedules, and what that took."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _HostContender:
    """Calls on one thread of this machine; `keys` names the kernel of each, "" where nothing can be chosen."""

    timed: TimedCalls
    keys: tuple[str, ...]
    tunables: Mapping[str, Tunable]

    @property
    def calls(self) -> Mapping[str, int]:
        """How many calls each key has."""
        return Counter(self.keys)

    def burst(self, runs: int) -> dict[str, float]:
        """Return sums of the median times of each call over some runs in fresh memory, behind one that fills the caches."""
        self.timed.move()
        self.timed.run()
        spent = np.median(np.stack([self.timed.run() for _ in range(runs)]), axis=0) / 1e3
        sums = dict.fromkeys(self.tunables, 0.0)
        for key, value in zip(self.keys, spent, strict=True):
            if key:
                sums[key] += float(value)
        return {**sums, "": float(spent.sum())}


class _HostBench:
    """A model on this machine."""

    def __init__(self, model: Model, target: ResolvedTarget) -> None:
        self._model, self._module, self._target = model, model.bound(), target
        self._inputs = list(random_inputs(model).values())
        self.isa, self.processor = target.isas[0], processor_name()

    def contender(self, schedules: Mapping[str, Schedule]) -> tuple[_HostContender, _Costs]:
        """Return the model compiled with these schedules, and what that took."""
        begun = time.perf_counter()
        target = self._target
        ids, backends = self._model.tensors, target.backends
        lowered = lower(self._module, target.host, target.isas, 1, ids, schedules=schedules, backends=backends)
        linked = link(lowered, target.llvm)
        lowering = time.perf_counter() - begun
        calls = timed_calls(linked, target.llvm, self._inputs)
        if calls is None:
            raise CompileError("the model can't be tuned, for it runs on TVM's virtual machine (shapes are not static)")
        costs = _Costs(lowering=lowering, compiling=time.perf_counter() - begun - lowering)
        placed = [lowered.kernels.get(symbol) for symbol in calls.symbols]
        tunables = [each.tunable if each is not None else None for each in placed]
        found = {each.key: each for each in tunables if each is not None}
        keys = tuple("" if each is None else each.key for each in tunables)
        return _HostContender(timed=calls, keys=keys, tunables=found), costs


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _DeviceContender:
    """A model on a device, by whose clock it is timed."""

    clock: DeviceClock
    calls: Mapping[str, int]
    tunables: Mapping[str, Tunable]

    def burst(self, runs: int) -> dict[str, float]:
        """Return what the device's clock says."""
        return self.clock.burst(runs)


class _DeviceBench:
    """A model on this machine's device."""

    def __init__(self, model: Model, device: DeviceBackend) -> None:
        self._device, self._module = device, partitioned_for(device, model)
        self._inputs = list(random_inputs(model).values())
        self.isa, self.processor = device.isa, str(device.chip)

    def contender(self, schedules: Mapping[str, Schedule]) -> tuple[_DeviceContender, _Costs]:
        """Return the model compiled with these schedules, and what that took."""
        begun = time.perf_counter()
        lowered = self._device.lower(self._module, schedules)
        lowering = time.perf_counter() - begun
        clock = self._device.clock(lowered, self._inputs)
        costs = _Costs(lowering=lowering, compiling=time.perf_counter() - begun - lowering)
        return _DeviceContender(clock=clock, calls=lowered.calls, tunables=lowered.tunables), costs


@dataclass(frozen=True, slots=True)
class _Comparison:
    """The times of two contenders over the same rounds: medians in microseconds, the ratio's median and what it may err by."""

    before_us: float
    after_us: float
    ratio: float
    error: float

    @staticmethod
    def of(before: npt.NDArray[np.float64], after: npt.NDArray[np.float64]) -> _Comparison:
        """Compare the rounds pair by pair, so that a machine that slows down slows both."""
        ratios = after / np.maximum(before, 1e-9)
        ratio = float(np.median(ratios))
        # The standard error of a median, from the median deviation: neither is moved by a few rounds that were disturbed.
        error = 1.253 * 1.4826 * float(np.median(np.abs(ratios - ratio))) / np.sqrt(len(ratios))
        return _Comparison(float(np.median(before)), float(np.median(after)), ratio, float(error))


@dataclass(slots=True)
class _Kernel:
    """What is known of one key: the best so far and its ratio to the kernel's own choice, and what was tried."""

    own: Tunable
    calls: int
    best: Tunable
    ratio: float = 1.0
    tried: set[Schedule] = field(default_factory=set[Schedule])

    def next(self) -> Schedule | None:
        """Return what is to be measured next; alternatives to the best are the first."""
        waiting = (each for each in (*self.best.alternatives, *self.own.alternatives) if each not in self.tried)
        return next((each for each in waiting if each not in (self.own.schedule, self.best.schedule)), None)


class _Search:
    """Turns of one schedule for each kernel, the largest share of the time first."""

    def __init__(self, seconds: float, bench: _Bench) -> None:
        self._start = time.perf_counter()
        self._end = self._start + seconds
        self._bench = bench
        self._lowering_s = self._linking_s = 0.0
        self._own = self._compiled({}, changed=0)
        self._compilation_s = FIRST_COMPILATION_S
        self._own.burst(1)
        begun = time.perf_counter()
        shares = self._own.burst(3)
        self._runs = max(3, int(BURST_S / max((time.perf_counter() - begun) / 4, 1e-7)))
        self._round_s = (time.perf_counter() - begun) * (self._runs + 1) / 2
        self._kernels = {
            key: _Kernel(own=tunable, best=tunable, calls=self._own.calls[key])
            for key, tunable in sorted(self._own.tunables.items(), key=lambda each: -shares[each[0]])
        }

    # ---- what is measured

    def _compiled(self, schedules: Mapping[str, Schedule], *, changed: int) -> _Contender:
        contender, costs = self._bench.contender(schedules)
        self._lowering_s = costs.lowering
        if changed:
            self._compilation_s = max(0.0, costs.compiling - self._linking_s) / changed
        else:
            self._linking_s = costs.compiling
        return contender

    def _compare(self, other: _Contender, rounds: int) -> dict[str, _Comparison]:
        """Measure a contender against the kernels' own choices; "" is the whole model."""
        taken: dict[int, list[dict[str, float]]] = {0: [], 1: []}
        pair = (self._own, other)
        for number in range(rounds):
            for index in (0, 1) if number % 2 == 0 else (1, 0):
                taken[index].append(pair[index].burst(self._runs))
        return {key: _Comparison.of(*(np.array([each[key] for each in taken[index]]) for index in (0, 1))) for key in taken[0][0]}

    # ---- search

    def turn(self, progress: Callable[[int], None] | None) -> bool:
        """Measure one more schedule of each kernel, of as many as the time allows; return whether there was one."""
        chosen = self._affordable()
        if not chosen:
            return False
        best = {key: kernel.best.schedule for key, kernel in self._kernels.items() if kernel.best is not kernel.own}
        contender = self._compiled({**best, **chosen}, changed=len(chosen))
        compared = self._compare(contender, ROUNDS)
        for key, schedule in chosen.items():
            kernel, found = self._kernels[key], compared[key]
            kernel.tried.add(schedule)
            if found.ratio + found.error < kernel.ratio:
                kernel.best, kernel.ratio = contender.tunables[key], found.ratio
        if progress is not None:
            progress(len(chosen))
        return True

    def _affordable(self) -> dict[str, Schedule]:
        """Return the next schedule of each kernel, of so many kernels as there is time for beside the confirmation."""
        building = self._lowering_s + self._linking_s
        needed = building + ROUNDS * self._round_s + 2 * (building + 2 * ROUNDS * self._round_s)
        left = self._end - time.perf_counter() - needed
        count = int(left / self._compilation_s) if self._compilation_s else len(self._kernels)
        waiting = {key: kernel.next() for key, kernel in self._kernels.items()} if left > 0 else {}
        return dict([(key, each) for key, each in waiting.items() if each is not None][: max(count, 0)])

    # ---- confirmation

    def report(self) -> TuningReport:
        """Measure the winners together, drop those that don't win again, and say what was gained."""
        kept = {key: kernel.best.schedule for key, kernel in self._kernels.items() if kernel.best is not kernel.own}
        compared: dict[str, _Comparison] = {}
        for _ in range(CONFIRMATIONS if kept else 0):
            compared = self._compare(self._compiled(kept, changed=0), 2 * ROUNDS)
            winners = {key: schedule for key, schedule in kept.items() if self._wins(key, compared[key])}
            if winners == kept:
                break
            kept = winners
        else:
            kept, compared = {}, {}
        if kept and compared[""].ratio - 2 * compared[""].error > 1:  # winners one by one that lose together
            kept, compared = {}, {}
        return self._report_of(kept, compared or self._compare(self._own, ROUNDS))

    def _wins(self, key: str, found: _Comparison) -> bool:
        saved = found.before_us - found.after_us
        return found.ratio + 3 * found.error < 1 - MARGIN and saved > CLOCK_US * self._kernels[key].calls

    def _report_of(self, kept: Mapping[str, Schedule], compared: Mapping[str, _Comparison]) -> TuningReport:
        winners = {
            key: Winner(schedule=schedule, before_us=round(compared[key].before_us, 3), after_us=round(compared[key].after_us, 3))
            for key, schedule in kept.items()
        }
        tuning = Tuning(isa=self._bench.isa, processor=self._bench.processor, octavo=metadata.version("octavo"), winners=winners)
        kernels = [
            TunedKernel(
                key=key,
                calls=kernel.calls,
                before=kernel.own.schedule,
                after=kept.get(key, kernel.own.schedule),
                before_us=compared[key].before_us,
                after_us=compared[key].after_us,
                tried=len(kernel.tried),
            )
            for key, kernel in self._kernels.items()
        ]
        return TuningReport(
            tuning=tuning,
            kernels=tuple(kernels),
            before_ms=compared[""].before_us / 1e3,
            after_ms=compared[""].after_us / 1e3,
            seconds=time.perf_counter() - self._start,
        )
