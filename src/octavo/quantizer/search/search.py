"""The search: the referee says which roundings the outputs feel, kernels and the user's function say what a candidate is worth.

Candidates are nested: what costs the outputs most for each cycle that float costs more stays float first. So one number is
searched, by halving; what then can be spared is tried last. Nothing is drawn at random.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from ...compiler.target_choice import TargetLike
from ...errors import ProfileError, QuantizationError, check_path, check_type
from ...ir.graph import Model
from ...ir.graph.inputs import input_specs
from ...ir.graph.model import checked_model
from ...ir.identity import TensorId
from ...profiling.model_profile import Profile
from ...runtime.inputs import split_batch
from ..choices import Choices
from ..kept_samples import samples_of
from ..plan.plan import QuantizedModel
from ..quantize import quantize
from ..recipe import Recipe
from .bench import Bench, Cost, Measurement, Samples
from .budget import Budget, Clock, Expected
from .folder import SearchFolder
from .halving import Halving
from .interruption import Interruption
from .result import Candidate, Change, SearchResult, checked_limit
from .scoring import Evaluate, Scorer
from .sensitivity import Sensitivity, SensitivityStage

_ESTIMATORS = ("mean", "mse", "percentile:99.99")
"""Tried besides the recipe's."""


class Elsewhere(Protocol):
    """Measures candidates on other machines, several at a time."""

    @property
    def width(self) -> int:
        """How many at a time."""
        ...

    def start(self, bench: Bench, float_metric: float, /) -> None:
        """Take what candidates are measured with; before any is."""
        ...

    def begin(self, changes: Sequence[Change], /) -> None:
        """Begin to measure what is not being measured yet: each may be asked for later, or not."""
        ...

    def measure(self, change: Change, check: Callable[[], None], /) -> Measurement:
        """Return what a candidate is; `check`, called while it waits, may raise."""
        ...


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
    cost: Cost | None = None,
    folder: str | Path | None = None,
    progress: Callable[[Candidate], None] | None = None,
) -> SearchResult:
    """Find which activations of a float model to keep float, and how to range the others, for the accuracy that is asked for.

    Each candidate is quantized, compiled and measured. Ctrl-C ends the search and returns what it found so far; it waits for the
    first candidate. The same search gives the same result, unless its time runs out before its end.

    Parameters
    ----------
    model, profile
        The float model and its profile, with samples that it keeps.
    data
        Batches, as `octavo.profile` takes them, on which candidates are compared with the float model; by default the profile's
        samples.
    evaluate
        Called with an Executable, it returns what that is worth: one number, greater for better. Without it: the share of `data`
        of which the model names the float model's class, or, where its outputs are no scores of classes, 1 less the error's share
        of the worst output's power.
    max_drop
        By how much less than the float model's that number may be. Without it every trade of cost for accuracy is of interest.
    seconds
        The time that it has: no step is begun that is expected, by what steps like it took, to take longer than what is left.
        Where that is little, candidates are ordered by less, or the first is returned unmeasured; `SearchResult.cut` says so.
        None for no such limit.
    candidates
        How many to try at most.
    target, recipe
        As `octavo.quantize` takes them. Where no candidate has the recipe's `min_sqnr`, what `quantize` itself does for that is
        one. Without `evaluate`, candidates with less are not within `max_drop`.
    cost
        Called with an Executable, it returns what running that costs; by default modelled cycles, which are the same on every
        machine.
    folder
        Where to keep each candidate's plan, and the list of all, as they come. A search of the same model, profile and recipe
        that finds them there goes on from them: what was measured is not measured again.
    progress
        Called with each candidate.

    Returns
    -------
    SearchResult
        All candidates, the front of those worth having, and the best.

    Raises
    ------
    ProfileError
        A profile of another model, or one that keeps no samples.
    QuantizationError
        `evaluate` returns no finite number, the folder is another search's, a limit is none.
    DataError
        Data that does not fit the model.
    """
    checked_model(model)
    check_type(profile, Profile, ProfileError, "a Profile, which octavo.profile returns and Profile.load reads")
    check_type(recipe, Recipe | None, QuantizationError, "an octavo.Recipe")
    return search_with(
        None,
        model,
        profile,
        data,
        evaluate=evaluate,
        max_drop=max_drop,
        seconds=seconds,
        candidates=candidates,
        target=target,
        recipe=recipe,
        cost=cost,
        folder=folder,
        progress=progress,
    )


