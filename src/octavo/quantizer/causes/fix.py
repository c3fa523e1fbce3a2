"""Remedies applied one by one, each kept only where the integer kernels say that the outputs are nearer to the float model's."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy.typing as npt

from ...compiler.target_choice import TargetLike
from ...errors import ProfileError, QuantizationError, check_type
from ...ir.graph import Model
from ...ir.graph.inputs import input_specs
from ...ir.graph.model import checked_model
from ...ir.identity import TensorId
from ...profiling import check_model
from ...profiling.model_profile import Profile
from ..choices import Choices
from ..kept_samples import samples_of
from ..plan.entries import Adjustment
from ..plan.plan import QuantizedModel
from ..ranges.of_params import range_of
from ..recipe import Recipe
from .actions import Action, Actions, State, group_of
from .causes import FAULTS, Cause
from .requantizer import Requantizer
from .table import Part, RootCause, root_causes

_MAX_TRIED = 3
"""Actions in a round that are measured and bring nothing; then none is tried any more."""

_NEAR_DB = 40.0
"""Outputs that came to be as near have little to gain from more bits, which cost time."""
_LEAST = 1e-3
"""Of the error, what is left at least: errors are not quite independent."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FixStep:
    """One remedy that was tried.

    Parameters
    ----------
    id, source_name, part, cause
        What it is against; see `RootCause`.
    action
        What was done, in words.
    expected_db, measured_db
        By how much the signal to noise ratio of the worst output was to grow with it, and by how much it did; the latter is None
        where the target cannot take it.
    kept
        Whether it was kept.
    note
        Why the target cannot take it; "" where it can.
    """

    id: TensorId
    source_name: str
    part: Part
    cause: Cause
    action: str
    expected_db: float
    measured_db: float | None
    kept: bool
    note: str = ""

    @property
    def said(self) -> str:
        """What was done against what, and what it brought."""
        brought = self.note if self.measured_db is None else f"measured {self.measured_db:+.2f} dB"
        part = "" if self.part == "activation" else f" of its {self.part}"
        return f"{self.action}, against {self.cause}{part}: expected {self.expected_db:+.2f} dB, {brought}"


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class FixResult:
    """What became of a model.

    Parameters
    ----------
    quantized
        With all that was kept; its plan's adjustments say what.
    before_db, after_db
        Signal to noise ratio of the worst output in dB, on the samples that the profile keeps.
    steps
        All that was tried, in that order.
    """

    quantized: QuantizedModel
    before_db: float
    after_db: float
    steps: tuple[FixStep, ...]

    @property
    def summary(self) -> str:
        """One line: how many remedies were kept, and what they brought together."""
        kept = sum(step.kept for step in self.steps)
        measured = f"outputs {self.before_db:.1f} dB above their error"
        if not kept:
            return f"no remedy helps ({len(self.steps)} tried): {measured}"
        return f"{kept} of {len(self.steps)} remedies kept: {measured} before, {self.after_db:.1f} dB after"


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

    In each round the table is made anew (see `root_causes`). Its remedies are tried from the top: parameters that do not fit are
    replaced in the plan; biases, weights and channels are treated by the recipe's means, where those were off; what 8 bits are
    too few for gets 16, or stays float: one after the other as long as what those before left of the error promises enough. A
    remedy is kept where the worst output's signal to noise ratio rises, on the samples that the profile keeps; one that costs
    time, where it rises by `min_gain_db` or more. Outputs that come to 40 dB end it. All takes a few times as long as `quantize`.

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
        The model, whose plan repeats it, and what each remedy brought. The same arguments give the same result.

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
    kept = () if recipe is None else tuple(recipe.tensors)
    requantizer = Requantizer(model=model, target=target, samples=samples)
    run = _Fixer(
        model=model,
        batches=[dict(zip(names, arrays, strict=True)) for arrays in samples],
        requantizer=requantizer,
        actions=Actions(model=model, profile=profile, target=target, requantizer=requantizer, kept=frozenset(kept)),
        min_gain_db=min_gain_db,
        state=_start(quantized, recipe),
    )
    return run.run(rounds)


def _check_limits(min_gain_db: Any, rounds: Any) -> None:
    if isinstance(min_gain_db, bool) or not isinstance(min_gain_db, int | float) or not 0 <= min_gain_db < math.inf:
        raise QuantizationError(f"min_gain_db must be a number of dB, 0 or more, got {min_gain_db!r}")
    if isinstance(rounds, bool) or not isinstance(rounds, int) or rounds < 1:
        raise QuantizationError(f"rounds must be a number of them, 1 or more, got {rounds!r}")


def _start(quantized: QuantizedModel, recipe: Recipe | None) -> State:
    """Return what quantizing by the profile again must be given for what the plan has besides its recipe."""
    plan = quantized.plan
    given = plan.recipe if recipe is None else recipe
    wanted = replace(plan.recipe, tensors=given.tensors, float_tensors=given.float_tensors)
    adjusted = [each.tensor for each in plan.adjustments if each.tensor in plan.activations]
    wide = [name for name, params in plan.activations.items() if params.dtype == "int16"]
    is_wide = wanted.wide_activations or wanted.activation_dtype == "int16"
    choices = Choices(
        ranges={name: range_of(plan.activations[name]) for name in adjusted if name not in wide},
        wide_activations={} if is_wide else dict.fromkeys(wide, "a remedy"),
    )
    return State(quantized=quantized, recipe=wanted, choices=choices)


