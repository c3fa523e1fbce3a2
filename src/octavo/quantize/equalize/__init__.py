"""Equalization: dividing channels of tensors by factors in float, so that one scale suits all channels. Quantizes nothing."""

from ..equalization import Equalization, EqualizedStatistics, ScaledTensor
from .channel_groups import ChannelGroups, find_groups
from .scaling import check_factors, scaled
from .sites import ChannelValues, Site, best_factors, factors_of, find_sites

__all__ = [
    "ChannelGroups",
    "ChannelValues",
    "Equalization",
    "EqualizedStatistics",
    "ScaledTensor",
    "Site",
    "best_factors",
    "check_factors",
    "factors_of",
    "find_groups",
    "find_sites",
    "scaled",
]
