"""Kernels: TIR kernels by ISA, each equal to its oracle in `numerics` bit for bit; they know no graph."""

from .spec import (
    AddSpec,
    ConcatSpec,
    Conv2dSpec,
    DequantizeSpec,
    Kernel,
    Output,
    Pool2dSpec,
    QuantizeSpec,
    RelabelSpec,
    RequantizeSpec,
)

__all__ = [
    "AddSpec",
    "ConcatSpec",
    "Conv2dSpec",
    "DequantizeSpec",
    "Kernel",
    "Output",
    "Pool2dSpec",
    "QuantizeSpec",
    "RelabelSpec",
    "RequantizeSpec",
]
