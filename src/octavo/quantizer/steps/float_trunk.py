"""Leave the sums of a residual trunk float: each block adds to them, and what reads them multiplies rounded copies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from ...ir.graph.dataflow import DataflowView
from ...ir.identity import TensorId
from ..choices import Choices
from ..plan import QuantizationPlan
from ..plan.entries import IntegerLayer
from ..planner import Planned
from ..price import worth_db
from ..recipe import Recipe
from ..referee.rounding import Rounding
from ..referee.score import in_db
from .step import Evidence, FloatStep

_REASON = "it is summed up unrounded, and products read copies of 8 bits"
_BETWEEN = "it lies between products, which alone need 8 bits"
_SUMS = ("add", "subtract")
_PRICE = 2.0
"""So often what modelled time is worth: float ops, and copies, are passes of their own."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FloatTrunk(FloatStep):
    """Ops between products in float32, whose results products quantize for themselves.

    Parameters
    ----------
    ops
        Sums that read another one, or what another one reads, with the products that such begin with; or all.
    """

    name: ClassVar = "float trunk"
    ops: Literal["sums", "all"] = "sums"

    @property
    def min_gain_db(self) -> float:
        """What is worth tensors of four bytes."""
        return 1.0

    @property
    def detail(self) -> str:
        """Which ops."""
        return self.ops

    @classmethod
    def of(cls, recipe: Recipe) -> list[FloatTrunk]:
        """Return both, the one that costs less time first, where ops may be float by choice."""
        return [cls(ops="sums"), cls(ops="all")] if recipe.corrects and recipe.may_leave_float else []

    def propose(self, planned: Planned, evidence: Evidence) -> Choices | None:
        """Return choices with these float.

        None where there are none, where somebody else's hardware has its own times, where all ops between products in float would
        not gain what is asked for, or where less is gained than their time is worth.
        """
        planner, named, plan = evidence.planner, planned.named, planned.plan
        free = [each for each in plan.layers if not each.is_product and each.output not in named]
        able = [each for each in plan.layers if each.weight is not None and each.output not in named and not each.reads_reals]
        sums = dict.fromkeys(_trunk(free, [each.output for each in able if each.output in plan.activations]), _REASON)
        every = {**dict.fromkeys((each.output for each in free), _BETWEEN), **sums}
        chosen = every if self.ops == "all" else sums
        if not chosen or planner.chosen.backends:
            return None
        referee = evidence.runs.referee(plan)
        rounding = referee.rounding(plan)
        before, most = (in_db(referee.error(each.of_activations)) for each in (rounding, _left_float(rounding, plan, every)))
        if most - before < self.min_gain_db:
            return None
        found = planned.choices.with_more(Choices(float_results=chosen)).uncorrected
        other = planner.confirmed(planner.planned(found)).plan  # sums between integer ops run in integers all the same
        worth = _PRICE * worth_db(DataflowView(planner.simple.module["main"]), plan, other)
        asked = evidence.runs.referee(other)
        after = in_db(asked.error(asked.rounding(other).of_activations))
        return found if after - before >= worth else None


def _trunk(layers: Collection[IntegerLayer], products: Sequence[TensorId]) -> list[TensorId]:
    """Return sums of two activations that share one, or read each other, and the results of products that these read."""
    sums = {each.output: each for each in layers if each.op in _SUMS and len(set(each.inputs)) == 2 and not each.constants}
    touched = Counter(name for each in sums.values() for name in (each.output, *each.inputs))
    found = [each for each in sums.values() if any(touched[name] > 1 for name in (each.output, *each.inputs))]
    read = {name for each in found for name in each.inputs}
    return [*(each.output for each in found), *(name for name in products if name in read)]


def _left_float(rounding: Rounding, plan: QuantizationPlan, results: Collection[TensorId]) -> Rounding:
    """Return what a plan rounds where these results stay float, and what is read for them alone: products read copies."""
    layers = {each.output: each for each in plan.layers if each.output not in results or each.is_product}
    read = {name for each in layers.values() for name in each.inputs}
    unrounded = {*results, *(name for each in plan.layers if each.output not in layers for name in each.inputs)} - read
    return replace(
        rounding,
        activations={name: steps for name, steps in rounding.activations.items() if name not in unrounded},
        layers={name: values for name, values in rounding.layers.items() if name in layers},
        rows={**{name: {} for name in layers if name in results}, **rounding.rows},
    )
