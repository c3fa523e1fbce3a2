"""The search: candidates are lists of steps for the one loop; the referee, or the user's function, says what each is worth.

Candidates are nested: what costs the outputs most for each cycle that float costs more stays float first. So one number is
searched, by halving; what then can be spared is tried last. Nothing is drawn at random.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from ...compiler.target_choice import TargetLike
from ...errors import ProfileError, QuantizationError, check_path, check_type
from ...ir.graph import Model
from ...ir.graph.inputs import input_specs
from ...ir.graph.model import checked_model
from ...ir.identity import TensorId
from ...profiling import check_model
from ...profiling.model_profile import Profile
from ...runtime.inputs import split_batch
from ..kept_samples import samples_of
from ..recipe import Recipe
from ..steps import FloatTensors, KeepFloat
from ..tune import Steps, in_order
from .bench import Bench, Cost, Evaluate, Here, Measures
from .budget import Budget
from .folder import SearchFolder
from .halving import Halving
from .interruption import Interruption
from .order import Order
from .result import Candidate, SearchResult, checked_limit


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
        `evaluate` returns no finite number, the folder is another search's, a limit is none, TVM's virtual machine alone can run
        the model.
    DataError
        Data that does not fit the model.
    """
    checked_model(model)
    check_type(profile, Profile, ProfileError, "a Profile, which octavo.profile returns and Profile.load reads")
    check_type(recipe, Recipe | None, QuantizationError, "an octavo.Recipe")
    check_model(profile, model)
    return search_with(
        Here(),
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
    measures: Measures,
    model: Model,
    profile: Profile,
    data: Iterable[Any] | None = None,
    *,
    max_drop: float | None = None,
    seconds: float | None = 600.0,
    candidates: int = 24,
    folder: str | Path | None = None,
    progress: Callable[[Candidate], None] | None = None,
    **options: Any,
) -> SearchResult:
    """Search with candidates measured here or elsewhere; see `search`, whose other options these are."""
    if isinstance(candidates, bool) or not isinstance(candidates, int) or candidates < 1:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise QuantizationError(f"candidates must be a number of them, 1 or more, got {candidates!r}")
    path = None if folder is None else check_path(folder, QuantizationError, "the path of a folder for the search")
    budget, most_drop = Budget(seconds=checked_limit(seconds, "seconds")), checked_limit(max_drop, "max_drop")
    if not samples_of(model, profile):
        raise ProfileError("the profile keeps no samples to search with: profile the model with keep_samples=64")
    with Interruption() as interruption:
        bench = _bench(model, profile, data, **options)
        run = _Search(
            bench=bench,
            measures=measures,
            folder=_folder(path, bench),
            max_drop=most_drop,
            min_sqnr=bench.recipe.min_sqnr if bench.evaluate is None else None,
            budget=budget,
            most=candidates,
            interruption=interruption,
            progress=progress,
        )
        run.budget.note(0.0)
        interruption.ready = True
        try:
            interruption.check()
            run.run()
            interruption.ready = False  # from here on SIGINT changes nothing: what was found is returned
        except BaseException:  # what comes up through TVM's code may be another error than KeyboardInterrupt
            if not interruption.asked:
                raise
        return run.result()


def _bench(
    model: Model,
    profile: Profile,
    data: Iterable[Any] | None,
    *,
    evaluate: Evaluate | None = None,
    target: TargetLike = "cpu",
    recipe: Recipe | None = None,
    cost: Cost | None = None,
) -> Bench:
    """Return what measures candidates, with the first planned, which is returned where nothing else is known."""
    specs = input_specs(model)
    listed: Any = [data] if isinstance(data, (np.ndarray, Mapping)) else data or ()
    compared = [arrays for index, batch in enumerate(listed) for arrays in split_batch(specs, batch, where=f"batch {index}")]
    return Bench(
        model=model,
        profile=profile,
        target=target,
        recipe=recipe or Recipe(),
        data=compared or None,
        evaluate=evaluate,
        cost=cost,
    )


def _folder(path: Path | None, bench: Bench) -> SearchFolder:
    return SearchFolder(
        path,
        {
            "fingerprint": bench.model.fingerprint,
            "recipe": repr(replace(bench.recipe, min_sqnr=None)),
            "profile": bench.plain.quantized.fingerprint,
            "samples": len(bench.data or ()),
            "metric": "agreement" if bench.evaluate is None else "evaluate",
            "cost": "modelled" if bench.cost is None else "measured",
        },
    )


