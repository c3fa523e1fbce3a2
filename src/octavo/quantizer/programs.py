"""The compiled programs of one float model, which plans, causes and errors by layer share. It decides nothing."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ..compiler.float_program import NO_GAINS, FloatProgram
from ..compiler.target_choice import ResolvedTarget, resolve_target
from ..errors import CompileError
from ..ir.channels import rotated
from ..ir.graph import Model
from ..ir.identity import TensorId
from ..ir.simplify import Fold, simplify
from ..numerics.arrays import Array
from .equalization import Equalizer
from .equalized_float import equalized
from .plan import QuantizationPlan
from .plan.equalization import Equalization
from .referee import RoundedProgram


@dataclass(kw_only=True, slots=True, eq=False)
class Programs:
    """Builds what runs a simplified float model, and that rounded as plans say: once, unless a plan rounds more than before.

    Parameters
    ----------
    simple, folds
        The model, and what was folded to make it so.
    """

    simple: Model
    folds: tuple[Fold, ...] = ()
    here: ResolvedTarget = field(default_factory=lambda: resolve_target(None))
    _plans: list[QuantizationPlan] = field(default_factory=list[QuantizationPlan])
    _known: dict[Hashable, RoundedProgram] = field(default_factory=dict["Hashable", RoundedProgram])
    _equalized: FloatProgram | None = None
    """Of the model as the last plan divides it, where that has other ops: clips of a bound for each channel."""
    _refusal: str = ""

    @staticmethod
    def of_model(model: Model, plan: QuantizationPlan | None = None) -> Programs:
        """Return those of a float model that is not simplified yet, as it was simplified for a plan if one is given."""
        simple, folds = simplify(model, None if plan is None else plan.folds)
        return Programs(simple=simple, folds=folds)

    def floats(self, model: Model, names: Sequence[str], gains: Mapping[str, Array] = NO_GAINS) -> FloatProgram:
        """Return what runs a float model: one that is known, of other constants, where nothing else is different.

        Parameters
        ----------
        names, gains
            See `FloatProgram.of`.
        """
        names = [*names, *gains]
        found = next((found for each in self._known.values() if (found := each.floats.of(model, names, gains)) is not None), None)
        made = found or FloatProgram(model, names, self.here).of(model, names, gains)
        assert made is not None, "it is the very model"
        return made

    def of(self, plan: QuantizationPlan, equalizer: Equalizer | None = None) -> RoundedProgram:
        """Return that of the model, rotated as a plan says.

        Parameters
        ----------
        equalizer
            What that asks of the model needs no other program then.

        Raises
        ------
        NotImplementedError
            TVM's virtual machine alone can run it, or nothing.
        """
        key = tuple(plan.equalization.rotations.items())
        known = self._known.get(key)
        if not self._refusal and (known is None or not known.can_round(plan)):
            self._plans.append(plan)
            self._known = {each: program for each, program in self._known.items() if not each}

            def build(model: Model, own: Sequence[str], others: Collection[TensorId]) -> FloatProgram:
                if (found := self._found(model, own, others)) is not None:
                    return found
                names, constants = ([], set[TensorId]()) if equalizer is None else equalizer.asked(self.simple)
                try:
                    return FloatProgram(model, [*own, *names], self.here, {*others, *constants})
                except NotImplementedError:  # kernels compute with some of them
                    return FloatProgram(model, [*own, *names], self.here, others)

            try:
                model = rotated(self.simple, plan.equalization.rotations)
                known = self._known[key] = RoundedProgram(model, self._plans, self.here, build)
            except (NotImplementedError, CompileError) as error:  # what cannot be compiled is for `compile` to say
                self._refusal = str(error)
        if known is None or self._refusal:
            raise NotImplementedError(self._refusal)
        return known

    def equalized(self, plan: QuantizationPlan) -> tuple[Model, QuantizationPlan]:
        """Return the model with its channels rotated and divided as a plan says, and the plan of that very model."""
        return equalized(self.simple, plan.equalization), replace(plan, equalization=Equalization())

    def rounded(self, model: Model, plan: QuantizationPlan, *, seen: Collection[str] = ()) -> RoundedProgram:
        """Return that of what `equalized` gave.

        Parameters
        ----------
        seen
            See `RoundedProgram`.

        Raises
        ------
        NotImplementedError
            TVM's virtual machine alone can run it.
        """

        def build(model: Model, names: Sequence[str], others: Collection[TensorId]) -> FloatProgram:
            if (found := self._found(model, names, others)) is None:
                found = FloatProgram(model, names, self.here, others)
                self._equalized = None if model.is_large else found
            return found

        return RoundedProgram(model, [plan], self.here, build, seen=seen)

    def _found(self, model: Model, names: Sequence[str], others: Collection[TensorId]) -> FloatProgram | None:
        """Return what runs a model with variables of these names and other constants of those; None where none is known."""
        programs = [each.floats for each in self._known.values()] + ([] if self._equalized is None else [self._equalized])
        able = (each for each in programs if each.others >= {*others})
        return next((found for each in able if (found := each.of(model, names)) is not None), None)
