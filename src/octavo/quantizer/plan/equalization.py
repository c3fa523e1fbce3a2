"""What equalization tells of a model, as data: the factors of its tensors, and the statistics of what they are then."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ...ir.channels import Rotation
from ...ir.identity import TensorId
from ...numerics.arrays import equal_arrays
from ..ranges import ScaledTensor


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Equalization:
    """What is done to a model's channels before anything is quantized: tensors are rotated, and then divided by factors.

    Parameters
    ----------
    factors
        float32, by tensor: of its rank, 1 along axes that they don't depend on. A value of the source is that of the equalized
        model times its factor.
    clamps
        The tensors whose clip is left to saturation: each channel's own bound, of the shape of the factors. No integer of the
        tensor may stand for more.
    sites
        Tensors that share factors, site by site.
    statistics
        Of the tensors that were divided.
    uneven
        Tensors whose channels no factors can even out and that had better stay float, each with the reason.
    rotations
        By tensor which channels are rotated before that.
    rotated
        Statistics of these tensors, not divided.
    """

    factors: Mapping[TensorId, npt.NDArray[np.float32]] = field(default_factory=dict[TensorId, "npt.NDArray[np.float32]"])
    clamps: Mapping[TensorId, npt.NDArray[np.float32]] = field(default_factory=dict[TensorId, "npt.NDArray[np.float32]"])
    sites: tuple[tuple[TensorId, ...], ...] = ()
    statistics: Mapping[TensorId, ScaledTensor] = field(default_factory=dict[TensorId, ScaledTensor])
    uneven: Mapping[TensorId, str] = field(default_factory=dict[TensorId, str])
    rotations: Mapping[TensorId, Rotation] = field(default_factory=dict[TensorId, Rotation])
    rotated: Mapping[TensorId, ScaledTensor] = field(default_factory=dict[TensorId, ScaledTensor])

    def __bool__(self) -> bool:
        """Whether anything is rotated or divided."""
        return bool(self.factors or self.rotations)

    def __eq__(self, other: object) -> bool:
        """Return whether both divide the same tensors by the same factors; the rest follows from running the model."""
        is_one = isinstance(other, Equalization) and self.rotations == other.rotations
        return is_one and equal_arrays(self.factors, other.factors)

    __hash__ = None  # pyright: ignore[reportAssignmentType]  # it holds arrays

    def without_sites_of(self, tensors: Collection[TensorId]) -> Equalization:
        """Return it without what shares factors with these tensors."""
        gone = {name for site in self.sites if not set(site).isdisjoint(tensors) for name in site}
        return replace(
            self,
            factors={key: value for key, value in self.factors.items() if key not in gone},
            clamps={key: value for key, value in self.clamps.items() if key not in gone},
            statistics={key: value for key, value in self.statistics.items() if key not in gone},
            sites=tuple(site for site in self.sites if gone.isdisjoint(site)),
            uneven={},
        )


def equalized_statistics(profile: Any, equalization: Equalization) -> Mapping[TensorId, Any]:
    """Return a profile's statistics, those of rotated and divided tensors in place of their source's."""
    maps: list[Any] = [{}, equalization.statistics, equalization.rotated, profile]
    return ChainMap(*maps)
