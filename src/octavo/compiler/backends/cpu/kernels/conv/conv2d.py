"""Convolution and matmul: one entrance for every instruction set.

It checks nothing of the graph and picks no ISA; the caller names one that its target has.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from ......ir.composites.outputs import FloatOutput, FunctionOutput, Output, SumOutput
from ......numerics.rounding.narrow_accumulator import NarrowAccumulator
from ......numerics.rounding.requantize import Multiplier
from ......runtime.size import is_open
from ..language.isa import checked_isa
from ..language.kernel import Kernel
from ..language.schedule import NO_SCHEDULES, Schedules
from .arm.conv2d import conv2d_arm, matmul_arm
from .arm.wide_gemm import ArmWideGemm
from .arm.wide_gemm import fits as fits_bytes
from .generic.conv2d import conv2d_generic
from .generic.wide_conv2d import wide_conv2d_generic
from .loops.packing import Weights
from .spec import Conv2dSpec, gemm_kind
from .x86.conv2d import conv2d_x86, matmul_x86
from .x86.pair_gemm import PairGemm

_MIN_INPUTS = 8
"""Inputs of a group of int16 below which pairs and panels are mostly padding, unless one group has them all."""


def _of_family(
    x86: Callable[..., Kernel],
    arm: Callable[..., Kernel],
    spec: Conv2dSpec,
    operands: Mapping[str, Any],
    isa: str,
    schedules: Schedules,
) -> Kernel:
    """Return the kernel that the ISA's family has, or the generic one."""
    family = checked_isa(isa).family
    if family == "generic":
        return replace(conv2d_generic(spec, **operands), isa=isa)
    return (x86 if family == "x86" else arm)(spec, Weights.of(spec, **operands), isa=isa, schedules=schedules)


def conv2d(
    spec: Conv2dSpec,
    *,
    weight: npt.NDArray[np.integer],
    weight_zero_point: int | npt.NDArray[np.int32],
    bias: npt.NDArray[np.int32 | np.int64 | np.float32],
    multiplier: Multiplier,
    isa: str,
    schedules: Schedules = NO_SCHEDULES,
) -> Kernel:
    """Return a kernel that computes `octavo.numerics.conv2d`, bit for bit.

    With a FloatOutput its result is float32, `octavo.numerics.dequantize_accumulator` of `conv2d_accumulate`; with a SumOutput
    int32, the latter; with a FunctionOutput uint8 of a function of that float32.

    Parameters
    ----------
    spec
        Shapes, padding, groups, zero points, clamp and threads.
    weight
        int8 HWIO: (kernel_h, kernel_w, in_channels / groups, out_channels).
    weight_zero_point
        In [-128; 127], a number or int32 (out_channels,); 0 is symmetric. For int16 activations, weights less their zero points
        have 9 bits.
    bias
        int32 (out_channels,). The caller proves with `octavo.numerics.check_accumulator` that no accumulator overflows.
        int64 for int16 activations, whose sums may have 64 bits: the caller proves that fixed-point products fit them.
        For an output with `real_bias` float32, added after scaling: real numbers, or for an Output these over out_scale.
    multiplier
        float32 (out_channels,), or a number; from `octavo.numerics.requantize_multiplier`. For int16 it may be a fixed-point one.
        For a FloatOutput, or a FunctionOutput, the real value of one unit of the accumulator: in_scale * weight_scale, or
        weight_scale alone where in_scale comes at run time. A SumOutput leaves it unread.
    isa
        One of `KNOWN_ISAS`.
    schedules
        Those measured to be best, by key; a kernel that isn't among them chooses its own.

    Raises
    ------
    TargetError
        If the ISA is unknown.
    TuningError
        If the kernel can't take its schedule.
    """
    if spec.dtype == "int16":
        centered = weight.astype(np.int16) - np.asarray(weight_zero_point, np.int16)
        real = bias.astype(np.float32) if isinstance(spec.output, FloatOutput) else None
        sums = bias.astype(np.int64) if real is None else np.zeros(bias.shape, np.int64)
        return _wide_conv2d(spec, centered, sums, multiplier, real, isa, schedules)
    operands = {"weight": weight, "weight_zero_point": weight_zero_point, "bias": bias, "multiplier": multiplier}
    return _of_family(conv2d_x86, conv2d_arm, spec, operands, isa, schedules)


