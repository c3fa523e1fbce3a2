"""Evidence: what steps may ask of a model before they propose something. It decides nothing."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from ...ir.graph.model import Model
from ..corrections import Corrector
from ..plan import QuantizationPlan
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
    _referees: list[Referee] = field(default_factory=list[Referee])

    @cached_property
    def exact(self) -> Model:
        """The float model, simplified and equalized: its variables are those that become integer."""
        return self.planner.form(self.equalization).exact

    def referee(self, plan: QuantizationPlan) -> Referee | None:
        """Return what scores plans that round no more than this one; None where TVM's virtual machine alone can run the model."""
        found = next((each for each in self._referees if each.covers(plan)), None)
        if found is None:
            try:
                found = Referee(self.exact, plan, self.runs.samples, self.runs.target, is_equalized=True)
            except NotImplementedError:
                return None
            self._referees[:] = [found]
        return found

    @cached_property
    def corrector(self) -> Corrector:
        """What corrects models, and measures them."""
        return self.runs.corrector(self.exact)
