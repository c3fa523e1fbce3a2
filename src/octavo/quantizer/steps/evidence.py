"""Evidence: what steps may ask of a model before they propose something. It decides nothing."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from ...ir.graph.model import Model
from ..corrections import Corrector
from ..plan.equalization import Equalization
from ..planner import Planner
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

    @cached_property
    def exact(self) -> Model:
        """The float model, simplified and equalized: its variables are those that become integer."""
        return self.planner.form(self.equalization).exact

    @cached_property
    def corrector(self) -> Corrector:
        """What corrects models, and measures them."""
        return self.runs.corrector(self.exact)
