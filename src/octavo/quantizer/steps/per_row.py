"""Quantize what products read per row when run: a static range must hold for all rows, and each row's own is narrower."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import ClassVar, Literal

from ...ir.identity import TensorId
from ...profiling import Profile
from ...profiling.adequacy import adequacy_of
from ...runtime.shapes import typical
from ..choices import Choices
from ..placement import reads_rows
from ..plan.entries import between_products
from ..planner import Planned
from ..recipe import AUTO, WIDEST, Recipe
from .step import ENOUGH_DB, Evidence, Step

_REASON = "each row has the scale of its own values"
_BETWEEN = "it lies between ops that read and leave float32, and no product takes its integers"
_PRODUCT = "it is multiplied by another activation, and no scale suits all its rows"
_UNCOVERED = "it reads a single row, whose values may go further than the samples show"
_SINGLE = "it reads a single row, which has the scale of its own values"


@dataclass(frozen=True, kw_only=True, slots=True)
class SingleRows(Step):
    """Inputs of dense layers with the scale of their own values, where these are a single row.

    The few values of a row make all that comes behind it, and where one sample goes far a static range is coarse for all others.
    What others have beyond that saturates, which no referee sees: ranges are those of the samples held back, too. So it is kept
    unless it loses.
    """

    name: ClassVar = "single rows"
    is_presumed: ClassVar = True
    below_db: float = ENOUGH_DB

    @classmethod
    def of(cls, recipe: Recipe) -> list[SingleRows]:
        """Return it, unless bare rounding, or another estimator of ranges, is wanted."""
        return [cls()] if _may_be_rows(recipe) else []

    def propose(self, planned: Planned, evidence: Evidence) -> Choices | None:
        """Return choices with these layers per row."""
        return _per_row(planned, dict.fromkeys(_single_rows(planned, evidence), _SINGLE))


@dataclass(frozen=True, kw_only=True, slots=True)
class CoverRows(Step):
    """The same where the samples hardly cover the row, however near outputs are on these."""

    name: ClassVar = "cover rows"
    is_presumed: ClassVar = True

    @classmethod
    def of(cls, recipe: Recipe) -> list[CoverRows]:
        """Return it, unless bare rounding, or another estimator of ranges, is wanted."""
        return [cls()] if _may_be_rows(recipe) else []

    def propose(self, planned: Planned, evidence: Evidence) -> Choices | None:
        """Return choices with these layers per row."""
        found, profile = _single_rows(planned, evidence), evidence.planner.profile
        return _per_row(planned, {output: _UNCOVERED for output, row in found.items() if not _is_covered(row, profile)})


def _may_be_rows(recipe: Recipe) -> bool:
    return recipe.corrects and recipe.range_estimator in (AUTO, WIDEST)


def _single_rows(planned: Planned, evidence: Evidence) -> dict[TensorId, TensorId]:
    """Return the dense layers that read a single row and could quantize it when run, each with that row."""
    planner, named = evidence.planner, planned.named
    choices = planner.tensor_choices(planned)
    single = {name for name, each in choices.items() if typical(prod(each.shape[:-1])) == 1}
    return {
        layer.output: layer.inputs[0]
        for layer in planned.plan.layers
        if layer.weight is not None
        and reads_rows(planner.support(layer))
        and not layer.reads_reals
        and named.isdisjoint((*layer.inputs, layer.output))
        and single.issuperset(layer.inputs)
    }


def _per_row(planned: Planned, layers: dict[TensorId, str]) -> Choices | None:
    return planned.choices.with_more(Choices(per_row=layers)).uncorrected if layers else None


def _is_covered(name: TensorId, profile: Profile | None) -> bool:
    """Return whether samples show about as far as a tensor's values go; True where nobody knows."""
    known = None if profile is None else profile.get(name)
    convergence = None if known is None else adequacy_of(known).convergence
    return convergence is None or convergence.covered


@dataclass(frozen=True, kw_only=True, slots=True)
class PerRow(Step):
    """Inputs of dense layers whose scale and zero point are found when the model runs, row by row.

    Products of two activations keep their static parameters, have the rows of one and the columns of the other quantized when
    run, too, or stay float.
    """

    name: ClassVar = "per row"
    products: Literal["", "too", "float"] = ""

    @property
    def min_gain_db(self) -> float:
        """What is worth that ops behind such layers become float: of a network whose last layer alone is dense hardly ever."""
        return 1.0 if self.products else 2.0

    @property
    def detail(self) -> str:
        """What becomes of products of activations."""
        return {"": "", "too": "products of activations, too", "float": "products of activations float"}[self.products]

    @classmethod
    def of(cls, recipe: Recipe) -> list[PerRow]:
        """Return all, those that cost more time last, unless nothing is to be corrected."""
        return [cls(products=each) for each in ("", "too", "float")] if recipe.corrects else []

    def propose(self, planned: Planned, evidence: Evidence) -> Choices | None:
        """Return choices with all dense layers per row that can be, but those of which somebody says something.

        None where products of activations are to be otherwise, and there are none. What then lies between products and takes
        part in none as integers stays float: rounding it would save next to no time.
        """
        named = planned.named
        free = [each for each in planned.plan.layers if not each.reads_reals and named.isdisjoint((*each.inputs, each.output))]
        able = [layer for layer in free if reads_rows(evidence.planner.support(layer)) and not layer.constants]
        dense = [layer for layer in able if layer.weight is not None]
        products = [layer for layer in (able if self.products == "too" else free) if layer.is_product and layer.weight is None]
        if not (products if self.products else dense) or (self.products == "float" and not dense):
            return None
        per_row = [layer.output for layer in (*dense, *(products if self.products == "too" else ()))]
        gone = {*per_row, *(layer.output for layer in products if self.products == "float")}
        left = [layer for layer in planned.plan.layers if layer.output not in gone and not layer.reads_reals]
        between = [name for name in between_products(left) if name not in named]
        floats = dict.fromkeys(between, _BETWEEN)
        if self.products == "float":
            floats |= {name: _PRODUCT for layer in products for name in layer.inputs}
        more = Choices(per_row=dict.fromkeys(per_row, _REASON), float_tensors=floats)
        return planned.choices.with_more(more).uncorrected
