"""Measuring one candidate: quantized, compiled, scored, its cost modelled. It knows no other candidates and keeps no list."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from ...compiler.compile import compile_model
from ...compiler.explanation import FLOAT_BYTES, ExplainedOp, Explanation, memory_cycles
from ...compiler.target_choice import TargetLike
from ...ir.graph import Model
from ...numerics.arrays import Samples
from ...profiling.model_profile import Profile
from ...quantizer.compile import explain
from ...runtime.executable import Executable
from ..plan.plan import QuantizationPlan, QuantizedModel
from ..quantize import quantize_with
from ..recipe import Recipe
from .result import Change
from .scoring import Evaluate, Score, Scorer

Cost = Callable[[Executable], float]


@dataclass(frozen=True, kw_only=True, slots=True)
class Measurement:
    """What a candidate is; `cost` in the unit in which costs are."""

    plan: QuantizationPlan
    score: Score
    cost: float


@dataclass(kw_only=True, slots=True, eq=False)
class Bench:
    """Measures candidates of one model, as `search` was asked to.

    Parameters
    ----------
    model, profile, target, recipe, evaluate, cost
        As `search` takes them.
    samples
        On which candidates are compared with the float model.
    """

    model: Model
    profile: Profile
    target: TargetLike
    recipe: Recipe
    samples: Samples
    evaluate: Evaluate | None
    cost: Cost | None
    _scorer: Scorer | None = field(init=False, default=None)

    def compare_with_float(self, float_metric: float | None) -> tuple[Scorer, Executable]:
        """Run the float model: before anything is measured. Its metric is worked out where it is not known."""
        executable = compile_model(self.model)
        self._scorer = Scorer(self.model, executable, self.samples, self.evaluate, float_metric)
        return self._scorer, executable

    def quantized(self, change: Change) -> QuantizedModel:
        """Return a candidate's model."""
        recipe = self.recipe if change.range_estimator is None else replace(self.recipe, range_estimator=change.range_estimator)
        if not change.keeps_min_sqnr:
            recipe = replace(recipe, min_sqnr=None)
        if not change.corrects:
            recipe = replace(recipe, weight_rounding="nearest", bias_correction=False)
        return quantize_with(self.model, self.profile, change.choices, target=self.target, recipe=recipe)

    def measure(self, quantized: QuantizedModel, check: Callable[[], None]) -> Measurement:
        """Compile and measure; `check` is called between the two."""
        assert self._scorer is not None, "the float model is run first"
        executable = compile_model(quantized, target=self.target)
        check()
        return Measurement(plan=quantized.plan, score=self._scorer.score(executable), cost=self.cost_of(executable))

    def cost_of(self, executable: Executable) -> float:
        """Return what running an executable costs."""
        return cycles_of(explain(executable)).total if self.cost is None else float(self.cost(executable))


@dataclass(frozen=True, kw_only=True, slots=True)
class Cycles:
    """Cycles of one inference on a core with 512-bit vectors and VNNI, of products and results alone: only ratios mean much."""

    ops: tuple[ExplainedOp, ...]

    @property
    def total(self) -> float:
        """Of all ops."""
        return sum(op.cycles(is_integer=op.integer) for op in self.ops)

    def more_in_float(self, tensor: str) -> float:
        """Return how many more the op takes that makes a tensor, if it is float; 0 for one that is."""
        made = [op for op in self.ops if tensor in (op.tensor, op.core) and op.integer]
        return sum(op.cycles(is_integer=False) - op.cycles(is_integer=True) for op in made[:1])

    @staticmethod
    def extra_float_traffic(values: int) -> float:
        """Return how many more it takes to write and read values as float."""
        return memory_cycles(values * (FLOAT_BYTES - 1))


def cycles_of(explanation: Explanation) -> Cycles:
    """Return what the ops of a model cost."""
    return Cycles(ops=explanation.ops)
