"""The search: candidates are lists of steps for the one loop; the referee, or the user's function, says what each is worth.

Candidates are nested: what costs the outputs most for each cycle that float costs more stays float first. So one number is
searched, by halving; what then can be spared is tried last. Nothing is drawn at random.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

from ...compiler.target_choice import TargetLike
from ...errors import ProfileError, QuantizationError, check_path, check_type
from ...ir.graph import Model
from ...ir.graph.inputs import input_specs
from ...ir.graph.model import checked_model
from ...ir.identity import TensorId
from ...profiling import check_model
from ...profiling.model_profile import Profile
from ...runtime.inputs import split_batches
from ..kept_samples import samples_of
from ..recipe import Recipe
from ..steps import KeepFloat
from ..tune import Steps, in_order
from .bench import Bench, Evaluate, Measuring, said
from .folder import SearchFolder
from .halving import Halving
from .interruption import Interruption
from .order import Order
from .result import Candidate, SearchResult


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
    measuring: Measuring | None = None,
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
        Measures candidates; by default in this process, one at a time.

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
    checked_model(model)
    check_type(profile, Profile, ProfileError, "a Profile, which octavo.profile returns and Profile.load reads")
    check_type(recipe, Recipe | None, QuantizationError, "an octavo.Recipe")
    check_model(profile, model)
    if isinstance(candidates, bool) or not isinstance(candidates, int) or candidates < 1:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise QuantizationError(f"candidates must be a number of them, 1 or more, got {candidates!r}")
    path = None if folder is None else check_path(folder, QuantizationError, "the path of a folder for the search")
    begun, most_seconds, most_drop = time.monotonic(), _limit(seconds, "seconds"), _limit(max_drop, "max_drop")
    if not samples_of(model, profile):
        raise ProfileError("the profile keeps no samples to search with: profile the model with keep_samples=64")
    with Interruption() as interruption:
        bench = Bench(
            model=model,
            profile=profile,
            target=target,
            recipe=recipe or Recipe(),
            data=None if data is None else split_batches(input_specs(model), data) or None,
            evaluate=evaluate,
        )
        run = _Search(
            bench=bench,
            measuring=measuring or Measuring(),
            folder=_folder(path, bench),
            max_drop=most_drop,
            deadline=math.inf if most_seconds is None else begun + most_seconds,
            longest=time.monotonic() - begun,
            most=candidates,
            interruption=interruption,
            progress=progress,
        )
        interruption.ready = True
        try:
            interruption.check()
            run.run()
            interruption.ready = False  # from here on SIGINT changes nothing: what was found is returned
        except BaseException:  # what comes up through TVM's code may be another error than KeyboardInterrupt
            if not interruption.asked:
                raise
        return run.result()


def _limit(value: Any, name: str) -> float | None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0):
        raise QuantizationError(f"{name} must be a number, 0 or more, or None, got {value!r}")
    return value


def _folder(path: Path | None, bench: Bench) -> SearchFolder:
    return SearchFolder(
        path,
        {
            "fingerprint": bench.model.fingerprint,
            "recipe": repr(replace(bench.recipe, min_sqnr=None)),
            "profile": bench.plain.quantized.fingerprint,
            "samples": len(bench.data or ()),
            "metric": "agreement" if bench.evaluate is None else "evaluate",
        },
    )


@dataclass(kw_only=True, slots=True, eq=False)
class _Search:
    """One search.

    Parameters
    ----------
    deadline
        By `time.monotonic`: nothing begins that would end behind it.
    longest
        Seconds that a candidate took at most.
    """

    bench: Bench
    measuring: Measuring
    folder: SearchFolder
    max_drop: float | None
    deadline: float
    longest: float
    most: int
    interruption: Interruption
    progress: Callable[[Candidate], None] | None
    candidates: list[Candidate] = field(default_factory=list[Candidate])
    cut: list[str] = field(default_factory=list[str])
    finished: bool = False

    # -------------------------------------------------------------------------------------------------------- the whole

    def run(self) -> None:
        """Try candidates until there is no more to try, or no time."""
        try:
            self._run()
            self.finished = True
        except _Ended:
            return

    def _run(self) -> None:
        self._start()
        tried: dict[Steps, Candidate] = {(): self._try(())}
        steps = self._best_steps()
        tried[steps] = self._try(steps)
        if any(map(self._is_enough, tried.values())):  # nothing in float: it is not to be had for less
            return
        in_integers = tuple(each for each in steps if not isinstance(each, KeepFloat))
        tried[in_integers] = self._try(in_integers)
        base: Steps = max(((), in_integers), key=lambda each: tried[each].rank)
        order = self._order(base)
        if self.max_drop is None:
            self._fill(base, order)
        elif not self._is_enough(tried[base]):
            count = self._halve(base, order, tried[base])
            if count is not None:
                self._spare(base, order, count)

    def result(self) -> SearchResult:
        """Return what was found so far."""
        bench = self.bench
        unmeasured = Candidate(name="c000", plan=bench.plain.plan, path=None, score=None, cost=1.0)
        return SearchResult(
            candidates=tuple(self.candidates) or (unmeasured,),
            float_metric=bench.float_metric,
            max_drop=self.max_drop,
            min_sqnr=bench.recipe.min_sqnr if bench.evaluate is None else None,
            finished=self.finished and not self.cut,
            cut=tuple(self.cut),
        )

    def _is_enough(self, candidate: Candidate) -> bool:
        return self.result().is_enough(candidate)

    # ------------------------------------------------------------------------------------------------------- its stages

    def _start(self) -> None:
        """Run the float model."""
        with self._timed():
            self.bench.start(self.folder.float_metric)
            self.measuring.start(self.bench)
        self.folder.float_metric = self.bench.float_metric
        self.folder.write()

    def _best_steps(self) -> Steps:
        """Return the steps that `quantize` keeps; none where there is no time for that."""
        if not self._has_time(4):
            self.cut.append("nothing was tried to bring the outputs nearer")
            return ()
        found = self.bench.best(self.deadline - self.longest)
        if self.bench.tuning.is_cut:
            self.cut.append("not all was tried to bring the outputs nearer")
        self.interruption.check()
        return found

    def _order(self, base: Steps) -> Order:
        if not self._has_time(2):
            self.cut.append("which activations the outputs feel was not measured")
            raise _Ended
        found = self.bench.order(base)
        self.interruption.check()
        return found

    def _halve(self, base: Steps, order: Order, of: Candidate) -> int | None:
        """Return the least number of activations in float that is accurate enough; None where none is."""
        enough: int | None = None
        stage = Halving(low=0, high=len(order), count=order.count_for(self._wanted_share(of)))
        while not stage.is_over:
            self._ahead(in_order((*base, order.first(count))) for count in stage.ahead())
            is_enough = self._is_enough(self._try(in_order((*base, order.first(stage.count)))))
            enough = stage.count if is_enough else enough
            stage = stage.after(is_enough)
        return enough

    def _wanted_share(self, candidate: Candidate) -> float:
        """Return the share of its error that a candidate may have, if what is lost grows with that."""
        found, score = self.result(), candidate.score
        drop = found.drop(candidate)
        share = 1.0 if drop is None or self.max_drop is None or drop <= self.max_drop else self.max_drop / drop
        lacking = 0.0 if found.min_sqnr is None or score is None else max(0.0, found.min_sqnr - score.sqnr_db)
        return min(share, 10 ** (-lacking / 10))

    def _spare(self, base: Steps, order: Order, count: int) -> None:
        """Try to do without the float activations that cost most for what they bring, one by one."""
        kept = order.first(count).names
        cost = self._try(in_order((*base, order.step(kept)))).cost
        for place, name in enumerate(names := kept[::-1]):
            if len(kept) > 1:
                self._ahead(in_order((*base, order.step(_less(kept, each)))) for each in names[place:])
                candidate = self._try(in_order((*base, order.step(_less(kept, name)))))
                if candidate.cost < cost and self._is_enough(candidate):
                    kept, cost = _less(kept, name), candidate.cost

    def _fill(self, base: Steps, order: Order) -> None:
        """Try more and more activations in float, up to half of them; then what lies between."""
        counts = [2**power for power in range(len(order)) if 2**power <= len(order) // 2]
        between = [count + count // 2 for count in counts if count > 1]
        changes = [in_order((*base, order.first(count))) for count in (*counts, *between)]
        for place, steps in enumerate(changes):
            self._ahead(changes[place:])
            self._try(steps)

    # ----------------------------------------------------------------------------------------------------- what they do

    def _ahead(self, candidates: Iterable[Steps]) -> None:
        """Let what is or may be tried next be measured elsewhere, in this order."""
        room = max(0, min(self.measuring.width, self.most - len(self.candidates)))
        self.measuring.begin(list(islice((each for each in candidates if said(each) not in self.folder.known), room)))

    def _try(self, steps: Steps) -> Candidate:
        """Measure a candidate; what is known is not measured again."""
        candidate = self.folder.known.get(said(steps)) or self._measured(steps)
        if candidate not in self.candidates:
            self.candidates.append(candidate)
            if self.progress is not None:
                self.progress(candidate)
        return candidate

    def _measured(self, steps: Steps) -> Candidate:
        if len(self.candidates) >= self.most:
            self.finished = True
            raise _Ended
        with self._timed():
            found = self.measuring.measure(steps, self.interruption.check)
        return self.folder.add(found)

    def _has_time(self, candidates: int) -> bool:
        """Return whether so many may be measured, by what one took before."""
        return time.monotonic() + candidates * self.longest < self.deadline

    @contextmanager
    def _timed(self) -> Generator[None]:
        """Do what takes as long as a candidate, if there is time for it, and note how long it took."""
        if not self._has_time(1):
            raise _Ended
        begun = time.monotonic()
        yield
        self.interruption.check()
        self.longest = max(self.longest, time.monotonic() - begun)


def _less(names: tuple[TensorId, ...], name: TensorId) -> tuple[TensorId, ...]:
    return tuple(each for each in names if each != name)


class _Ended(Exception):
    """As many candidates as were asked for were tried, or the next one would take longer than what is left."""
