"""Rules of nn.conv2d and matmul over int16 activations; what they match is what the 8-bit rules match."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from tvm.relax import Var

from ..graph.dataflow import DataflowView
from ..graph.rules import Region, Rejection
from ..kernels.int16_conv2d import int16_conv2d
from ..kernels.int16_spec import Int16Conv2dSpec
from ..numerics.quantized.accumulator_bounds import max_accumulator
from ..numerics.rounding.fixed_point import FixedPointMultiplier, FixedPointRounding, fixed_point_multiplier
from ..numerics.rounding.requantize import Multiplier
from ..target import OpSupport
from .context import KernelContext, shape_of
from .conv2d import ConvForm, MatmulForm, match_conv2d, match_matmul
from .forms import Form, OutputForm
from .rounding import has_wide_bias, is_fixed_int16


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Int16WeightedForm(Form):
    """A convolution or matmul to int16; `multiplier` says how its sums are scaled, `rounding` names it."""

    base: ConvForm | MatmulForm
    y: OutputForm
    multiplier: Multiplier
    rounding: str

    @property
    def macs(self) -> int:
        """Multiply-accumulates of one inference."""
        return self.base.macs

    def quantize_info(self) -> dict[str, Any]:
        """Return its tensors by role, and the rounding."""
        return {**self.base.quantize_info(), "rounding": self.rounding}

    def write(self, context: KernelContext, inputs: dict[str, Var], output: Var) -> None:
        """Write the kernel call."""
        base, weight = self.base, self.base.weight
        is_nhwc = isinstance(base, ConvForm) and base.layout == "NCHW"
        x = context.storage.get(inputs[base.x.name], is_nhwc=is_nhwc)
        values = weight.values.astype(np.int16) - weight.zero_point.astype(np.int16)
        fields: dict[str, Any] = {}
        if isinstance(base, ConvForm):
            batch, height, width, channels = shape_of(x)
            for name in ("strides", "padding", "dilation", "groups"):
                fields[name] = getattr(base, name)
        else:
            values = values.reshape(1, 1, *values.shape)
            channels = values.shape[2]
            batch, height, width = 1, int(np.prod(base.x.shape[:-1])), 1
        spec = Int16Conv2dSpec(
            batch=batch,
            in_height=height,
            in_width=width,
            in_channels=channels,
            out_channels=values.shape[3],
            kernel=(values.shape[0], values.shape[1]),
            input_zero_point=base.x.zero_point,
            output=self.y.spec(),
            threads=context.threads,
            **fields,
        )
        bias = weight.bias.astype(np.int64)
        kernel = int16_conv2d(
            spec, weight=values, bias=bias, multiplier=self.multiplier, isa=context.isa, schedules=context.schedules
        )
        shape = self.y.tensor.shape
        if isinstance(base, ConvForm):
            shape = (batch, spec.out_height, spec.out_width, spec.out_channels)
        context.put(output, context.call(output.name, kernel, [x], shape, "int16"), is_nhwc=is_nhwc)


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
    base: ConvForm | MatmulForm = region.form
    x, y, weight = base.x, base.y, base.weight
    if not isinstance(y, OutputForm) or y.tensor.kernel_dtype != "int16" or x.kernel_dtype != "int16":
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
    form = Int16WeightedForm(base=base, y=y, multiplier=multiplier, rounding=name)
    return replace(region, attrs={**region.attrs, "quantize_info": form.quantize_info()}, form=form)


def _overflow(base: ConvForm | MatmulForm, factor: FixedPointMultiplier) -> Rejection | None:
    """Prove that no sum times its factor leaves int64."""
    weight, zero_point = base.weight, int(base.x.params.zero_point)
    largest = int(max_accumulator(weight.values, weight.zero_point, weight.bias, zero_point, -32768, 32767).max(initial=0))
    if largest <= factor.most:
        return None
    return Rejection(reason=f"a sum of {base.y.tensor.name} can reach {largest}; its factor allows {factor.most} in 64 bits")
