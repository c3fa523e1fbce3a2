"""What the kernels of 16-bit activations are asked to compute, and how their integers are scaled in TIR. They know no graph.

Activations are int16 as the source has them, without relabelling; weights are at most 9 bits, less their zero points.
"""

from __future__ import annotations

from dataclasses import dataclass

from .spec import Conv2dSpec, Output

INT16 = Output(zero_point=0, qmin=-32768, qmax=32767)
"""A symmetric int16 result without a clamp of its own."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Int16Conv2dSpec(Conv2dSpec):
    """A convolution of int16 activations to int16: zero points and clamp lie in [-32768; 32767]."""

    input_zero_point: int = 0
    output: Output = INT16


@dataclass(frozen=True, kw_only=True, slots=True)
class Int16MeanSpec:
    """The mean of symmetric int16 x [outer, count, inner] over its middle axis, to int16 [outer, inner]."""

    outer: int
    count: int
    inner: int
    in_scale: float
    out_scale: float
    output: Output = INT16
    threads: int = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Int16SoftmaxSpec:
    """int16 [rows, columns] to int16 of scale 1 / 32768; `beta` multiplies the input."""

    rows: int
    columns: int
    scale: float
    beta: float = 1.0
    output: Output = INT16
    threads: int = 1
