"""Numerics: the one definition of every integer operation, in NumPy. Imports no TVM."""

from .quant_params import INTEGER_RANGE, Granularity, PerAxis, PerTensor, QuantParams

__all__ = ["INTEGER_RANGE", "Granularity", "PerAxis", "PerTensor", "QuantParams"]