@dataclass(kw_only=True, slots=True)
class _Fixer:
    model: Model
    batches: list[dict[str, npt.NDArray[Any]]]
    requantizer: Requantizer
    actions: Actions
    min_gain_db: float
    state: State
    sqnr_db: float = field(init=False)
    _steps: list[FixStep] = field(default_factory=list[FixStep])
    _tried: set[tuple[TensorId, str]] = field(default_factory=set[tuple[TensorId, str]])

    def run(self, rounds: int) -> FixResult:
        """Go on until a round brings too little."""
        self.sqnr_db = before = self.requantizer.sqnr_db(self.state.quantized.plan)
        for _ in range(rounds):
            if math.isinf(self.sqnr_db):  # exact, or none that runs here
                break
            start = self.sqnr_db
            self._round()
            gain = self.sqnr_db - start
            if gain < max(self.min_gain_db, 1e-9) or before < _NEAR_DB <= self.sqnr_db:
                break
        quantized = self.state.quantized
        said = tuple(Adjustment(tensor=step.id, message=step.said) for step in self._steps if step.kept)
        if said:
            plan = replace(quantized.plan, adjustments=(*quantized.plan.adjustments, *said))
            quantized = replace(quantized, plan=plan)
        return FixResult(quantized=quantized, before_db=before, after_db=self.sqnr_db, steps=tuple(self._steps))

    def _round(self) -> None:
        """Try what the table says, until something that changes all the rest brings as much as is asked for."""
        failed = 0
        for row, action in self._listed():
            step = self._tried_step(row, action)
            self._steps.append(step)
            if step.kept and action.is_free and (step.measured_db or 0.0) >= self.min_gain_db:
                return
            if step.kept and self.sqnr_db - (step.measured_db or 0.0) < _NEAR_DB <= self.sqnr_db:
                return
            failed += not step.kept and step.measured_db is not None
            if failed == _MAX_TRIED:
                return

    def _listed(self) -> Iterator[tuple[RootCause, Action]]:
        """Yield what was not tried before, with what it promises after all that was kept of this table.

        Of a row until one action is kept: what 16 bits do not help, float helps no more.
        """
        rows, gone = list(root_causes(self.model, self.state.quantized, self.batches)), 0.0
        while (row := next((row for row in rows if self._is_due(row, gone)), None)) is not None:
            rows.remove(row)
            for action in self.actions.of(self.state, row):
                key = self._key(row, action)
                if key in self._tried:
                    continue
                self._tried.add(key)
                yield replace(row, gain_db=_left(row, gone)), action
                step = self._steps[-1]
                if step.kept and not action.is_free:
                    gone += _share(row)
                if step.kept or not (action.is_free or step.measured_db is None):
                    break

    def _is_due(self, row: RootCause, gone: float) -> bool:
        """Return whether something is to be tried against a cause, of whose error so much is gone."""
        # What rounding weights anew brings, no experiment says; it costs nothing to try.
        return row.cause is not None and (_left(row, gone) >= self.min_gain_db or row.cause in (*FAULTS, "weight rounding"))

    def _key(self, row: RootCause, action: Action) -> tuple[TensorId, str]:
        """Return by what an action is known: what treats the whole model is named in many rows, and tensors share parameters."""
        if action.said.endswith(")"):
            return TensorId(""), action.said
        return (group_of(self.state.quantized.plan, row.id)[0] if row.part == "activation" else row.id), action.said

    def _tried_step(self, row: RootCause, action: Action) -> FixStep:
        assert row.cause is not None, "rows without one are left out"
        step = FixStep(
            id=row.id,
            source_name=row.source_name,
            part=row.part,
            cause=row.cause,
            action=action.said,
            expected_db=row.gain_db,
            measured_db=None,
            kept=False,
        )
        try:
            state = action.apply()
        except QuantizationError as error:
            return replace(step, note=f"cannot be had: {error}")
        sqnr_db = self.requantizer.sqnr_db(state.quantized.plan)
        gain = sqnr_db - self.sqnr_db
        kept = gain > 0 if action.is_free else gain >= max(self.min_gain_db, 1e-9)
        if kept:
            self.state, self.sqnr_db = state, sqnr_db
        return replace(step, measured_db=gain, kept=kept)


def _share(row: RootCause) -> float:
    """Return the share of the model's error that a remedy takes away, as its row has it."""
    return 1 - 10 ** (-row.gain_db / 10)


def _left(row: RootCause, gone: float) -> float:
    """Return what a remedy promises, in dB, once others took a share of the error."""
    return -10 * math.log10(max(1 - _share(row) / max(1 - gone, _share(row), _LEAST), _LEAST))
