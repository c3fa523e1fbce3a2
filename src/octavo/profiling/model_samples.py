"""The samples that a profile keeps, as a model takes them. It runs nothing."""

from __future__ import annotations

from ..errors import DataError, ProfileError
from ..ir.graph import Model
from ..ir.graph.inputs import input_specs
from ..numerics.arrays import Samples
from ..runtime.inputs import check_inputs
from .model_profile import Profile


def samples_of(model: Model, profile: Profile, needed_to: str = "") -> Samples:
    """Return the samples that a profile keeps, as the model takes them.

    Parameters
    ----------
    needed_to
        What there must be some for, in words: "search with".

    Raises
    ------
    ProfileError
        They are none of this model, or there are none and they are needed.
    """
    specs = input_specs(model)
    if needed_to and not profile.kept_samples:
        raise ProfileError(f"the profile keeps no samples to {needed_to}: profile the model with keep_samples=64")
    try:
        return [
            check_inputs(specs, {spec.source_name: array for spec, array in zip(specs, arrays, strict=True)})
            for arrays in profile.kept_samples
        ]
    except (ValueError, DataError) as error:
        raise ProfileError(
            f"the samples that the profile keeps do not fit the model: {error}; profile it again, or, where "
            "sizes were open then, quantize it so and fix them in what comes of it"
        ) from error
