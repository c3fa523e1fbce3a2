"""Remedies as steps for the loop, one after the other: each is kept only where the referee says so."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from ...compiler.target_choice import ResolvedTarget, TargetLike, resolve_target
from ...errors import QuantizationError, check_type, check_value, is_number
from ...ir.graph import Model
from ...numerics.arrays import Samples
from ...profiling import Profile, samples_of
from ...target import ELEMENTWISE
from ..choices import Choices
from ..placement import Placement
from ..plan.journal import JournalEntry
from ..plan.plan import QuantizedModel
from ..planner import Planned
from ..programs import Programs
from ..quantize import by_profile, check_subject, split_of
from ..quantize_graph import planner_of, quantizing
from ..recipe import Recipe
from ..steps import Correct, FloatTensors, Step, WithoutShift
from ..steps.step import ENOUGH_DB
from ..tune import CERTAIN, Steps, Tuning, journal_entry
from .experiments import FAULTS, MENDABLE, RootCause
from .table import table

_MAX_TRIED = 3
"""Remedies in a round that are measured and bring nothing; then none is tried any more."""
_ANEW = (*MENDABLE, "weight rounding")
"""Causes that quantizing anew may take away."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class FixResult:
    """What became of a model.

    Parameters
    ----------
    quantized
        With all that was kept; its plan's journal says what.
    before_db, after_db
        Signal to noise ratio of the worst output in dB, on samples of the profile that no step is fitted to.
    entries
        All that was tried, in that order, as the journal has it.
    """

    quantized: QuantizedModel
    before_db: float
    after_db: float
    entries: tuple[JournalEntry, ...]

    @property
    def summary(self) -> str:
        """One line: how many remedies were kept, and what they brought together."""
        kept = sum(entry.kept for entry in self.entries)
        measured = f"outputs {self.before_db:.1f} dB above their error"
        if not kept:
            return f"no remedy helps ({len(self.entries)} tried): {measured}"
        return f"{kept} of {len(self.entries)} remedies kept: {measured} before, {self.after_db:.1f} dB after"


def fix(
    model: Model,
    quantized: QuantizedModel,
    profile: Profile,
    *,
    target: TargetLike = "cpu",
    recipe: Recipe | None = None,
    min_gain_db: float = 0.5,
    rounds: int = 4,
) -> FixResult:
    """Apply the remedies that the table of root causes names, and keep those that help.

    In each round the table is made anew (see `root_causes`). Its remedies are steps, tried from the top until three bring
    nothing: parameters that do not fit are replaced in the plan; where the recipe left out corrections or equalization, the model
    is quantized anew with them; what 8 bits are too few for gets 16, or stays float. Where the plan has corrections, they are
    made anew beside them. A remedy is kept where the referee says so on samples held back; one that costs time, where it gains
    `min_gain_db` or more. Outputs that come to 40 dB end it. All takes a few times as long as `quantize`.

    Parameters
    ----------
    model, profile
        The float model and its profile, with samples that it keeps.
    quantized
        What `octavo.quantize` made of them, or of an edited plan.
    target, recipe
        As they were given to `quantize`. What the recipe says of single tensors stays; without it the plan's recipe counts.
    min_gain_db
        Causes whose remedy promises less are left alone, but for parameters that do not fit. It ends with a round that brings
        less.
    rounds
        How many tables are made at most.

    Returns
    -------
    FixResult
        The model, whose plan repeats it, and what each remedy brought: its journal has these entries behind those that it had.
        The same arguments give the same result.

    Raises
    ------
    QuantizationError
        `quantized` is none of this model, or cannot be run here; a limit is none.
    ProfileError
        A profile of another model, or one that keeps no samples.
    """
    check_subject(model, profile, recipe)
    check_type(quantized, QuantizedModel, QuantizationError, "what octavo.quantize returns")
    is_gain = is_number(min_gain_db) and 0 <= min_gain_db < math.inf
    check_value(is_gain, QuantizationError, "min_gain_db", "a number of dB, 0 or more", min_gain_db)
    check_value(type(rounds) is int and rounds > 0, QuantizationError, "rounds", "a number of them, 1 or more", rounds)
    samples = samples_of(model, profile, "measure with")
    said = recipe or quantized.plan.recipe
    full = replace(said, bias_correction=True, weight_rounding="gram", equalization="auto")
    with quantizing():
        run = _Fixer(
            model=model,
            profile=profile,
            target=resolve_target(target),
            samples=samples,
            anew=None if full == said else full,
            kept=frozenset(() if recipe is None else recipe.tensors),
            min_gain_db=min_gain_db,
            programs=Programs.of_model(model, quantized.plan),
        )
        return run.run(quantized, rounds)


