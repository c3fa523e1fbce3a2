"""Convolution and matmul of int16 activations: one entrance for every instruction set."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ....numerics.rounding.requantize import Multiplier
from .generic.int16_conv2d import int16_conv2d_generic
from .int16_spec import Int16Conv2dSpec
from .isa import X86_ISAS, lanes_of
from .schedule import NO_SCHEDULES, Schedules
from .spec import Kernel
from .x86.int16_gemm import Int16Gemm

_MIN_INPUTS = 8
"""Inputs of a group below which pairs and panels are mostly padding, unless one group has them all."""


def int16_conv2d(
    spec: Int16Conv2dSpec,
    *,
    weight: npt.NDArray[np.integer],
    bias: npt.NDArray[np.int64],
    multiplier: Multiplier,
    isa: str,
    schedules: Schedules = NO_SCHEDULES,
) -> Kernel:
    """Return a kernel that computes `numerics.conv2d`, bit for bit.

    Parameters
    ----------
    spec
        Shapes, padding, groups, zero points, clamp and threads.
    weight
        HWIO less the zero points: (kernel_h, kernel_w, in_channels / groups, out_channels), values in [-255; 255].
    bias
        int64 (out_channels,).
    multiplier
        Fixed-point or float32, one for all channels or one for each. The caller proves that fixed-point products fit int64.
    isa
        One of `KNOWN_ISAS`.
    schedules
        Those measured to be best, by key; a kernel that isn't among them chooses its own.

    Raises
    ------
    TargetError
        If the ISA is unknown.
    """
    lanes_of(isa)  # an unknown ISA is refused
    shape = (*spec.kernel, spec.in_channels // spec.groups, spec.out_channels)
    assert weight.shape == shape, f"weights are {shape}, got {weight.shape}"
    assert int(np.abs(weight).max(initial=0)) <= 255, "weights less their zero points have 9 bits"
    if isa not in X86_ISAS or (spec.groups > 1 and weight.shape[2] < _MIN_INPUTS):
        return int16_conv2d_generic(spec, weight=weight, bias=bias, multiplier=multiplier)
    pointwise = spec.kernel == (1, 1) and spec.strides == (1, 1) and not any(spec.padding)
    kind = "pointwise" if pointwise else "grouped" if spec.groups > 1 else "direct"
    return Int16Gemm(spec, weight, bias, multiplier, isa=isa, schedules=schedules).build(
        "matmul" if pointwise and spec.in_width == 1 else f"conv2d.{kind}"
    )
