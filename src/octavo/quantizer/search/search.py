"""The search: candidates are lists of steps for the one loop; the referee, or the user's function, says what each is worth.

Candidates are nested: what costs the outputs most for each cycle that float costs more stays float first. So one number is
searched, by halving; what then can be spared is tried last. Nothing is drawn at random.
"""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from ...compiler.target_choice import TargetLike
from ...errors import QuantizationError, check_path, check_value, is_number
from ...ir.graph import Model
from ...ir.graph.inputs import input_specs
from ...ir.identity import TensorId
from ...profiling import Profile, samples_of
from ...runtime.inputs import split_batches
from ..quantize import check_subject
from ..recipe import Recipe
from ..referee.score import said_alone
from ..steps import FloatTensors, KeepFloat
from ..tune import Steps, in_order
from .bench import Bench, Evaluate, said
from .result import Candidate, SearchFolder, SearchResult

_PRECISION = 0.05
"""Of the number of float activations, as a share of it: where halving ends."""


def search(
    model: Model,
    profile: Profile,
    data: Iterable[Any] | None = None,
    *,
    evaluate: Evaluate | None = None,
    max_drop: float | None = None,
    seconds: float | None = 600.0,
    candidates: int = 24,
    target: TargetLike = "cpu",
    recipe: Recipe | None = None,
    folder: str | Path | None = None,
    progress: Callable[[Candidate], None] | None = None,
    measuring: Callable[..., Bench] = Bench,
) -> SearchResult:
    """Find which steps, and which activations in float, give a model the accuracy that is asked for at the least cost.

    Each candidate is a list of steps for the loop of `quantize`, scored by its referee; nothing is compiled but for functions of
    the user's. Ctrl-C ends the search and returns what it found so far; it waits for the first candidate. The same search gives
    the same result, unless its time runs out before its end.

    Parameters
    ----------
    model, profile
        The float model and its profile, with samples that it keeps.
    data
        Batches, as `octavo.profile` takes them, on which candidates are compared with the float model; by default samples of the
        profile that no step is fitted to.
    evaluate
        Called with an Executable, it returns what that is worth: one number, greater for better. Without it: the share of `data`
        of which the model names the float model's class, or, where its outputs are no scores of classes, 1 less the error's share
        of the worst output's power.
    max_drop
        By how much less than the float model's that number may be. Without it every trade of cost for accuracy is of interest.
    seconds
        The time that it has: no candidate is begun that is expected, by what those before took, to take longer than what is left.
        Where that is little, no step is tried, or the first candidate is returned unmeasured; `SearchResult.cut` says so. None
        for no such limit.
    candidates
        How many to try at most.
    target, recipe
        As `octavo.quantize` takes them. Without `evaluate`, candidates with less than the recipe's `min_sqnr` are not within
        `max_drop`.
    folder
        Where to keep each candidate's plan, and the list of all, as they come. A search of the same model, profile and recipe
        that finds them there goes on from them: what was measured is not measured again.
    progress
        Called with each candidate.
    measuring
        Makes what measures candidates; by default in this process, one at a time.

    Returns
    -------
    SearchResult
        All candidates, the front of those worth having, and the best.

    Raises
    ------
    ProfileError
        A profile of another model, or one that keeps no samples.
    QuantizationError
        `evaluate` returns no finite number, the folder is another search's, a limit is none, TVM's virtual machine alone can run
        the model.
    DataError
        Data that does not fit the model.
    """
    check_subject(model, profile, recipe)
    is_count = type(candidates) is int and candidates > 0
    check_value(is_count, QuantizationError, "candidates", "a number of them, 1 or more", candidates)
    path = None if folder is None else check_path(folder, QuantizationError, "the path of a folder for the search")
    for name, limit in (("seconds", seconds), ("max_drop", max_drop)):
        is_fine = limit is None or (is_number(limit) and limit >= 0)
        check_value(is_fine, QuantizationError, name, "a number, 0 or more, or None", limit)
    begun = time.monotonic()
    samples_of(model, profile, "search with")
    with Interruption() as interruption:
        bench = measuring(
            model=model,
            profile=profile,
            target=target,
            recipe=recipe or Recipe(),
            data=None if data is None else split_batches(input_specs(model), data) or None,
            evaluate=evaluate,
        )
        run = _Search(
            bench=bench,
            folder=SearchFolder(path, bench.header),
            max_drop=max_drop,
            deadline=math.inf if seconds is None else begun + seconds,
            longest=time.monotonic() - begun,
            most=candidates,
            interruption=interruption,
            progress=progress,
        )
        interruption.ready = True
        try:
            interruption.check()
            with suppress(_Ended):
                run.run()
                run.finished = True
            interruption.ready = False  # from here on SIGINT changes nothing: what was found is returned
        except BaseException:  # what comes up through TVM's code may be another error than KeyboardInterrupt
            if not interruption.asked:
                raise
        return run.result()


