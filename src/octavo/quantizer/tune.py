"""The loop: each step of the preset proposes, the referee scores what that makes of the model, and only what gains is kept.

Which steps are kept is all that is searched: choices follow from a list of steps, and of these the samples to fit to. Plans are
compared on samples held back from that: on a third of all, and where that says too little on each third, each with plans of its
own. Steps that are kept are fitted again, to all samples.
"""

from __future__ import annotations

import logging
import math
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ..errors import QuantizationWarning
from ..ir.graph import Model
from ..ir.graph.dataflow import DataflowView
from ..numerics.arrays import Samples
from .choices import Choices
from .plan import QuantizationPlan, QuantizedModel
from .plan.journal import Journal, JournalEntry
from .planner import Planned, Planner
from .price import worth_db
from .recipe import Recipe
from .referee import Gain, Referee, Score
from .referee.score import USELESS
from .request import ParamsOf, Request, Requests, ask
from .sample_runs import SampleRuns
from .steps import Evidence, Step, equalize, order, widen

_LOG = logging.getLogger(__name__)

MIN_SAMPLES = 4
"""With fewer, none can be held back that say anything."""
_FOLDS = 3
_MAX_HELD_BACK = 48
"""Of a fold: more would say nothing else."""
_CLEAR = 2.0
"""Standard errors of what is neither gained nor lost by chance."""
_IMMATERIAL_DB = 0.5
"""What gains or loses less, its standard error added, needs no more samples to be compared on."""
CERTAIN = 0.5
"""Standard errors that a gain must have. To leave out what gains as much costs more, on average, than to keep what doesn't."""
_SURE_DB = 3.0
"""What gained as much beside the steps before it does not become useless by those behind it: that is not asked. And a loss
of as much is one, even if a single sample makes it."""
_CARRIED_DB = 12.0
"""What outputs must have besides where state is carried on: samples have the float model's, so nobody sees errors add up."""
_NO_LOSS_DB = 0.5
"""What loses less, within a standard error, stays until all steps were tried: two may gain together what neither does alone."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Split:
    """What runs a model on samples, in folds.

    Of each fold some samples are what steps are fitted to, and the others, none of which is in two folds, what plans are compared
    on. What would end behind the deadline, by `time.monotonic`, is not tried.
    """

    fitted: Sequence[SampleRuns]
    held_back: Sequence[Samples]
    every: SampleRuns
    deadline: float = math.inf


def places_held_back(count: int) -> list[list[int]]:
    """Return the places of those of so many samples that each fold holds back: each third, and no more than say enough."""
    return [[*range((1 + fold) % _FOLDS, count, _FOLDS)][:_MAX_HELD_BACK] for fold in range(_FOLDS)]


def is_tried(recipe: Recipe) -> bool:
    """Return whether a recipe wants any step tried."""
    return any(kind.of(recipe) for kind in order())


def tuned(planner: Planner, split: Split, plain: Planned) -> QuantizedModel:
    """Return the model with what gains; `plain` is without any step."""
    if not is_tried(planner.recipe):
        return confirmed(planner, plain)
    try:
        tuning = Tuning(planner, split, plain)
    except NotImplementedError as error:
        said = f"nothing was tried to bring the model's outputs nearer, for the referee cannot run the model here: {error}"
        warnings.warn(said, QuantizationWarning, stacklevel=2)
        return confirmed(planner, plain)
    best = tuning.best()
    return tuning.finished(best, tuning.entries)


def demanding(recipe: Recipe, model: Model) -> Recipe:
    """Return a recipe that demands more of outputs where those of one run are inputs of the next."""
    goal = recipe.min_sqnr
    return recipe if goal is None or not any(_carried(model)) else replace(recipe, min_sqnr=goal + _CARRIED_DB)


def planned_plainly(
    planner: Planner, runs: SampleRuns | None, params: ParamsOf | None = None, changes: Choices | None = None
) -> Planned:
    """Return the model by what recipe, overrides and callback say, and nothing else."""
    changes, narrow = changes or Choices(), widen.plain_recipe(planner.recipe)
    if runs is not None and narrow is not None:
        bare = replace(planner, recipe=narrow)
        found = planned_with(bare, bare.first_choices.with_more(changes))
        evidence = Evidence(planner=bare, runs=runs)
        changes = widen.weights_to_widen(found, evidence, planner.recipe.wide_weights).with_more(changes)
    planned = planned_with(planner, planner.first_choices.with_more(changes))
    # What overrides want of activations that were placed, where nothing that comes before them does.
    asked = {name: entry for name, said in planned.overridden.items() if (entry := said.activation) is not None}
    known = planned.choices.requests
    more = {name: Request(who="an override", tensor=entry) for name, entry in asked.items() if name not in known}
    planned = _with_requests(planned, planner, more)
    if params is not None:
        planned = _with_requests(planned, planner, ask(params, planner.tensor_choices(planned)))
    return planned


def planned_with(planner: Planner, choices: Choices) -> Planned:
    """Return the model without factors that need a clip where integers don't saturate; see `Planner.planned`."""
    planned = planner.planned(choices)
    while (fewer := equalize.without_clips(planned)) is not None:
        planned = planner.planned(fewer)
    return planned