def search_with(
    elsewhere: Elsewhere | None,
    model: Model,
    profile: Profile,
    data: Iterable[Any] | None,
    *,
    evaluate: Evaluate | None = None,
    max_drop: float | None = None,
    seconds: float | None = 600.0,
    candidates: int = 24,
    target: TargetLike = "cpu",
    recipe: Recipe | None = None,
    cost: Cost | None = None,
    folder: str | Path | None = None,
    progress: Callable[[Candidate], None] | None = None,
    clock: Clock = time.monotonic,
) -> SearchResult:
    """Search with candidates measured elsewhere; None measures them here. `clock` returns seconds, which `seconds` are of."""
    if isinstance(candidates, bool) or not isinstance(candidates, int) or candidates < 1:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise QuantizationError(f"candidates must be a number of them, 1 or more, got {candidates!r}")
    path = None if folder is None else check_path(folder, QuantizationError, "the path of a folder for the search")
    budget = Budget(clock=clock, seconds=checked_limit(seconds, "seconds"))
    with Interruption() as interruption:
        run = _Search(
            model=model,
            profile=profile,
            target=target,
            recipe=recipe or Recipe(),
            kept=samples_of(model, profile),
            max_drop=checked_limit(max_drop, "max_drop"),
            budget=budget,
            most=candidates,
            cost=cost,
            interruption=interruption,
            progress=progress,
            elsewhere=elsewhere,
        )
        run.prepare(data, evaluate, path)
        interruption.ready = True
        try:
            interruption.check()
            run.run()
            interruption.ready = False  # from here on SIGINT changes nothing: what was found is returned
        except BaseException:  # what comes up through TVM's code may be another error than KeyboardInterrupt
            if not interruption.asked:
                raise
        return run.result()


