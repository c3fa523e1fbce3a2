"""Remedies as steps for the loop, one after the other: each is kept only where the referee says so."""

from __future__ import annotations

import math
import time
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

from ...compiler.target_choice import ResolvedTarget, TargetLike, resolve_target
from ...errors import ProfileError, QuantizationError, check_type
from ...ir.graph import Model
from ...ir.graph.inputs import input_specs
from ...ir.graph.model import checked_model
from ...ir.identity import TensorId
from ...numerics.arrays import Array, Samples
from ...profiling import check_model
from ...profiling.model_profile import Profile
from ...target import ELEMENTWISE
from ..applied_plan import AppliedPlan
from ..choices import Choices
from ..kept_samples import samples_of
from ..plan.journal import JournalEntry
from ..plan.plan import QuantizationPlan, QuantizedModel
from ..planner import Planned
from ..quantize import by_profile, split_of
from ..quantize_graph import planner_of, quantizing
from ..recipe import Recipe
from ..referee import Score
from ..steps import Correct, SetParams, Step, WithoutShift
from ..tune import CERTAIN, MIN_SAMPLES, Steps, Tuning, journal_entry
from .causes import FAULTS
from .remedies import Remedies, Remedy
from .table import RootCause, root_causes

_MAX_TRIED = 3
"""Remedies in a round that are measured and bring nothing; then none is tried any more."""

_NEAR_DB = 40.0
"""Outputs that came to be as near have little to gain from more bits, which cost time."""
_LEAST = 1e-3
"""Of the error, what is left at least: errors are not quite independent."""


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

    In each round the table is made anew (see `root_causes`). Its remedies are steps, tried from the top: parameters that do not
    fit are replaced in the plan; where the recipe left out corrections or equalization, the model is quantized anew with them;
    what 8 bits are too few for gets 16, or stays float: one after the other as long as what those before left of the error
    promises enough. Weights and biases are corrected beside them, where the plan has corrections. A remedy is kept where the
    referee says so on samples held back, as in `quantize`; one that costs time, where it gains `min_gain_db` or more. Outputs
    that come to 40 dB end it. All takes a few times as long as `quantize`.

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
    checked_model(model)
    check_type(profile, Profile, ProfileError, "a Profile, which octavo.profile returns and Profile.load reads")
    check_type(recipe, Recipe | None, QuantizationError, "an octavo.Recipe")
    check_type(quantized, QuantizedModel, QuantizationError, "what octavo.quantize returns")
    check_model(profile, model)
    _check_limits(min_gain_db, rounds)
    samples = samples_of(model, profile)
    if not samples:
        raise ProfileError("the profile keeps no samples to measure with: profile the model with keep_samples=64")
    names = [spec.source_name for spec in input_specs(model)]
    with quantizing(), ThreadPoolExecutor(1) as beside:
        run = _Fixer(
            model=model,
            profile=profile,
            target=resolve_target(target),
            beside=beside,
            samples=samples,
            batches=[dict(zip(names, arrays, strict=True)) for arrays in samples],
            kept=frozenset(() if recipe is None else recipe.tensors),
            min_gain_db=min_gain_db,
        )
        return run.run(quantized, recipe, rounds)


def _check_limits(min_gain_db: Any, rounds: Any) -> None:
    if isinstance(min_gain_db, bool) or not isinstance(min_gain_db, int | float) or not 0 <= min_gain_db < math.inf:
        raise QuantizationError(f"min_gain_db must be a number of dB, 0 or more, got {min_gain_db!r}")
    if isinstance(rounds, bool) or not isinstance(rounds, int) or rounds < 1:
        raise QuantizationError(f"rounds must be a number of them, 1 or more, got {rounds!r}")


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Tried:
    """A model with some steps."""

    steps: Steps
    planned: Planned
    score: Score


