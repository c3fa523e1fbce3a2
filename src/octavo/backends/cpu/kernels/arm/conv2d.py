"""Which ARM kernel computes a convolution or a matmul."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy.typing as npt

from ..generic.conv2d import conv2d_generic
from ..schedule import NO_SCHEDULES, Schedules
from ..spec import Conv2dSpec, Kernel
from ..x86.packing import Weights
from .gemm import ArmGemm


def conv2d_arm(
    spec: Conv2dSpec,
    *,
    weight: npt.NDArray[Any],
    weight_zero_point: Any,
    bias: npt.NDArray[Any],
    multiplier: npt.NDArray[Any],
    isa: str,
    schedules: Schedules = NO_SCHEDULES,
) -> Kernel:
    """Return the kernel of a convolution; see `octavo.kernels.conv2d` for the operands."""
    operands: dict[str, Any] = {
        "weight": weight,
        "weight_zero_point": weight_zero_point,
        "bias": bias,
        "multiplier": multiplier,
    }
    if spec.groups == spec.in_channels > 1:
        return replace(conv2d_generic(spec, **operands), isa=isa)
    gemm = ArmGemm(spec, Weights.of(spec, **operands), isa=isa, schedules=schedules)
    if spec.kernel == (1, 1) and spec.strides == (1, 1) and not any(spec.padding):
        return gemm.build("conv2d.pointwise")
    return gemm.build("conv2d.direct" if spec.groups == 1 else "conv2d.grouped")


def matmul_arm(
    spec: Conv2dSpec,
    *,
    weight: npt.NDArray[Any],
    weight_zero_point: Any,
    bias: npt.NDArray[Any],
    multiplier: npt.NDArray[Any],
    isa: str,
    schedules: Schedules = NO_SCHEDULES,
) -> Kernel:
    """Return the kernel of a matmul, as a pointwise convolution over an image of one column."""
    weights = Weights.of(spec, weight=weight, weight_zero_point=weight_zero_point, bias=bias, multiplier=multiplier)
    return ArmGemm(spec, weights, isa=isa, schedules=schedules).build("matmul")
