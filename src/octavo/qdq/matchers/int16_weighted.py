"""Rules of nn.conv2d and matmul over int16 activations; what they match is what the 8-bit rules match."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from tvm.relax import Var

from ...composites.base import QuantizedOutput
from ...composites.weighted import Conv2dOp, Int16WeightedOp, MatmulOp
from ...graph.dataflow import DataflowView
from ...graph.rules import Region, Rejection
from ...numerics.quantized.accumulator_bounds import max_accumulator
from ...numerics.rounding.fixed_point import FixedPointMultiplier, FixedPointRounding, fixed_point_multiplier
from ...numerics.rounding.requantize import Multiplier
from ...target import OpSupport
from ..rounding import has_wide_bias, is_fixed_int16
from .conv2d import match_conv2d, match_matmul


def match_int16_conv2d(view: DataflowView, core: Var, support: OpSupport) -> Region | Rejection:
    """Claim what `match_conv2d` claims, where operand and result are int16."""
    found = match_conv2d(view, core, replace(support, float_output=False))
    if isinstance(found, Rejection):
        return found
    has_bias = bool(found.form.weight.bias_name)
    # TFLite's sums of 64 bits meet a factor of 15 bits, those of 32 bits one of 31.
    return _int16_region(view, found, "twice" if has_bias and not has_wide_bias(view) else "reduced")


def match_int16_matmul(view: DataflowView, core: Var, support: OpSupport) -> Region | Rejection:
    """Claim what `match_matmul` claims, where operand and result are int16."""
    found = match_matmul(view, core, replace(support, float_output=False))
    if isinstance(found, Rejection):
        return found
    has_bias = bool(found.form.weight.bias_name)
    return _int16_region(view, found, "once" if has_bias and has_wide_bias(view) else "twice")


def _int16_region(view: DataflowView, region: Region, rounding: FixedPointRounding) -> Region | Rejection:
    base: Conv2dOp | MatmulOp = region.form
    x, y, weight = base.x, base.y, base.weight
    if not isinstance(y, QuantizedOutput) or y.tensor.kernel_dtype != "int16" or x.kernel_dtype != "int16":
        return Rejection(reason=f"of {x.name} and its result one has 16 bits and one has not; the 16-bit kernel takes both")
    if x.params.scale.ndim or y.tensor.params.scale.ndim:
        return Rejection(reason=f"activation {x.name} is quantized per axis; kernels take one scale per tensor")
    multiplier: Multiplier = weight.multiplier
    if is_fixed_int16(view):
        scales = [params.scale.astype(np.float64) for params in (x.params, weight.params, y.tensor.params)]
        multiplier = fixed_point_multiplier(scales[0] * scales[1] / scales[2], rounding)
        problem = _overflow(base, multiplier)
        if problem is not None:
            return problem
    name = rounding if isinstance(multiplier, FixedPointMultiplier) else "half_even"
    form = Int16WeightedOp(base=base, y=y, multiplier=multiplier, rounding=name)
    return replace(region, attrs={**region.attrs, "quantize_info": form.quantize_info()}, form=form)


def _overflow(base: Conv2dOp | MatmulOp, factor: FixedPointMultiplier) -> Rejection | None:
    """Prove that no sum times its factor leaves int64."""
    weight, zero_point = base.weight, int(base.x.params.zero_point)
    largest = int(max_accumulator(weight.values, weight.zero_point, weight.bias, zero_point, -32768, 32767).max(initial=0))
    if largest <= factor.max_value:
        return None
    return Rejection(reason=f"a sum of {base.y.tensor.name} can reach {largest}; its factor allows {factor.max_value} in 64 bits")