def confirmed(planner: Planner, planned: Planned) -> QuantizedModel:
    """Return a model of which targets take what its plan says."""
    planned = planner.confirmed(planned)
    fewer = equalize.without_clips(planned)
    return planned.quantized if fewer is None else confirmed(planner, planned_with(planner, fewer))


def _with_requests(planned: Planned, planner: Planner, requests: Requests) -> Planned:
    return planned_with(planner, planned.choices.with_more(Choices(requests=requests))) if requests else planned


Steps = tuple[Step, ...]


def in_order(steps: Iterable[Step]) -> Steps:
    """Return steps as they are applied."""
    return tuple(sorted(steps, key=lambda each: order().index(type(each))))


class Tuning:
    """One model with any list of steps, and which of them to keep; `plain` is without any.

    Raises
    ------
    NotImplementedError
        The referee cannot run the model here.
    """

    def __init__(self, planner: Planner, split: Split, plain: Planned) -> None:
        started = time.monotonic()
        self.planner, self.split, self.plain = planner, split, plain
        self.recipe = demanding(planner.recipe, planner.model)
        program = split.every.program(plain.plan)
        self.referees = [Referee(program, samples) for samples in split.held_back]
        """Of each fold's samples that are held back."""
        self.entries = list[tuple[Step, JournalEntry]]()
        """Of steps that were tried, in order."""
        self.is_cut = False
        """Whether steps were left out for want of time."""
        self._made = dict[tuple[Steps, int], Planned]()
        self._scores = dict[tuple[Steps, int], Score]()
        self._of_activations = dict[Steps, Score]()
        self._view = DataflowView(planner.simple.module["main"])
        self.score(())
        self.longest = time.monotonic() - started
        """Seconds that a step took, at most; before any has, what it takes to build the program and to score the plain model."""

    def best(self) -> Steps:
        """Return the steps that gain, of those that the recipe wants tried."""
        best: Steps = ()
        # What others gain is asked beside corrections, which make up for much.
        all_kinds = order()
        kinds = all_kinds if self._is_large else [all_kinds[-1], *all_kinds]
        for kind in kinds:
            best = self._better(best, kind.of(self.recipe))
            # A large model has no room for all that was tried.
            self._made = {key: planned for key, planned in self._made.items() if set(key[0]) <= set(best)}
            if self._is_large:
                self.planner.forget(but=self.planned(best).choices.equalization)
        best = best if self._is_large else self._exchanged(self._without_useless(best))
        # What nobody found a gain of must not take that of others away.
        for steps in (best, tuple(step for step in best if not step.is_presumed)):
            if steps and _is_worth(self._gain(steps, ()), min(step.min_gain_db for step in steps)):
                return steps
        return ()

    def finished(self, best: Steps, entries: Iterable[tuple[Step, JournalEntry]] = ()) -> QuantizedModel:
        """Return the model with some steps, fitted to all samples; its journal has entries of those that were tried besides."""
        tried = [*entries]
        known = {step for step, _ in tried}
        tried += [
            (step, journal_entry(step.name, step.detail or step.name, None, is_kept=True)) for step in best if step not in known
        ]
        compared = (all((steps, fold) in self._scores for steps in (best, ())) for fold in range(len(self.referees)))
        folds = max(1, sum(compared))
        fitted = self._fitted_to_all(best)
        quantized = confirmed(self.planner, fitted)
        of = self.score if quantized.plan.layers == fitted.plan.layers else self._score_of_confirmed
        plain, score = of((), folds), of(best, folds)
        journal = Journal(
            entries=tuple(replace(entry, kept=entry.kept and step in best) for step, entry in tried),
            held_back=sum(map(len, self.split.held_back[:folds])),
            plain_db=plain.sqnr_db,
            sqnr_db=score.sqnr_db,
            agreement=score.agreement,
            carried=tuple(_carried(self.planner.model)),
        )
        return replace(quantized, plan=replace(quantized.plan, journal=journal))

    def planned(self, steps: Steps, fold: int = 0) -> Planned:
        """Return the model with some steps; one that has nothing to propose behind those before it changes nothing."""
        if not steps:
            return self.plain
        if (steps, fold) not in self._made:
            self._made[steps, fold] = self._with(self.planned(steps[:-1], fold), steps[-1], self.split.fitted[fold])
        return self._made[steps, fold]

    def score(self, steps: Steps, folds: int = 1) -> Score:
        """Return how far outputs are off on what so many folds hold back, each time with the steps fitted to the others."""
        for fold in range(folds):
            if (steps, fold) not in self._scores:
                plan = self.planned(steps, fold).plan
                self._scores[steps, fold] = self._referee(fold, plan).score(plan)
        return Score.of_all([self._scores[steps, fold] for fold in range(folds)])

    def _score_of_confirmed(self, steps: Steps, folds: int) -> Score:
        """Return what `score` does, of the layers alone that targets take: their rules may not take all that they describe."""
        plans = [confirmed(self.planner, self.planned(steps, fold)).plan for fold in range(folds)]
        return Score.of_all([self._referee(fold, plan).score(plan) for fold, plan in enumerate(plans)])

    def forget(self, steps: Steps) -> None:
        """Let go of a model that is not asked for again."""
        self._made = {key: planned for key, planned in self._made.items() if key[0] != steps}

    def _referee(self, fold: int, plan: QuantizationPlan) -> Referee:
        """Return what scores a plan on what a fold holds back; it is another where a plan rounds what those before did not."""
        program = self.split.every.program(plan)
        if self.referees[fold].program is not program:
            self.referees[fold] = Referee(program, self.split.held_back[fold], before=self.referees[fold])
        return self.referees[fold]

    def _fitted_to_all(self, best: Steps) -> Planned:
        """Return the model with the same steps, fitted to all samples, if these are more than they were fitted to.

        Not where it loses on samples that it was fitted to, too: then what the steps gained was not what they are fitted by.
        """
        if not self._fits_again:
            return self.planned(best)
        planned = self.plain
        for place, step in enumerate(best):
            before, chosen = (self.planned(best[:end]) for end in (place, place + 1))
            planned = self._with(planned, step, self.split.every, (before.choices, chosen.choices))
        lost = self.score(best).gain_over(self._referee(0, planned.plan).score(planned.plan))
        is_loss = lost.db > _NO_LOSS_DB and lost.is_certain(CERTAIN)
        return self.planned(best) if is_loss or planned.plan.lost_products(self.planned(best).plan) else planned

    def _better(self, best: Steps, alternatives: Sequence[Step]) -> Steps:
        """Return the steps with that of several of a kind which gains most, if one does."""
        kept = best
        for step in alternatives:
            if self._is_late():
                break
            is_quick = self.referees[0].program.float_bytes <= step.small_bytes
            below_db = step.below_db_if_large if self._is_large else math.inf if is_quick else step.below_db
            if self.score(kept).sqnr_db >= below_db or step in best:
                continue
            _LOG.info("%s %s", step.name, step.detail)
            started = time.monotonic()
            others = [each for each in best if type(each) is not type(step)]
            steps = in_order([*others, step])
            if not self.proposes(step, steps):
                if all(entry.step != step.name for _, entry in self.entries):
                    self._note(step, "", None, is_kept=False, seconds=time.monotonic() - started)
                continue
            if self._is_emptied(_uncorrected(steps)):
                said = self._said(_uncorrected(steps), _uncorrected(best))
                self._note(step, said, None, is_kept=False, seconds=time.monotonic() - started)
                continue
            refuted = self._refuted(step, steps, best, kept)
            if refuted is not None:
                said = self._said(_uncorrected(steps), _uncorrected(best))
                said = f"{said}: it gains {refuted.db:.2f} dB where nothing is corrected"
                self._note(step, said, None, is_kept=False, seconds=time.monotonic() - started)
                continue
            gain, least = self.score(steps).gain_over(self.score(best)), self._demanded_db(step, steps, best)
            may_gain = _may_gain(step, gain, least)
            # More folds are asked of what is refused: all that is taken is asked for again, beside the others.
            if not may_gain:
                gain = self._gain(steps, best, least, on_all=step.is_presumed)
                may_gain = _may_gain(step, gain, least)
            # Which of two of a kind is taken matters less than whether any is: more folds are not asked.
            is_kept = may_gain and (
                kept is best or self.score(steps).gain_over(self.score(kept)).db >= self._demanded_db(step, steps, kept)
            )
            seconds = time.monotonic() - started
            self.longest = max(self.longest, seconds)
            self._note(step, self._said(steps, best), gain, is_kept=is_kept, seconds=seconds)
            if is_kept:
                kept = steps
                if self._is_large:  # each other one takes ten seconds
                    break
        return kept

    def _refuted(self, step: Step, steps: Steps, best: Steps, kept: Steps) -> Gain | None:
        """Return what a step gains without corrections if that is too little: beside them it is hardly more.

        With activations alone rounded, or weights, too, whichever is more. None where nothing is corrected, which takes most of
        the time of a step that is tried, and of what is kept unless it loses.
        """
        after = _uncorrected(steps)
        if step.is_presumed or step not in after or after == steps:
            return None
        for others, least in ((best, _IMMATERIAL_DB), (kept, 0.0)):
            before = _uncorrected(others)
            demanded, gains = max(least, self._demanded_db(step, after, before)), list[Gain]()
            for score in (self.score, self._score_of_activations):
                gains.append(score(after).gain_over(score(before)))
                if gains[-1].db + gains[-1].standard_error >= demanded:
                    break
            else:
                return max(gains, key=lambda gain: gain.db)
        return None

    def _score_of_activations(self, steps: Steps) -> Score:
        if steps not in self._of_activations:
            plan = self.planned(steps).plan
            self._of_activations[steps] = self._referee(0, plan).score_of_activations(plan)
        return self._of_activations[steps]

    def _without_useless(self, best: Steps) -> Steps:
        """Return the steps without those that don't gain beside the others, those first that gain least.

        None is taken out where what is left would be worse than the plain model.
        """
        sure = {step for step, entry in self.entries if (entry.gain_db or 0.0) >= _SURE_DB}
        while best and not self._is_late():
            started = time.monotonic()
            # What is kept unless it loses did not lose when it was tried.
            asked = [step for step in best if step not in sure and not step.is_presumed]
            others = {step: tuple(each for each in best if each != step) for step in asked}
            least = {step: self._demanded_db(step, best, left) for step, left in others.items()}
            first = {step: self.score(best).gain_over(self.score(left)) for step, left in others.items()}
            # More folds are asked of what the first one finds useless: each fits all steps anew.
            doubtful = [step for step, gain in first.items() if not _is_worth(gain, least[step])]
            gains = {step: self._gain(best, others[step], least[step]) for step in doubtful}
            losing = [step for step, gain in gains.items() if not _is_worth(gain, least[step])]
            able = (step for step in losing if not self._is_emptied(others[step]))
            useless = [step for step in able if self._gain(others[step], ()).db >= 0]
            step = min(useless, key=lambda each: gains[each].db, default=None)
            if step is None:
                noted = {step: entry.gain_db or 0.0 for step, entry in self.entries if entry.kept}
                self._note_beside_others({step: first[step] for step in first if noted.get(step, 0.0) < least[step]} | gains)
                break
            self._note(step, "taken out again", -gains[step], is_kept=False, seconds=time.monotonic() - started)
            best = others[step]
        return best

    def _exchanged(self, best: Steps) -> Steps:
        """Return the steps with one that leaves much float taken back for another, where that gains more for its time.

        Those are asked which had nothing to propose beside the steps before them: others were compared with these. Not those
        that pick activations by what they cost: other samples may need others float, where all that one of these leaves is.
        """
        kinds, known = order(), dict.fromkeys(step for step, entry in self.entries if not entry.proposal)
        silent = [step for step in in_order(known) if step.min_gain_db > _IMMATERIAL_DB and not step.small_bytes]
        for taken in (step for step in best if step.min_gain_db > _IMMATERIAL_DB):
            left = tuple(step for step in best if step != taken)
            for step in silent:
                steps, place = in_order([*left, step]), kinds.index(type(step))
                is_shut_out = place > kinds.index(type(taken)) and type(step) not in map(type, left)
                if self._is_late() or not is_shut_out or not self.proposes(step, steps) or self._is_emptied(steps):
                    continue
                started, gain = time.monotonic(), self._gain(steps, best, -_NO_LOSS_DB)
                said = f"{self._said(steps, best)}: without {taken.said}"
                is_kept = _is_worth(gain, max(_IMMATERIAL_DB, self._worth_db(best, steps)))
                self._note(step, said, gain, is_kept=is_kept, seconds=time.monotonic() - started)
                if is_kept:
                    for kind in kinds[place + 1 :]:
                        steps = self._better(steps, kind.of(self.recipe))
                    return steps
        return best

    def _is_emptied(self, steps: Steps) -> bool:
        """Return whether some steps leave no product integer, though outputs are of use without any."""
        return self.planned(steps).plan.lost_products(self.plain.plan) and self.score(()).error < USELESS

    def _worth_db(self, others: Steps, steps: Steps) -> float:
        """Return what the time is worth that some steps take more than others."""
        return worth_db(self._view, *(self.planned(each).plan for each in (others, steps)))

    def _demanded_db(self, step: Step, steps: Steps, others: Steps) -> float:
        """Return what a step must gain that makes some steps of others: for the time that these take more, too."""
        return step.demanded_db(self._worth_db(others, steps))

    def _said(self, steps: Steps, others: Steps) -> str:
        planned = self.planned(steps)
        said = planned.choices.said_beside(self.planned(others).choices)
        return f"{said}: no product is integer" if planned.plan.lost_products(self.plain.plan) else said

    def _note(self, step: Step, proposal: str, gain: Gain | None, *, is_kept: bool, seconds: float) -> None:
        said = ": ".join(each for each in (step.detail, proposal) if each) if proposal else ""
        self.entries.append((step, journal_entry(step.name, said, gain, is_kept=is_kept, seconds=seconds)))

    def _note_beside_others(self, gains: Mapping[Step, Gain]) -> None:
        """Note of steps that stay for what they gain beside the others that this is more than when they were tried."""
        for place, (step, entry) in enumerate(self.entries):
            gain = gains.get(step)
            if gain is not None and entry.kept and gain.db > (entry.gain_db or 0.0):
                more = journal_entry(step.name, f"{entry.proposal}: beside the others", gain, is_kept=True, seconds=entry.seconds)
                self.entries[place] = step, more

    @property
    def _fits_again(self) -> bool:
        """Whether steps that are kept are fitted to more samples than while they are tried."""
        return not self._is_large and len(self.split.fitted[0].few) != len(self.split.every.few)

    @property
    def _is_large(self) -> bool:
        return self.planner.model.is_large

    def _is_late(self) -> bool:
        """Return whether one more step, and fitting all anew, would end too late."""
        needed = self.longest * (2 if self._fits_again else 1)
        self.is_cut = self.is_cut or time.monotonic() + needed > self.split.deadline
        return self.is_cut

    def _gain(self, steps: Steps, others: Steps, least: float = -math.inf, *, on_all: bool = False) -> Gain:
        """Return what the model with some steps gains over that with others.

        On as many folds as it takes to say so, or that it is too little: less than `least` by a standard error; or on all.
        """
        gain = self.score(steps, 1).gain_over(self.score(others, 1))
        for folds in range(2, len(self.referees) + 1):
            is_said = _is_clear(gain) or gain.db + gain.standard_error < least
            if self._is_large or (is_said and not on_all) or self._is_late():
                break
            gain = self.score(steps, folds).gain_over(self.score(others, folds))
        return gain

    def proposes(self, step: Step, steps: Steps) -> bool:
        """Return whether one of some steps has anything to propose behind those before it."""
        place = steps.index(step)
        return self.planned(steps[: place + 1], 0) is not self.planned(steps[:place], 0)

    def _with(self, planned: Planned, step: Step, runs: SampleRuns, tried: tuple[Choices, Choices] | None = None) -> Planned:
        """Return a model with one more step, of which is known what it was given, and made of that, when it was tried."""
        evidence = Evidence(planner=self.planner, runs=runs)
        try:
            choices = step.propose(planned, evidence) if tried is None else step.again(planned, evidence, *tried)
        except NotImplementedError:  # the referee cannot run what it asks for
            return planned
        return planned if choices is None else planned_with(self.planner, choices)


