"""Evidence: what steps may ask of a model before they propose something. It decides nothing."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from functools import cached_property

from ...ir.graph.model import Model
from ...ir.identity import TensorId
from ..last import Last
from ..plan import QuantizationPlan
from ..plan.corrections import Corrections
from ..plan.equalization import Equalization
from ..planner import Planner
from ..referee import Referee
from ..sample_runs import SampleRuns


@dataclass(frozen=True, kw_only=True, eq=False)
class Evidence:
    """What choices make of a model, and what running that on samples tells, of one equalization.

    Parameters
    ----------
    planner
        Makes models of choices.
    runs
        Runs models on samples.
    """

    planner: Planner
    runs: SampleRuns
    equalization: Equalization
    _last_effects: Last[dict[TensorId, float]] = field(default_factory=Last["dict[TensorId, float]"])

    @cached_property
    def exact(self) -> Model:
        """The float model, simplified and equalized: its variables are those that become integer."""
        return self.planner.form(self.equalization).exact

    def referee(self, plan: QuantizationPlan) -> Referee | None:
        """Return what scores plans that round no more than this one; None where TVM's virtual machine alone can run the model."""
        return self.runs.referee(plan)

    def effects(self, referee: Referee, plan: QuantizationPlan) -> dict[TensorId, float]:
        """Return what rounding each activation of a plan costs alone; see `Referee.effects`."""
        return self._last_effects.find(plan, lambda: referee.effects(referee.rounding(plan)))

    def corrections(self, plan: QuantizationPlan, kept: Collection[str]) -> Corrections:
        """Return weights and biases with which a plan's outputs are nearer; the parameters of what is `kept` stay."""
        return self.runs.corrections(plan, kept)
