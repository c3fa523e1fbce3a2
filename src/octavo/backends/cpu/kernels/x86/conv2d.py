"""Which x86 kernel computes a convolution or a matmul."""

from __future__ import annotations

from ..isa import AVX2
from ..schedule import NO_SCHEDULES, Schedules
from ..spec import Conv2dSpec, Kernel, gemm_kind
from .depthwise import Depthwise
from .implicit_gemm import ImplicitGemm
from .packing import Weights
from .word_depthwise import WordDepthwise
from .word_gemm import WordGemm


def conv2d_x86(spec: Conv2dSpec, weights: Weights, *, isa: str, schedules: Schedules = NO_SCHEDULES) -> Kernel:
    """Return the kernel of a convolution."""
    if spec.groups == spec.in_channels > 1:
        name = f"depthwise.{spec.kernel[0]}x{spec.kernel[1]}"
        if isa == AVX2:
            return WordDepthwise(spec, weights, schedules=schedules).build(name)
        return Depthwise(spec, weights, isa=isa, schedules=schedules).build(name)
    return _gemm_of(isa)(spec, weights, isa=isa, schedules=schedules).build(f"conv2d.{gemm_kind(spec)}")


def matmul_x86(spec: Conv2dSpec, weights: Weights, *, isa: str, schedules: Schedules = NO_SCHEDULES) -> Kernel:
    """Return the kernel of a matmul, as a pointwise convolution over an image of one column."""
    return _gemm_of(isa)(spec, weights, isa=isa, schedules=schedules).build("matmul")


def _gemm_of(isa: str) -> type[ImplicitGemm]:
    return WordGemm if isa == AVX2 else ImplicitGemm