def matmul(
    *,
    rows: int,
    in_features: int,
    out_features: int,
    input_zero_point: int,
    output: Output | FloatOutput | FunctionOutput | SumOutput,
    dtype: Literal["uint8", "int16"] = "uint8",
    narrow: NarrowAccumulator | None = None,
    stack: tuple[int, int] = (1, 1),
    index_dtype: Literal["int32", "int64"] | None = None,
    threads: int,
    weight: npt.NDArray[np.integer],
    weight_zero_point: int | npt.NDArray[np.int32],
    bias: npt.NDArray[np.int32 | np.int64 | np.float32],
    multiplier: Multiplier,
    isa: str,
    schedules: Schedules = NO_SCHEDULES,
) -> Kernel:
    """Return a kernel that computes `octavo.numerics.matmul` of `dtype` (rows, in_features), bit for bit.

    `weight` is int8 (in_features, out_features); the other operands are as `conv2d` takes them, for out_features channels.

    A `stack` of (matrices, weights) are so many matrices of `rows` each, of which as many in a row have weights of their own:
    `weight` and what is said of channels has those of one after the other. With `index_dtype` a matrix has those that its index
    says, which the kernel is given behind its input.

    Raises
    ------
    TargetError
        If the ISA is unknown.
    """
    spec = Conv2dSpec(
        batch=stack[0],
        in_height=rows,
        in_width=1,
        in_channels=in_features,
        out_channels=out_features,
        kernel=(1, 1),
        stack=stack[1],
        index_dtype=index_dtype,
        input_zero_point=input_zero_point,
        output=output,
        dtype=dtype,
        narrow=narrow,
        threads=threads,
    )
    kernel = np.ascontiguousarray(weight.reshape(1, 1, in_features, -1))
    operands: dict[str, Any] = {"weight_zero_point": weight_zero_point, "bias": bias, "multiplier": multiplier}
    if dtype == "int16":
        return conv2d(spec, weight=kernel, **operands, isa=isa, schedules=schedules)
    return _of_family(matmul_x86, matmul_arm, spec, {"weight": kernel, **operands}, isa, schedules)


def _wide_conv2d(
    spec: Conv2dSpec,
    weight: npt.NDArray[np.int16],
    bias: npt.NDArray[np.int64],
    multiplier: Multiplier,
    real_bias: npt.NDArray[np.float32] | None,
    isa: str,
    schedules: Schedules,
) -> Kernel:
    """Return the kernel of int16 activations; `weight` is less its zero points."""
    shape = (*spec.kernel, spec.in_channels // spec.groups, spec.out_channels)
    assert weight.shape == shape, f"weights are {shape}, got {weight.shape}"
    assert int(np.abs(weight).max(initial=0)) <= 255, "weights less their zero points have 9 bits"
    family, kind = checked_isa(isa).family, gemm_kind(spec)
    has_open_rows = kind != "pointwise" and is_open(spec.in_width)  # whose copies differ in size when the kernel runs
    is_generic = family == "generic" or (family == "arm" and (has_open_rows or not fits_bytes(weight)))
    if is_generic or (spec.groups > 1 and weight.shape[2] < _MIN_INPUTS):
        return wide_conv2d_generic(spec, weight=weight, bias=bias, multiplier=multiplier, real_bias=real_bias)
    if family == "arm":
        narrow = weight.astype(np.int8)
        gemm = ArmWideGemm(spec, narrow, bias, multiplier, real_bias=real_bias, isa=isa, schedules=schedules)
    else:
        gemm = PairGemm(spec, weight, bias, multiplier, real_bias=real_bias, isa=isa, schedules=schedules)
    return gemm.build("matmul" if kind == "pointwise" and spec.in_width == 1 else f"conv2d.{kind}")
