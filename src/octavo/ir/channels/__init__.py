"""Channels of a float graph that are divided by factors or rotated together, so that it computes the same. It chooses none."""

from .channel_groups import ChannelGroups, Groups, Reader, weight_groups
from .group_finder import find_groups
from .rotating import forget_rotated, rotated
from .rotations import Rotation, RotationSite, find_rotatable
from .scaling import Factors, gains_of_functions, scaled
from .sites import Site, find_sites

__all__ = [
    "ChannelGroups",
    "Factors",
    "Groups",
    "Reader",
    "Rotation",
    "RotationSite",
    "Site",
    "find_groups",
    "find_rotatable",
    "find_sites",
    "forget_rotated",
    "gains_of_functions",
    "rotated",
    "scaled",
    "weight_groups",
]
