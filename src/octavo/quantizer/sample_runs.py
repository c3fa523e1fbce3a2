"""What running models on the samples that a profile keeps tells of how to quantize one."""

from __future__ import annotations

from dataclasses import dataclass

from ..compiler.float_values import FloatValues
from ..compiler.target_choice import ResolvedTarget
from ..ir.graph import Model
from .corrections import Corrector
from .corrections.correct import Samples
from .equalization import Equalizer


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
