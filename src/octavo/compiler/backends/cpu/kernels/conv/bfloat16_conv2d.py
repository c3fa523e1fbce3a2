"""bfloat16 convolution and matmul on machines that multiply bfloat16: the entrance. It checks nothing of the graph."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ..depthwise.x86.bfloat16_depthwise import Bfloat16Depthwise, PlainBfloat16Depthwise
from ..language.isa import ARM_BF16, AVX512_BF16
from ..language.kernel import Kernel
from ..language.schedule import NO_SCHEDULES, Schedules
from .arm.bfloat16_gemm import ArmBfloat16Gemm
from .bfloat16_spec import Bfloat16Conv2dSpec
from .float_conv2d import AVX512_COLUMNS, GENERIC_PIXELS
from .spec import gemm_kind
from .x86.bfloat16_gemm import Bfloat16Gemm


def bfloat16_conv2d(
    spec: Bfloat16Conv2dSpec,
    *,
    weight: npt.NDArray[np.float32],
    bias: npt.NDArray[np.float32],
    extension: str = AVX512_BF16,
    schedules: Schedules = NO_SCHEDULES,
) -> Kernel:
    """Return a kernel of clamp(conv2d(x, weight) + bias + addend).

    Parameters
    ----------
    spec
        Shapes, padding, groups, clamp, threads, and what is stored as what.
    weight
        float32 HWIO, rounded here: (kernel_h, kernel_w, in_channels / groups, out_channels).
    bias
        float32 (out_channels,).
    extension
        AVX512_BF16 or ARM_BF16, whose products add up otherwise.
    schedules
        Chosen tiles; without one for this kernel it chooses its own.
    """
    if spec.groups == spec.in_channels == spec.out_channels > 1 and not spec.adds:
        name = f"bfloat16.depthwise.{spec.kernel[0]}x{spec.kernel[1]}"
        if extension == ARM_BF16:
            return PlainBfloat16Depthwise(spec, weight, bias, columns=GENERIC_PIXELS).build(name, extension)
        return Bfloat16Depthwise(spec, weight, bias, columns=AVX512_COLUMNS).build(name, extension)
    gemm = ArmBfloat16Gemm if extension == ARM_BF16 else Bfloat16Gemm
    return gemm(spec, weight, bias, schedules=schedules).build(f"bfloat16.{gemm_kind(spec)}", extension)


def bfloat16_matmul(
    spec: Bfloat16Conv2dSpec,
    *,
    weight: npt.NDArray[np.float32],
    bias: npt.NDArray[np.float32],
    extension: str = AVX512_BF16,
    schedules: Schedules = NO_SCHEDULES,
) -> Kernel:
    """Return a kernel of clamp(x @ weight + bias + addend); `spec` has one pixel for each row of x, weight is (in, out)."""
    gemm = ArmBfloat16Gemm if extension == ARM_BF16 else Bfloat16Gemm
    return gemm(spec, weight[np.newaxis, np.newaxis], bias, schedules=schedules).build("bfloat16.matmul", extension)