@dataclass(kw_only=True, slots=True, eq=False)
class _Search:
    """One search.

    Parameters
    ----------
    deadline
        By `time.monotonic`: nothing begins that would end behind it.
    fitting
        Seconds that it took to fit a step, at most; 0 before any was tried.
    longest
        Seconds that a candidate took at most.
    """

    bench: Bench
    folder: SearchFolder
    max_drop: float | None
    deadline: float
    longest: float
    fitting: float = 0.0
    most: int
    interruption: Interruption
    progress: Callable[[Candidate], None] | None
    candidates: list[Candidate] = field(default_factory=list[Candidate])
    cut: list[str] = field(default_factory=list[str])
    finished: bool = False
    base: Steps = ()
    """What activations in float are tried beside."""
    gains: Mapping[TensorId, float] = field(default_factory=dict[TensorId, float])
    """See `Bench.order`."""

    def run(self) -> None:
        """Try candidates until there is no more to try; _Ended where no more may be tried."""
        with self._timed():
            self.bench.start(self.folder.float_metric)
        self.folder.float_metric = self.bench.float_metric
        self.folder.write()
        plain, steps = self._try(()), self._best_steps()
        if self._is_enough(self._try(steps)) or self._is_enough(plain):  # nothing in float: it is not to be had for less
            return
        in_integers = tuple(each for each in steps if not isinstance(each, KeepFloat))
        base = self._try(in_integers)
        if self.result().rank(base) > self.result().rank(plain):
            self.base = in_integers
        else:
            base = plain
        if not self._has_time(2):
            self.cut.append("which activations the outputs feel was not measured")
            raise _Ended
        self.gains = self.bench.order(self.base)
        self.interruption.check()
        if self.max_drop is None:
            self._fill()
        elif not self._is_enough(base) and (count := self._halve(self._first_count(base))):
            self._spare([*self.gains][:count])

    def result(self) -> SearchResult:
        """Return what was found so far."""
        bench, is_own = self.bench, self.bench.evaluate is not None
        unmeasured = Candidate(name="c000", plan=bench.plain.plan, metric=None, sqnr_db=None, cost=1.0)
        return SearchResult(
            candidates=tuple(self.candidates) or (unmeasured,),
            float_metric=bench.float_metric,
            by_metric=is_own,
            max_drop=self.max_drop,
            min_sqnr=None if is_own else bench.recipe.min_sqnr,
            finished=self.finished and not self.cut,
            cut=tuple(self.cut),
        )

    def _is_enough(self, candidate: Candidate) -> bool:
        return self.result().is_enough(candidate)

    def _best_steps(self) -> Steps:
        """Return the steps that `quantize` keeps; none where there is no time for that."""
        if not self._has_time(4):
            self.cut.append("nothing was tried to bring the outputs nearer")
            return ()
        found = self.bench.best(self.deadline - self.longest)
        self.fitting = self.bench.tuning.longest
        if self.bench.tuning.is_cut:
            self.cut.append("not all was tried to bring the outputs nearer")
        self.interruption.check()
        return found

    def _halve(self, first: int) -> int:
        """Return the least number of activations in float that is accurate enough, `first` being tried first; 0 where none is."""
        enough, names = 0, [*self.gains]
        stage = Halving(low=0, high=len(names), count=first)
        while not stage.is_over:
            self._ahead(self._floating(names[:count]) for count in stage.ahead())
            is_enough = self._is_enough(self._try(self._floating(names[: stage.count])))
            enough = stage.count if is_enough else enough
            stage = stage.after(is_enough)
        return enough

    def _first_count(self, of: Candidate) -> int:
        """Return how many must stay float if what a candidate loses grows with its error; 1 at least, and not all."""
        found, share = self.result(), 1.0
        drop, limit = found.drop(of), self.max_drop
        if drop is not None and limit is not None and drop > limit:
            share = limit / drop
        if found.min_sqnr is not None and of.sqnr_db is not None:
            share = min(share, 10 ** ((of.sqnr_db - found.min_sqnr) / 10))
        gains = np.minimum([*self.gains.values()], 1.0)
        too_few = int(np.count_nonzero(gains.sum() - gains.cumsum() > share * gains.sum()))
        return min(too_few + 1, max(1, len(gains) - 1))

    def _spare(self, names: Sequence[TensorId]) -> None:
        """Try to do without the float activations that cost most for what they bring, one by one."""
        kept, cost = list(names), self._try(self._floating(names)).cost
        for place in reversed(range(len(names))):
            if len(kept) > 1:
                less = [[name for name in kept if name != each] for each in names[place::-1]]
                self._ahead(map(self._floating, less))
                candidate = self._try(self._floating(less[0]))
                if candidate.cost < cost and self._is_enough(candidate):
                    kept, cost = less[0], candidate.cost

    def _fill(self) -> None:
        """Try more and more activations in float, up to half of them; then what lies between."""
        names = [*self.gains]
        counts = [2**power for power in range(len(names)) if 2**power <= len(names) // 2]
        changes = [self._floating(names[:count]) for count in (*counts, *(count + count // 2 for count in counts[1:]))]
        for place, steps in enumerate(changes):
            self._ahead(changes[place:])
            self._try(steps)

    def _floating(self, names: Sequence[TensorId]) -> Steps:
        """Return the steps that leave these activations float, with the reasons."""
        reasons = tuple(f"the search keeps it float: {said_alone(self.gains[name])}" for name in names)
        return in_order((*self.base, FloatTensors(names=tuple(names), reasons=reasons)))

    def _ahead(self, candidates: Iterable[Steps]) -> None:
        """Let what is or may be tried next be measured elsewhere, in this order."""
        room = max(0, min(self.bench.width, self.most - len(self.candidates)))
        self.bench.begin(list(islice((each for each in candidates if said(each) not in self.folder.known), room)))

    def _try(self, steps: Steps) -> Candidate:
        """Measure a candidate; what is known is not measured again."""
        candidate = self.folder.known.get(said(steps))
        if candidate is None:
            if len(self.candidates) >= self.most:
                self.finished = True
                raise _Ended
            with self._timed():
                found = self.bench.measure(steps)
            candidate = self.folder.add(found)
        if candidate not in self.candidates:
            self.candidates.append(candidate)
            if self.progress is not None:
                self.progress(candidate)
        return candidate

    def _has_time(self, candidates: int) -> bool:
        """Return whether so many may be measured, by what one took before, and by what the loop took to fit a step."""
        return time.monotonic() + candidates * (self.longest + self.fitting) < self.deadline

    @contextmanager
    def _timed(self) -> Generator[None]:
        """Do what takes as long as a candidate, if there is time for it, and note how long it took."""
        if not self._has_time(1):
            raise _Ended
        begun = time.monotonic()
        yield
        self.interruption.check()
        self.longest = max(self.longest, time.monotonic() - begun)


@dataclass(frozen=True, slots=True)
class Halving:
    """Where a search for the smallest number that is enough stands: more than `low`, `high` at most, `count` is tried next."""

    low: int
    high: int
    count: int
    found: bool = False
    """Whether `high` was tried, and enough."""

    @property
    def is_over(self) -> bool:
        """Whether `high` is near enough."""
        return self.high - self.low <= max(1, int(_PRECISION * self.high))

    def after(self, is_enough: bool) -> Halving:
        """Return where it stands once `count` was tried."""
        low, high = (self.low, self.count) if is_enough else (self.count, self.high)
        middle, found = (low + high) // 2, self.found or is_enough
        return Halving(low, high, middle if found else min(2 * low, middle), found)

    def ahead(self) -> Iterator[int]:
        """Yield what is tried next, then what may be after that, and so on: whatever the outcomes will be."""
        stages = [self]
        while stages := [each for each in stages if not each.is_over]:
            yield from dict.fromkeys(each.count for each in stages)
            stages = [each.after(is_enough) for each in stages for is_enough in (False, True)]


class _Ended(Exception):
    """As many candidates as were asked for were tried, or the next one would take longer than what is left."""


class Interruption:
    """A context in which SIGINT raises KeyboardInterrupt once `ready`, and is noted in `asked` before; a second raises anyhow.

    Python's own handler raises wherever the program is, and below TVM's C++ code that may become another error, or be caught as
    one of code generation. In threads other than the main one, which get no signals, it does nothing.
    """

    ready = asked = False

    def __enter__(self) -> Interruption:
        """Take the signal."""
        is_main = threading.current_thread() is threading.main_thread()
        self._before = signal.signal(signal.SIGINT, self._handle) if is_main else None
        return self

    def __exit__(self, *_: object) -> None:
        """Give the signal back to whoever had it."""
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    def check(self) -> None:
        """Raise KeyboardInterrupt if it was asked for: what lies between may have caught it."""
        if self.asked:
            raise KeyboardInterrupt

    def _handle(self, *_: object) -> None:
        raises, self.asked = self.ready or self.asked, True
        if raises:
            raise KeyboardInterrupt
