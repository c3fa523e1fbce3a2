"""Ranges: which integers stand for which numbers of a tensor. One file for each estimator, one line here that registers it."""

from .estimator import QuantScheme, RangeEstimator, TensorRange
from .min_max import MinMax
from .percentile import Percentile
from .registry import (
    range_estimator,
    range_estimator_help,
    range_estimator_names,
    range_previews,
    register_range_estimator,
)
from .shared import SharedRanges
from .sources import RangeSources

# Reports compare the others with the first.
register_range_estimator("min_max", MinMax)
register_range_estimator("percentile", Percentile, previews=(99.99, 99.9, 99.0))

__all__ = [
    "MinMax",
    "Percentile",
    "QuantScheme",
    "RangeEstimator",
    "RangeSources",
    "SharedRanges",
    "TensorRange",
    "range_estimator",
    "range_estimator_help",
    "range_estimator_names",
    "range_previews",
    "register_range_estimator",
]