@dataclass(kw_only=True, slots=True, eq=False)
class _Search:
    bench: Bench
    measures: Measures
    folder: SearchFolder
    max_drop: float | None
    min_sqnr: float | None
    budget: Budget
    most: int
    interruption: Interruption
    progress: Callable[[Candidate], None] | None
    finished: bool = False
    _float_metric: float | None = None

    # -------------------------------------------------------------------------------------------------------- the whole

    def run(self) -> None:
        """Try candidates until there is no more to try, or no time."""
        try:
            self._run()
            self.finished = True
        except _AllTried:
            self.finished = True
        except _OutOfTime:
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
        plan = self.bench.plain.plan
        return SearchResult(
            candidates=tuple(self.folder.candidates) or (Candidate(name="c000", plan=plan, path=None, score=None, cost=1.0),),
            float_metric=self._float_metric,
            max_drop=self.max_drop,
            min_sqnr=self.min_sqnr,
            finished=self.finished and not self.budget.cut,
            cut=tuple(self.budget.cut),
        )

    # ------------------------------------------------------------------------------------------------------- its stages

    def _start(self) -> None:
        """Run the float model."""
        if not self.budget.has(self.budget.longest):
            raise _OutOfTime
        begun = self.budget.spent
        self.bench.start(self.folder.facts.get("float_metric"))
        self.measures.start(self.bench)
        self.budget.note(begun)
        self.interruption.check()
        self._float_metric = self.folder.facts["float_metric"] = self.bench.float_metric
        self.folder.write()

    def _best_steps(self) -> Steps:
        """Return the steps that `quantize` keeps; none where there is no time for that."""
        if not self.budget.has(4 * self.budget.longest):
            self.budget.cut.append("nothing was tried to bring the outputs nearer")
            return ()
        found = self.bench.best(self.budget.deadline - self.budget.longest)
        if self.bench.tuning.is_cut:
            self.budget.cut.append("not all was tried to bring the outputs nearer")
        self.interruption.check()
        return found

    def _order(self, base: Steps) -> Order:
        if not self.budget.has(2 * self.budget.longest):
            self.budget.cut.append("which activations the outputs feel was not measured")
            raise _OutOfTime
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
        drop = self._drop(candidate)
        share = 1.0 if self.max_drop is None or drop <= self.max_drop else self.max_drop / drop
        lacking = 0.0 if self.min_sqnr is None else max(0.0, self.min_sqnr - _sqnr(candidate))
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

    def _is_enough(self, candidate: Candidate) -> bool:
        is_near = self.min_sqnr is None or _sqnr(candidate) >= self.min_sqnr
        return is_near and self.max_drop is not None and self._drop(candidate) <= self.max_drop

    def _drop(self, candidate: Candidate) -> float:
        assert candidate.score is not None, "it was measured"
        assert self._float_metric is not None, "the float model is measured first"
        return self._float_metric - candidate.score.metric

    # ----------------------------------------------------------------------------------------------------- what they do

    def _ahead(self, candidates: Iterable[Steps]) -> None:
        """Let what is or may be tried next be measured elsewhere, in this order."""
        room = min(self.measures.width, self.most - len(self.folder.candidates))
        self.measures.begin(list(islice((each for each in candidates if not self.folder.has(_said(each))), max(0, room))))

    def _try(self, steps: Steps) -> Candidate:
        """Measure a candidate; what is known is not measured again."""
        count = len(self.folder.candidates)
        candidate = self.folder.known(_said(steps)) or self._measured(steps)
        if self.progress is not None and len(self.folder.candidates) > count:
            self.progress(candidate)
        return candidate

    def _measured(self, steps: Steps) -> Candidate:
        if len(self.folder.candidates) >= self.most:
            raise _AllTried
        if not self.budget.has(self.budget.longest):
            raise _OutOfTime
        begun = self.budget.spent
        found = self.measures.measure(steps, self.interruption.check)
        self.interruption.check()
        self.budget.note(begun)
        floats = next((each.names for each in steps if isinstance(each, FloatTensors)), ())
        return self.folder.add(
            Candidate(
                name="",
                steps=_said(steps),
                float_tensors=floats,
                plan=found.plan,
                path=None,
                score=found.score,
                cost=found.cost,
            )
        )


def _said(steps: Steps) -> tuple[str, ...]:
    return tuple(step.said for step in steps)


def _less(names: tuple[TensorId, ...], name: TensorId) -> tuple[TensorId, ...]:
    return tuple(each for each in names if each != name)


def _sqnr(candidate: Candidate) -> float:
    return math.inf if candidate.score is None else candidate.score.sqnr_db


class _AllTried(Exception):
    """As many candidates as were asked for were tried."""


class _OutOfTime(Exception):
    """The next candidate would take longer than what is left."""