def _uncorrected(steps: Steps) -> Steps:
    """Return steps without those of the kind that is applied last."""
    last = order()[-1]
    return tuple(step for step in steps if not isinstance(step, last))


def _is_clear(gain: Gain) -> bool:
    """Return whether more samples would hardly change what is made of a gain."""
    return abs(gain.db) + gain.standard_error < _IMMATERIAL_DB or abs(gain.db) > _CLEAR * gain.standard_error


def _carried(model: Model) -> Iterator[str]:
    """Yield the names of inputs that look like state: behind the first, and float as one of the outputs behind the first."""
    given, made = ([model.tensors[name] for name in names[1:]] for names in (model.input_ids, model.output_ids))
    shapes = [each.shape for each in made if each.dtype == "float32"]
    yield from (each.source_name for each in given if each.dtype == "float32" and each.shape and each.shape in shapes)


def journal_entry(name: str, proposal: str, gain: Gain | None, *, is_kept: bool, seconds: float = 0.0) -> JournalEntry:
    """Return what the journal has of a step: by its name, and what it proposed, in words."""
    return JournalEntry(
        step=name,
        proposal=proposal,
        gain_db=None if gain is None else gain.db,
        standard_error_db=None if gain is None else gain.standard_error,
        kept=is_kept,
        seconds=round(seconds, 2),
    )


def _stays(step: Step, gain: Gain, least: float) -> bool:
    """Return whether a step that gains so much is kept, where it must gain so much at least."""
    is_loss = -gain.db > max(_NO_LOSS_DB, min(_CLEAR * gain.standard_error, _SURE_DB))
    return not is_loss if step.is_presumed else _is_worth(gain, least)


def _may_gain(step: Step, gain: Gain, least: float) -> bool:
    is_near = gain.db > -_NO_LOSS_DB and gain.db + gain.standard_error >= least
    return _stays(step, gain, least) or (step.below_db == math.inf and is_near)


def _is_worth(gain: Gain, min_gain_db: float) -> bool:
    return gain.db >= min_gain_db and gain.is_certain(CERTAIN)