@dataclass(kw_only=True, slots=True, eq=False)
class _Search:
    model: Model
    profile: Profile
    target: TargetLike
    recipe: Recipe
    kept: Samples
    max_drop: float | None
    budget: Budget
    most: int
    cost: Cost | None
    interruption: Interruption
    progress: Callable[[Candidate], None] | None
    elsewhere: Elsewhere | None = None
    finished: bool = False
    _samples: Samples = field(init=False)
    _bench: Bench = field(init=False)
    _folder: SearchFolder = field(init=False)
    _plain: QuantizedModel = field(init=False)
    _first: Candidate = field(init=False)
    _scorer: Scorer | None = field(init=False, default=None)
    _expected: Expected = field(init=False)
    _min_sqnr: float | None = field(init=False)

    # -------------------------------------------------------------------------------------------------------- the whole

    def prepare(self, data: Iterable[Any] | None, evaluate: Evaluate | None, path: Path | None) -> None:
        """Check everything, and make the first candidate, which is returned where nothing else is known."""
        if not self.kept:
            raise ProfileError("the profile keeps no samples to search with: profile the model with keep_samples=64")
        specs = input_specs(self.model)
        listed: Any = [data] if isinstance(data, (np.ndarray, Mapping)) else data
        self._samples = (
            self.kept
            if listed is None
            else [arrays for index, batch in enumerate(listed) for arrays in split_batch(specs, batch, where=f"batch {index}")]
        )
        plain = Change(corrects=False)
        self._min_sqnr = self.recipe.min_sqnr if evaluate is None else None
        self._bench = Bench(
            model=self.model,
            profile=self.profile,
            target=self.target,
            recipe=self.recipe,
            samples=self._samples,
            evaluate=evaluate,
            cost=self.cost,
        )
        begun = self.budget.clock()
        self._plain = quantized = self._bench.quantized(plain)
        self._expected = Expected(quantizing=self.budget.clock() - begun)
        self._folder = SearchFolder(
            path,
            {
                "fingerprint": self.model.fingerprint,
                "recipe": repr(replace(self.recipe, min_sqnr=None)),
                "profile": quantized.fingerprint,
                "samples": len(self._samples),
                "metric": "agreement" if evaluate is None else "evaluate",
                "cost": "modelled" if self.cost is None else "measured",
            },
        )
        self._first = Candidate(name="c000", change=plain, plan=quantized.plan, path=None, score=None, cost=1.0)

    def run(self) -> None:
        """Try candidates until there is no more to try, or no time."""
        try:
            self._steps()
            self.finished = True
        except _AllTried:
            self.finished = True
        except _OutOfTime:
            return

    def _steps(self) -> None:
        self._scorer = self._float_model()
        if self.elsewhere is not None:
            self.elsewhere.start(self._bench, self._scorer.float_metric)
        self._ahead([self._first.change, *([Change()] if self.recipe.corrects else [])])
        tried = [self._try(self._first.change)]
        if self.recipe.corrects:
            tried.append(self._try(Change()))
        if any(map(self._is_enough, tried)):  # nothing in float: it is not to be had for less
            return
        least = self.recipe.min_sqnr
        if least is not None and not any(_sqnr(each) >= least for each in tried):
            self._try(Change(keeps_min_sqnr=True))
        # What corrections make of large errors says nothing of where those are from.
        sensitivity = self._sensitivity(_nearest(tried))
        base = self._base(tried, sensitivity)
        if self.max_drop is None:
            self._fill(base, sensitivity)
        elif not self._is_enough(base):
            enough = self._halve(base, sensitivity)
            if enough is not None:
                self._spare(enough, sensitivity)

    def result(self) -> SearchResult:
        """Return what was found so far."""
        found = tuple(self._folder.candidates) or (self._first,)
        metric = None if self._scorer is None else self._scorer.float_metric
        return SearchResult(
            candidates=found,
            float_metric=metric,
            max_drop=self.max_drop,
            min_sqnr=self._min_sqnr,
            finished=self.finished and not self.budget.cut,
            cut=tuple(self.budget.cut),
        )

    # ------------------------------------------------------------------------------------------------------- its steps

    def _base(self, tried: list[Candidate], sensitivity: Sensitivity) -> Candidate:
        """Return the best candidate of which nothing stays float."""
        if sensitivity.estimator is not None:
            tried.append(self._try(Change(range_estimator=sensitivity.estimator, corrects=self.recipe.corrects)))
        if sensitivity.ranges and not any(map(self._is_enough, tried)):
            tried.append(self._try(replace(tried[-1].change, choices=Choices(ranges=sensitivity.ranges))))
        return _nearest(tried)

    def _halve(self, base: Candidate, sensitivity: Sensitivity) -> Candidate | None:
        """Return the candidate with the fewest activations in float that is accurate enough; None where none is."""
        enough: Candidate | None = None
        count = sensitivity.count_for(self._wanted_share(base))
        stage = Halving(low=0, high=len(sensitivity.order), count=count)
        while not stage.is_over:
            self._ahead(self._change(base, sensitivity, sensitivity.order[:count]) for count in stage.ahead())
            candidate = self._try(self._change(base, sensitivity, sensitivity.order[: stage.count]))
            is_enough = self._is_enough(candidate)
            enough = candidate if is_enough else enough
            stage = stage.after(is_enough)
        return enough

    def _wanted_share(self, base: Candidate) -> float:
        """Return the share of its error that a candidate may have, if what is lost grows with that."""
        drop = self._drop(base)
        share = 1.0 if self.max_drop is None or drop <= self.max_drop else self.max_drop / drop
        lacking = 0.0 if self._min_sqnr is None else max(0.0, self._min_sqnr - _sqnr(base))
        return min(share, 10 ** (-lacking / 10))

    def _spare(self, enough: Candidate, sensitivity: Sensitivity) -> None:
        """Try to do without the float activations that cost most for what they bring, one by one."""
        kept = list(enough.float_tensors)
        names = [name for name in reversed(sensitivity.order) if name in kept]
        for place, name in enumerate(names):
            if len(kept) > 1:
                without = (_less(kept, each) for each in names[place:])
                self._ahead(self._change(enough, sensitivity, fewer) for fewer in without)
                fewer = _less(kept, name)
                candidate = self._try(self._change(enough, sensitivity, fewer))
                if candidate.cost < enough.cost and self._is_enough(candidate):
                    kept, enough = fewer, candidate

    def _fill(self, base: Candidate, sensitivity: Sensitivity) -> None:
        """Try more and more activations in float, up to half of them; then what lies between."""
        counts = [2**power for power in range(len(sensitivity.order)) if 2**power <= len(sensitivity.order) // 2]
        between = [count + count // 2 for count in counts if count > 1]
        changes = [self._change(base, sensitivity, sensitivity.order[:count]) for count in (*counts, *between)]
        for place, change in enumerate(changes):
            self._ahead(changes[place:])
            self._try(change)

    def _change(self, base: Candidate, sensitivity: Sensitivity, names: Sequence[TensorId]) -> Change:
        floats = Choices(float_tensors={name: sensitivity.reasons[name] for name in names})
        choices = Choices(ranges=base.change.choices.ranges).with_more(floats)
        return replace(base.change, corrects=self.recipe.corrects, choices=choices)

    def _is_enough(self, candidate: Candidate) -> bool:
        is_near = self._min_sqnr is None or _sqnr(candidate) >= self._min_sqnr
        return is_near and self.max_drop is not None and self._drop(candidate) <= self.max_drop

    def _drop(self, candidate: Candidate) -> float:
        assert candidate.score is not None, "it was measured"
        assert self._scorer is not None, "the float model is measured first"
        return self._scorer.float_metric - candidate.score.metric

    # ----------------------------------------------------------------------------------------------------- what they do

    def _ahead(self, changes: Iterable[Change]) -> None:
        """Let what is or may be tried next be measured elsewhere, in this order."""
        if self.elsewhere is not None:
            room = min(self.elsewhere.width, self.most - len(self._folder.candidates))
            self.elsewhere.begin(list(islice((each for each in changes if not self._folder.has(each)), max(0, room))))

    def _try(self, change: Change) -> Candidate:
        """Quantize, compile and measure; what is known is not measured again."""
        candidate = self._folder.known(change)
        if candidate is None:
            candidate = self._measured(change)
        if self.progress is not None:
            self.progress(candidate)
        return candidate

    def _measured(self, change: Change) -> Candidate:
        assert self._scorer is not None, "the float model is measured first"
        begun = self.budget.clock()
        if len(self._folder.candidates) >= self.most:
            raise _AllTried
        is_made = change == self._first.change
        if not self.budget.has(self._expected.candidate(change, is_made=is_made)):
            raise _OutOfTime
        if self.elsewhere is not None:
            found = self.elsewhere.measure(change, self.interruption.check)
        else:
            quantized = self._plain if is_made else self._bench.quantized(change)
            self.interruption.check()
            found = self._bench.measure(quantized, self.interruption.check)
        self.interruption.check()
        self._expected.note(change, self.budget.clock() - begun + (self._expected.quantizing if is_made else 0.0))
        return self._folder.add(change, found.plan, found.score, found.cost / self._folder.facts["float_cost"])

    def _float_model(self) -> Scorer:
        begun = self.budget.clock()
        if not self.budget.has(self._expected.quantizing):
            raise _OutOfTime
        scorer, executable = self._bench.compare_with_float(self._folder.facts.get("float_metric"))
        self._expected.measuring = self.budget.clock() - begun
        self.interruption.check()
        if "float_cost" not in self._folder.facts:
            self._folder.facts |= {"float_metric": scorer.float_metric, "float_cost": self._bench.cost_of(executable)}
            self._folder.write()
        return scorer

    def _sensitivity(self, of: Candidate) -> Sensitivity:
        known = self._folder.facts.get("sensitivity")
        if known is not None:
            return Sensitivity.from_json(known)
        known_cuts = len(self.budget.cut)
        stage = SensitivityStage(
            model=self.model,
            samples=self.kept,
            budget=self.budget,
            expected=self._expected,
            after=self._expected.candidate(Change(corrects=self.recipe.corrects)),
            check=self.interruption.check,
            plan_by=lambda name: self._bench.quantized(replace(self._first.change, range_estimator=name)).plan,
        )
        found = stage.run(quantize(self.model, plan=of.plan, target=self.target), _ESTIMATORS)
        self.interruption.check()
        if len(self.budget.cut) == known_cuts:  # with more time there would be more: it is not kept
            self._folder.facts["sensitivity"] = found.to_json()
            self._folder.write()
        return found


def _less(names: Sequence[TensorId], name: TensorId) -> list[TensorId]:
    return [each for each in names if each != name]


def _nearest(candidates: Sequence[Candidate]) -> Candidate:
    """Return the candidate whose outputs are nearest to the float model's."""
    return min(candidates, key=lambda each: math.inf if each.score is None else each.score.divergence)


def _sqnr(candidate: Candidate) -> float:
    return math.inf if candidate.score is None else candidate.score.sqnr_db


class _AllTried(Exception):
    """As many candidates as were asked for were tried."""


class _OutOfTime(Exception):
    """The next candidate would take longer than what is left."""
