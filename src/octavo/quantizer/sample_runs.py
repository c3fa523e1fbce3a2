"""What running models on the samples that a profile keeps tells of how to quantize one."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from ..ir.graph import Model
from ..ir.graph.constants import Constants
from ..ir.graph.dataflow import DataflowView, static_shape
from ..ir.graph.weighted import weighted_ops
from ..numerics.arrays import Samples
from ..profiling import Profile
from ..runtime.shapes import typical
from .corrections import Corrector, corrected_on
from .equalization import Equalizer
from .last import Last
from .plan import Corrections, QuantizationPlan
from .planner import Planner
from .programs import Programs
from .referee import Referee, RoundedProgram

_MIN_READS = 256
"""Of each weight by all samples: to find factors, weights are read and written some dozen times in float64."""


@dataclass(kw_only=True, slots=True, eq=False)
class SampleRuns:
    """Samples of one float model, one at least, the few that say how to correct weights and biases, and what runs it on them.

    Other samples may have the same programs. The equalizer chooses factors that even out channels; there is none where a plan has
    them.
    """

    samples: Samples
    few: Samples
    programs: Programs
    equalizer: Equalizer | None = None
    _last_referee: Last[Referee] = field(default_factory=Last[Referee])
    _last_corrector: Last[Corrector] = field(default_factory=Last[Corrector])

    def program(self, plan: QuantizationPlan) -> RoundedProgram:
        """Return what runs the model rounded as a plan says; see `Programs.of`, also for what it raises, as the others do."""
        return self.programs.of(plan, self.equalizer)

    def referee(self, plan: QuantizationPlan) -> Referee:
        """Return what scores plans that round no more than this one."""
        program, before = self.program(plan), self._last_referee.value
        return self._last_referee.find(program, lambda: Referee(program, self.samples, before=before))

    def corrections(self, plan: QuantizationPlan, kept: Collection[str]) -> Corrections:
        """Return weights and biases with which a plan's outputs are nearer; the parameters of what is `kept` stay."""
        program = self.program(plan)
        return self._last_corrector.find(program, lambda: Corrector(program, self.few)).corrections(plan, kept)


def may_divide(simple: Model, samples: int) -> bool:
    """Return whether channels may be divided or rotated, for which weights are written anew time and again, with all of them.

    Of a large model that takes longer than all the rest, and as much memory again, where samples read each weight a few times:
    and so few rows say little of its channels.
    """
    if not simple.is_large:
        return True
    view = DataflowView(simple.module["main"])
    constants = Constants(view, simple.params)
    products, weights = 0, 0
    for _, op in weighted_ops(view, constants):
        rows = typical(math.prod(static_shape(op.call) or ())) // op.channels
        products, weights = products + rows * op.weight.size, weights + op.weight.size
    return samples * products >= _MIN_READS * weights


def runs_on(planner: Planner, profile: Profile, samples: Samples, places: Sequence[int], programs: Programs) -> SampleRuns:
    """Return what runs a planner's model on this machine, on those at some places of all samples that its profile keeps."""
    chosen = [samples[place] for place in places]
    equalizer = Equalizer(
        profile,
        chosen,
        programs.floats,
        results=[profile.kept_results[place] for place in places] if profile.kept_results else (),
        only_ranges=planner.recipe.has_plain_ranges,
        has_functions=planner.has_functions,
    )
    return SampleRuns(samples=chosen, few=corrected_on(chosen, planner.recipe), programs=programs, equalizer=equalizer)