@dataclass(kw_only=True, slots=True)
class _Fixer:
    """What is gone on from: a model, and the steps that were kept of it, with corrections anew behind them.

    Parameters
    ----------
    anew
        A recipe that leaves out nothing of what brings outputs nearer at no cost; None where the model's own does not.
    kept
        Names of the tensors that the user's recipe speaks of.
    """

    model: Model
    profile: Profile
    target: ResolvedTarget
    samples: Samples
    anew: Recipe | None
    kept: frozenset[str]
    min_gain_db: float
    programs: Programs
    _tuning: Tuning = field(init=False)
    _steps: Steps = ()
    _entries: list[JournalEntry] = field(default_factory=list[JournalEntry])
    _tried: set[Step | None] = field(default_factory=set["Step | None"])
    """None is to quantize anew."""

    def run(self, quantized: QuantizedModel, rounds: int) -> FixResult:
        """Go on until a round brings too little."""
        known, self._tuning = quantized.plan.journal, self._tuning_of(quantized)
        before = self._sqnr_db
        for _ in range(rounds):
            start = self._sqnr_db
            if math.isinf(start):
                break
            self._round()
            if self._sqnr_db - start < max(self.min_gain_db, 1e-9) or before < ENOUGH_DB <= self._sqnr_db:
                break
        if any(entry.kept for entry in self._entries):
            quantized = self._tuning.finished(self._steps)
            journal = replace(
                quantized.plan.journal,
                entries=(*known.entries, *self._entries),
                plain_db=before if known.plain_db is None else known.plain_db,
            )
            quantized = replace(quantized, plan=replace(quantized.plan, journal=journal))
        return FixResult(quantized=quantized, before_db=before, after_db=self._sqnr_db, entries=tuple(self._entries))

    @property
    def _sqnr_db(self) -> float:
        return self._tuning.score(self._steps).sqnr_db

    def _tuning_of(self, quantized: QuantizedModel) -> Tuning:
        """Return the loop for a model to go on from: it is what no step has changed."""
        plan = quantized.plan
        planner = planner_of(self.model, None, self.target, plan.recipe, plan, self.programs)
        split = split_of(planner, self.profile, self.samples, self.programs)
        # Products' results that the plan does not round before a function of them: their kernels compute that.
        made = {layer.output for layer in plan.layers} - plan.activations.keys()
        read = (layer.inputs[0] for layer in plan.layers if layer.op == ELEMENTWISE and len(layer.inputs) == 1)
        floats = {name: "the plan does not round it" for name in read if name in made}
        choices = planner.first_choices.with_more(Choices(float_tensors=floats))
        try:
            given = Placement(layers=(), float_ops=plan.float_ops, overridden={})
            return Tuning(planner, split, Planned(choices=choices, plan=plan, write=lambda: quantized, placement=given))
        except NotImplementedError as error:
            raise QuantizationError(f"the model cannot be run here to be measured: {error}") from error

    def _round(self) -> None:
        """Try what the table says, until something that changes all the rest brings as much as is asked for.

        Of a row until one remedy is kept: what 16 bits do not help, float helps no more.
        """
        failed = 0
        for row in table(self.model, self._tuning.planned(self._steps).quantized, self.samples, self.programs):
            for said, step in self._remedies(row):
                self._tried.add(step)
                is_free, before = step is None or row.cause in FAULTS, self._sqnr_db
                entry = self._entry(row, said, step, least=0.0 if is_free else self.min_gain_db)
                if entry is None or entry.gain_db is None:
                    continue
                failed += not entry.kept
                is_enough = (is_free and entry.gain_db >= self.min_gain_db) or before < ENOUGH_DB <= self._sqnr_db
                if (entry.kept and is_enough) or failed == _MAX_TRIED:
                    return
                if entry.kept or not is_free:
                    break

    def _remedies(self, row: RootCause) -> Iterator[tuple[str, Step | None]]:
        """Yield what was not tried yet against a root cause, with words for it; None is to quantize the model anew."""
        # What rounding weights anew brings, no experiment says; it costs nothing to try.
        is_promising = row.gain_db >= self.min_gain_db or row.cause in (*FAULTS, "weight rounding")
        if not is_promising or (row.part == "activation" and {str(row.id), row.source_name} & self.kept):
            return
        if row.cause in _ANEW and self.anew is not None and None not in self._tried:
            yield "quantized anew with the corrections and the equalization that the recipe left out", None
        yield from ((said, step) for said, step in row.steps.items() if step not in self._tried)

    def _entry(self, row: RootCause, said: str, step: Step | None, *, least: float) -> JournalEntry | None:
        """Try a step, which is kept if it brings so much in dB; None where it has nothing to propose."""
        started, gain, is_kept, note = time.monotonic(), None, False, ""
        try:
            tuning, steps = self._with(step)
            if step is not None and not tuning.proposes(step, steps):
                return None
            plan, keeps_ops = tuning.planned(steps).plan, step is not None and not isinstance(step, FloatTensors)
            if not plan.layers:
                raise QuantizationError("no op would be integer without it")
            if keeps_ops and len(plan.layers) < len(self._tuning.planned(self._steps).plan.layers):
                raise QuantizationError("an op around it would be float")
            gain = tuning.score(steps).gain_over(self._tuning.score(self._steps))
            is_kept = gain.is_certain(CERTAIN) and gain.db >= least
            if is_kept:
                self._tuning, self._steps = tuning, steps
            else:
                tuning.forget(steps)
        except QuantizationError as error:
            note = f", cannot be had: {error}"
        part = "" if row.part == "activation" else f" of its {row.part}"
        proposal = f"{row.source_name or row.id}: {said}, against {row.cause}{part}: expected {row.gain_db:+.2f} dB{note}"
        name = "equalize" if step is None else step.name
        self._entries.append(journal_entry(name, proposal, gain, is_kept=is_kept, seconds=time.monotonic() - started))
        return self._entries[-1]

    def _with(self, step: Step | None) -> tuple[Tuning, Steps]:
        """Return the model with one step more, weights and biases corrected anew beside them if the plan has corrections.

        Of ranges that clip biases are not found anew, nor what a profile said: what was observed is no more in a plan.
        """
        if step is None:
            return self._tuning_of(by_profile(self.target, self.model, self.profile, self.anew, programs=self.programs)), ()
        plan = self._tuning.plain.plan
        corrects = plan.corrections and plan.recipe.has_plain_ranges and plan.recipe.bias_correction != "analytic"
        steps = [each for each in (*self._steps, step) if not isinstance(each, Correct)]
        without = [each for each in steps if isinstance(each, WithoutShift)] if corrects else []
        more = [Correct(), *without] if corrects else []
        return self._tuning, (*(each for each in steps if each not in without), *more)
