"""Ranges: which integers stand for which numbers of a tensor. Each estimator has one line here that registers it."""

from .entropy import Entropy
from .estimator import QuantScheme, Range, RangeEstimator, ScaledTensor, TensorRange, range_of, width
from .mse import Mse
from .observed import Auto, GlobalScale, Mean, MinMax, Percentile
from .registry import (
    range_estimator,
    range_estimator_help,
    range_estimator_names,
    range_previews,
    register_range_estimator,
    takes_only_ends,
)

# Reports compare the others with the first.
register_range_estimator("min_max", MinMax, only_ends=True)
register_range_estimator("percentile", Percentile, previews=(99.99, 99.9, 99.0))
register_range_estimator("mse", Mse)
register_range_estimator("entropy", Entropy)
register_range_estimator("mean", Mean)
register_range_estimator("global_scale", GlobalScale, only_ends=True)
register_range_estimator("auto", Auto, is_preview=False, only_ends=True)  # without samples it is min_max

__all__ = [
    "Auto",
    "Entropy",
    "GlobalScale",
    "Mean",
    "MinMax",
    "Mse",
    "Percentile",
    "QuantScheme",
    "Range",
    "RangeEstimator",
    "ScaledTensor",
    "TensorRange",
    "range_estimator",
    "range_estimator_help",
    "range_estimator_names",
    "range_of",
    "range_previews",
    "register_range_estimator",
    "takes_only_ends",
    "width",
]
