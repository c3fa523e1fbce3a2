"""Which ARM kernel computes a convolution or a matmul."""

from __future__ import annotations

from .......runtime.size import is_open
from ...depthwise.arm.dot_depthwise import DotDepthwise
from ...depthwise.arm.widening_depthwise import WideningDepthwise
from ...language.isa import ARM_I8MM, ARM_NEON
from ...language.kernel import Kernel
from ...language.schedule import NO_SCHEDULES, Schedules
from ..loops.packing import Weights
from ..spec import Conv2dSpec, gemm_kind
from .gemm import ArmGemm


def conv2d_arm(spec: Conv2dSpec, weights: Weights, *, isa: str, schedules: Schedules = NO_SCHEDULES) -> Kernel:
    """Return the kernel of a convolution."""
    if not spec.groups == spec.in_channels > 1:
        return ArmGemm(spec, weights, isa=isa, schedules=schedules).build(f"conv2d.{gemm_kind(spec)}")
    name = f"depthwise.{spec.kernel[0]}x{spec.kernel[1]}"
    if isa != ARM_NEON and not is_open(spec.in_width):
        dots = DotDepthwise(spec, weights, isa=isa)  # which of the two it is, no schedule changes
        # On cores with two pipes for vectors, those before i8mm, interleaving pays where it serves several rows, or saves words.
        if isa == ARM_I8MM or dots.keeps_rows or weights.zero_points.any():
            measured = DotDepthwise(spec, weights, isa=isa, schedules=schedules) if dots.key in schedules else dots
            return measured.build(name)
    return WideningDepthwise(spec, weights, isa=isa, schedules=schedules).build(name)


def matmul_arm(spec: Conv2dSpec, weights: Weights, *, isa: str, schedules: Schedules = NO_SCHEDULES) -> Kernel:
    """Return the kernel of a matmul, as a pointwise convolution over an image of one column."""
    return ArmGemm(spec, weights, isa=isa, schedules=schedules).build("matmul")
