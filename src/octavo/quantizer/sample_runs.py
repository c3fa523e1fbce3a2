"""What running models on the samples that a profile keeps tells of how to quantize one."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass

from ..compiler.float_values import FloatValues
from ..compiler.target_choice import ResolvedTarget, resolve_target
from ..ir.graph import Model
from ..numerics.arrays import Samples
from ..profiling import Profile
from .corrections import Corrector, corrected_on
from .equalization import Equalizer
from .recipe import Recipe


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


def runs_on(
    places: Sequence[int],
    profile: Profile,
    samples: Samples,
    recipe: Recipe,
    *,
    floats: FloatValues,
    beside: Executor,
    has_functions: bool,
) -> SampleRuns:
    """Return what runs models on some of the samples that a profile keeps, on this machine.

    Parameters
    ----------
    places
        Of those samples.
    samples
        All that the profile keeps, as the model takes them.
    floats, beside, has_functions
        See `Equalizer`.
    """
    chosen = [samples[place] for place in places]
    equalizer = Equalizer(
        profile,
        chosen,
        floats,
        beside,
        results=[profile.kept_results[place] for place in places] if profile.kept_results else (),
        only_ranges=recipe.has_plain_ranges,
        has_functions=has_functions,
    )
    few = corrected_on(chosen, recipe)
    return SampleRuns(samples=chosen, few=few, target=resolve_target(None), floats=floats, equalizer=equalizer)
