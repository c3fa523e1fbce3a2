"""The samples that a profile keeps, as a model takes them. It runs nothing."""

from __future__ import annotations

from ..errors import DataError, ProfileError
from ..ir.graph import Model
from ..ir.graph.inputs import input_specs
from ..numerics.arrays import Samples
from ..profiling import Profile
from ..runtime.inputs import check_inputs


def samples_of(model: Model, profile: Profile) -> Samples:
    """Return the samples that a profile keeps, as the model takes them.

    Raises
    ------
    ProfileError
        They are none of this model.
    """
    specs = input_specs(model)
    try:
        return [
            check_inputs(specs, {spec.source_name: array for spec, array in zip(specs, arrays, strict=True)})
            for arrays in profile.kept_samples
        ]
    except (ValueError, DataError) as error:
        raise ProfileError(f"the samples that the profile keeps do not fit the model: {error}; profile it again") from error
