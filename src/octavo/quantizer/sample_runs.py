"""What running models on the samples that a profile keeps tells of how to quantize one."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from ..compiler.float_values import FloatValues
from ..compiler.target_choice import ResolvedTarget
from ..ir.graph import Model
from ..ir.identity import TensorId
from .choices import Choices
from .corrections import Corrector
from .corrections.correct import Samples
from .equalization import Equalizer
from .plan import QuantizationPlan, QuantizedModel
from .simulation import fused_functions, less_rounding, ranked_by_effect


@dataclass(kw_only=True, eq=False)
class SampleRuns:
    """Samples, and what runs models on them.

    Parameters
    ----------
    samples
        The model's inputs, sample by sample; one at least.
    few
        Those of them that say how to correct weights and biases.
    target
        Whose kernels compute models here.
    floats
        What runs float models, and need not build one twice.
    equalizer
        Chooses the factors that even out channels; None where a plan has them.
    """

    samples: Samples
    few: Samples
    target: ResolvedTarget
    floats: FloatValues
    equalizer: Equalizer | None = None

    def corrector(self, simple: Model) -> Corrector:
        """Return what corrects quantized models of a simplified float model, and says how near they come to it."""
        return Corrector(simple, samples=self.few, target=self.target, floats=self.floats)

    def less_rounding(
        self,
        simple: Model,
        quantized: QuantizedModel,
        goal_db: float,
        replan: Callable[[Choices], QuantizationPlan],
        *,
        only_ranges: bool,
    ) -> Choices:
        """Return what to change for outputs to have a signal to noise ratio in dB; see `simulation.less_rounding`."""
        return less_rounding(
            simple, quantized, goal_db, replan, only_ranges=only_ranges, samples=self.samples, target=self.target
        )

    def ranked_by_effect(self, simple: Model, quantized: QuantizedModel) -> Sequence[TensorId]:
        """Return the activations whose rounding the outputs feel, the worst first."""
        return ranked_by_effect(simple, quantized, samples=self.samples, target=self.target)

    def fused_functions(self, simple: Model, quantized: QuantizedModel, able: Collection[TensorId]) -> Mapping[TensorId, str]:
        """Return which of these products' results are best not rounded before a function of them, with the reasons."""
        return fused_functions(simple, quantized, able, samples=self.samples, target=self.target)
