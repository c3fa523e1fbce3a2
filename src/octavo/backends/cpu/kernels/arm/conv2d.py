"""Which ARM kernel computes a convolution or a matmul."""

from __future__ import annotations

from ..schedule import NO_SCHEDULES, Schedules
from ..spec import Conv2dSpec, Kernel, gemm_kind
from ..x86.packing import Weights
from .gemm import ArmGemm


def has_kernel(spec: Conv2dSpec) -> bool:
    """Return whether there is a kernel of a convolution here: depthwise ones are the generic kernel's."""
    return not spec.groups == spec.in_channels > 1


def conv2d_arm(spec: Conv2dSpec, weights: Weights, *, isa: str, schedules: Schedules = NO_SCHEDULES) -> Kernel:
    """Return the kernel of a convolution."""
    return ArmGemm(spec, weights, isa=isa, schedules=schedules).build(f"conv2d.{gemm_kind(spec)}")


def matmul_arm(spec: Conv2dSpec, weights: Weights, *, isa: str, schedules: Schedules = NO_SCHEDULES) -> Kernel:
    """Return the kernel of a matmul, as a pointwise convolution over an image of one column."""
    return ArmGemm(spec, weights, isa=isa, schedules=schedules).build("matmul")