@dataclass(kw_only=True, slots=True)
class _Fixer:
    model: Model
    profile: Profile
    target: ResolvedTarget
    beside: Executor
    samples: Samples
    batches: list[dict[str, Array]]
    kept: frozenset[str]
    min_gain_db: float
    _tuning: Tuning = field(init=False)
    _best: _Tried = field(init=False)
    _entries: list[JournalEntry] = field(default_factory=list[JournalEntry])
    _tried: set[Step | None] = field(default_factory=set["Step | None"])

    def run(self, quantized: QuantizedModel, recipe: Recipe | None, rounds: int) -> FixResult:
        """Go on until a round brings too little."""
        given, known = recipe or quantized.plan.recipe, quantized.plan.journal
        self._begin(quantized)
        before = self._sqnr_db
        for _ in range(rounds):
            start = self._sqnr_db
            if math.isinf(start):
                break
            self._round(given)
            if self._sqnr_db - start < max(self.min_gain_db, 1e-9) or before < _NEAR_DB <= self._sqnr_db:
                break
        if any(entry.kept for entry in self._entries):
            quantized = self._tuning.finished(self._best.steps)
            journal = replace(
                quantized.plan.journal,
                entries=(*known.entries, *self._entries),
                plain_db=before if known.plain_db is None else known.plain_db,
            )
            quantized = replace(quantized, plan=replace(quantized.plan, journal=journal))
        return FixResult(quantized=quantized, before_db=before, after_db=self._sqnr_db, entries=tuple(self._entries))

    @property
    def _sqnr_db(self) -> float:
        return self._best.score.sqnr_db

    def _begin(self, quantized: QuantizedModel) -> None:
        """Take a model to go on from: it is what no step has changed."""
        plan = quantized.plan
        applied = AppliedPlan(plan=plan, lets_go=True)
        planner = planner_of(self.model, None, self.target, plan.recipe, applied)
        compared = self.samples if len(self.samples) < MIN_SAMPLES else None
        split = split_of(self.target, self.profile, self.samples, plan.recipe, self.beside, compared)
        assert split is not None, "there are samples to compare on"
        choices = planner.first_choices.with_more(Choices(float_tensors=_before_functions(plan)))
        plain = Planned(choices=choices, quantized=quantized, overridden={})
        try:
            self._tuning = Tuning(planner=planner, split=split, plain=plain)
        except NotImplementedError as error:
            raise QuantizationError(f"the model cannot be run here to be measured: {error}") from error
        self._best = self._with_steps(())

    def _round(self, recipe: Recipe) -> None:
        """Try what the table says, until something that changes all the rest brings as much as is asked for.

        Of a row until one remedy is kept: what 16 bits do not help, float helps no more.
        """
        remedies = Remedies(model=self.model, support=self._tuning.planner.support, kept=self.kept)
        failed, gone = 0, 0.0
        for row in root_causes(self.model, self._best.planned.quantized, self.batches):
            promised = _left(row, gone)
            # What rounding weights anew brings, no experiment says; it costs nothing to try.
            if row.cause is None or (promised < self.min_gain_db and row.cause not in (*FAULTS, "weight rounding")):
                continue
            for remedy in remedies.of(self._best.planned.plan, row):
                if remedy.step in self._tried or (remedy.step is None and _has_all(recipe)):
                    continue
                self._tried.add(remedy.step)
                before = self._sqnr_db
                gain = self._tried_gain(row, remedy, promised, recipe)
                if gain is None:
                    continue
                is_kept = self._entries[-1].kept
                if is_kept and ((remedy.is_free and gain >= self.min_gain_db) or before < _NEAR_DB <= self._sqnr_db):
                    return
                failed += not is_kept
                if failed == _MAX_TRIED:
                    return
                if is_kept and not remedy.is_free:
                    gone += _share(row)
                if is_kept or not remedy.is_free:
                    break

    def _tried_gain(self, row: RootCause, remedy: Remedy, promised: float, recipe: Recipe) -> float | None:
        """Return what a remedy brings in dB, which is kept if that is enough; None where it cannot be had."""
        started, before = time.monotonic(), self._best
        gain, is_kept, note = None, False, ""
        try:
            found = self._with(remedy, recipe)
            gain = found.score.gain_over(before.score)
            is_kept = gain.is_certain(CERTAIN) and (remedy.is_free or gain.db >= self.min_gain_db)
        except QuantizationError as error:
            found, note = before, f", cannot be had: {error}"
        if is_kept and remedy.step is None:
            self._begin(found.planned.quantized)
        elif is_kept:
            self._best = found
        elif found is not before:
            self._tuning.forget(found.steps)
        part = "" if row.part == "activation" else f" of its {row.part}"
        name = "equalize" if remedy.step is None else remedy.step.name
        said = f"{row.source_name or row.id}: {remedy.said}, against {row.cause}{part}: expected {promised:+.2f} dB{note}"
        entry = journal_entry(name, said, gain, is_kept=is_kept, seconds=time.monotonic() - started)
        self._entries.append(entry)
        return None if gain is None else gain.db

    def _with(self, remedy: Remedy, recipe: Recipe) -> _Tried:
        """Return the model with a remedy; QuantizationError where there is none to be had."""
        if remedy.step is None:
            full = replace(recipe, bias_correction=True, weight_rounding="gram", equalization="auto")
            quantized = by_profile(self.target, self.model, self.profile, full)
            planned = Planned(choices=Choices(), quantized=quantized, overridden={})
            return _Tried(steps=(), planned=planned, score=self._tuning.referees[0].score(quantized.plan))
        steps = [*self._best.steps, remedy.step]
        if self._corrects and Correct() not in steps:
            steps.append(Correct())
        order = (Correct, WithoutShift)
        found = self._with_steps(tuple(sorted(steps, key=lambda step: 1 + order.index(type(step)) if type(step) in order else 0)))
        before = self._best.planned.plan
        if not found.planned.plan.layers:
            raise QuantizationError("no op would be integer without it")
        if isinstance(remedy.step, SetParams) and len(found.planned.plan.layers) < len(before.layers):
            raise QuantizationError("an op around it would be float")
        return found

    def _with_steps(self, steps: Steps) -> _Tried:
        return _Tried(steps=steps, planned=self._tuning.planned(steps), score=self._tuning.score(steps))

    @property
    def _corrects(self) -> bool:
        """Whether weights and biases are corrected anew.

        Of ranges that clip biases are not found anew, nor what a profile said: what was observed is no more in a plan.
        """
        plan = self._tuning.plain.plan
        return bool(plan.corrections) and plan.recipe.has_plain_ranges and plan.recipe.bias_correction != "analytic"


def _has_all(recipe: Recipe) -> bool:
    """Return whether a recipe leaves out nothing that quantizing anew would add."""
    return recipe.bias_correction is True and recipe.weight_rounding == "gram" and recipe.equalization == "auto"


def _before_functions(plan: QuantizationPlan) -> dict[TensorId, str]:
    """Return the products' results that a plan does not round before a function of them, which their kernels compute."""
    made = {layer.output for layer in plan.layers} - plan.activations.keys()
    read = (layer.inputs[0] for layer in plan.layers if layer.op == ELEMENTWISE and len(layer.inputs) == 1)
    return {name: "the plan does not round it" for name in read if name in made}


def _share(row: RootCause) -> float:
    """Return the share of the model's error that a remedy takes away, as its row has it."""
    return 1 - 10 ** (-row.gain_db / 10)


def _left(row: RootCause, gone: float) -> float:
    """Return what a remedy promises, in dB, once others took a share of the error."""
    return -10 * math.log10(max(1 - _share(row) / max(1 - gone, _share(row), _LEAST), _LEAST))
