"""Which x86 kernel computes a convolution or a matmul."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt

from ..isa import AVX2
from ..schedule import NO_SCHEDULES, Schedules
from ..spec import Conv2dSpec, Kernel
from .depthwise import Depthwise
from .implicit_gemm import ImplicitGemm
from .packing import Weights
from .word_depthwise import WordDepthwise
from .word_gemm import WordGemm


def conv2d_x86(
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
    weights = Weights.of(spec, weight=weight, weight_zero_point=weight_zero_point, bias=bias, multiplier=multiplier)
    if spec.groups == spec.in_channels > 1:
        name = f"depthwise.{spec.kernel[0]}x{spec.kernel[1]}"
        if isa == AVX2:
            return WordDepthwise(spec, weights, schedules=schedules).build(name)
        return Depthwise(spec, weights, isa=isa, schedules=schedules).build(name)
    gemm = _gemm_of(isa)(spec, weights, isa=isa, schedules=schedules)
    if spec.kernel == (1, 1) and spec.strides == (1, 1) and not any(spec.padding):
        return gemm.build("conv2d.pointwise")
    return gemm.build("conv2d.direct" if spec.groups == 1 else "conv2d.grouped")


def matmul_x86(
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
    return _gemm_of(isa)(spec, weights, isa=isa, schedules=schedules).build("matmul")


def _gemm_of(isa: str) -> type[ImplicitGemm]:
    return WordGemm if isa == AVX2 else ImplicitGemm
