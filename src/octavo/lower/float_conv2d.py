"""Rules of the float32 ops with constant weights, nn.conv2d and matmul: what no integer rule took, in float kernels of our own.

A composite holds the op, its bias, a batch normalization (folded into weight and bias), the sum with another activation and its
clamps, as far as nobody else reads what lies between; the op's result may be observed instead of being added to another. It has
no quantize_info.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from tvm.relax import Expr, Var

from .. import kernels
from ..graph.dataflow import DataflowView, static_shape
from ..graph.rules import Region, Rejection
from ..kernels import FloatConv2dSpec, Kernel, ObserveSpec
from ..numerics.floats.float_function import FloatFunction
from .context import KernelContext, shape_of
from .float_tail import Floats, FusedTail, float_operands, float_region, real_in_order
from .forms import FloatOp, Layout
from .observe import Observation


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class FloatForm(FloatOp):
    """clamp(op(x, weight) + bias + addend), or function(op(x, weight) + bias, addend).

    What is observed is the sum, before the clamp; then there is neither addend nor function.
    """

    x: str
    addend: str | None
    weight: Floats
    bias: Floats
    low: float
    high: float
    output_shape: tuple[int, ...]
    observation: Observation | None
    function: FloatFunction | None = None

    @property
    def macs(self) -> int:
        """Multiply-accumulates of one inference."""
        return math.prod(self.output_shape) * math.prod(self.weight.shape[:-1])

    def _call(
        self,
        context: KernelContext,
        output: Var,
        kernel: Kernel,
        arguments: list[Expr],
        shape: tuple[int, ...],
        inputs: dict[str, Var],
        *,
        is_nhwc: bool,
    ) -> Expr:
        """Write the kernel's call, and where its sums are observed the observer's, which clamps them."""
        if self.observation is None:
            return context.call(output.name, kernel, arguments, shape, "float32")
        sums = context.call(f"{output.name}_sums", kernel, arguments, shape, "float32")
        spec = self.observation.spec(shape, is_nhwc=is_nhwc, low=self.low, high=self.high)
        return self.observation.write(context, output.name, sums, inputs, spec)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class FloatConvForm(FloatForm):
    """A convolution; weight is HWIO."""

    layout: Layout
    strides: tuple[int, int]
    padding: tuple[int, int, int, int]
    dilation: tuple[int, int]
    groups: int

    def write(self, context: KernelContext, inputs: dict[str, Var], output: Var) -> None:
        """Write the kernel call."""
        is_nhwc = self.layout == "NCHW"
        x = context.storage.get(inputs[self.x], is_nhwc=is_nhwc)
        arguments = [x] if self.addend is None else [x, context.storage.get(inputs[self.addend], is_nhwc=is_nhwc)]
        spec = self.spec(shape_of(x), context.threads)
        shape = (spec.batch, spec.out_height, spec.out_width, spec.out_channels)
        observe = self._observed_inside(context, spec, shape, is_nhwc=is_nhwc)
        kernel = kernels.float_conv2d(
            spec, weight=self.weight, bias=self.bias, isa=context.isa, observe=observe, schedules=context.schedules
        )
        if observe is not None and self.observation is not None:
            result = context.call(output.name, kernel, [x, *self.observation.states(inputs)], shape, "float32")
        else:
            result = self._call(context, output, kernel, arguments, shape, inputs, is_nhwc=is_nhwc)
        context.put(output, result, is_nhwc=is_nhwc)

    def spec(self, shape: tuple[int, ...], threads: int) -> FloatConv2dSpec:
        """Return it as kernels take it, for an NHWC input of this shape."""
        batch, height, width, channels = shape
        return FloatConv2dSpec(
            batch=batch,
            in_height=height,
            in_width=width,
            in_channels=channels,
            out_channels=self.weight.shape[3],
            kernel=(self.weight.shape[0], self.weight.shape[1]),
            strides=self.strides,
            padding=self.padding,
            dilation=self.dilation,
            groups=self.groups,
            adds=self.addend is not None,
            low=-math.inf if self.observation is not None else self.low,
            high=math.inf if self.observation is not None else self.high,
            function=self.function,
            threads=threads,
        )

    def _observed_inside(
        self, context: KernelContext, spec: FloatConv2dSpec, shape: tuple[int, ...], *, is_nhwc: bool
    ) -> ObserveSpec | None:
        """Return what the convolution's own kernel is to observe, if it can."""
        if self.observation is None or not kernels.can_observe(spec, isa=context.isa):
            return None
        observe = self.observation.spec(shape, is_nhwc=is_nhwc, low=self.low, high=self.high)
        return observe if observe.inner == 1 and observe.channels == spec.out_channels else None


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class FloatMatmulForm(FloatForm):
    """A matmul; weight is (in, out), x (..., in)."""

    def write(self, context: KernelContext, inputs: dict[str, Var], output: Var) -> None:
        """Write the kernel call."""
        arguments = [context.storage.source(inputs[name]) for name in (self.x, self.addend) if name is not None]
        kernel = kernels.float_matmul(
            rows=math.prod(shape_of(arguments[0])[:-1]),
            weight=self.weight,
            bias=self.bias,
            low=-math.inf if self.observation is not None else self.low,
            high=math.inf if self.observation is not None else self.high,
            threads=context.threads,
            isa=context.isa,
            adds=self.addend is not None,
            function=self.function,
            schedules=context.schedules,
        )
        result = self._call(context, output, kernel, arguments, self.output_shape, inputs, is_nhwc=False)
        context.put(output, result, is_nhwc=False)


def match_float_conv2d(view: DataflowView, core: Var, *, takes_function: bool = True) -> Region | Rejection:
    """Claim clamp(conv2d(x, w) + bias + addend) of a float32 x and a constant w, or a function of the sum and the addend.

    Before::

        lv = R.nn.conv2d(x, w); lv1 = R.add(lv, b); lv2 = R.add(lv1, z); y = R.nn.relu(lv2)

    After: one composite "octavo.float_conv2d" from x and z to y.
    """
    call: Any = view.definition(core)
    layout, kernel_layout = str(call.attrs.data_layout), str(call.attrs.kernel_layout)
    if (
        layout not in ("NCHW", "NHWC")
        or str(call.attrs.out_layout) not in ("", layout)
        or sorted(kernel_layout) != sorted("HWIO")
    ):
        return Rejection(reason=f"layouts {layout} and {kernel_layout} are not those of a kernel; convert to NCHW and OIHW")
    operands = float_operands(view, core, call)
    if isinstance(operands, Rejection):
        return operands
    x, weight, shape = operands
    axis = 1 if layout == "NCHW" else 3
    values = real_in_order(weight, tuple(kernel_layout.index(letter) for letter in "HWIO"))
    is_depthwise = values.shape[2] == 1 and int(call.attrs.groups) > 1
    tail = FusedTail(view, core, axis, values, adds=not is_depthwise, takes_function=takes_function)
    form = FloatConvForm(
        op="nn.conv2d",
        x=x.name,
        addend=None if tail.addend is None else tail.addend.name,
        weight=tail.weight,
        bias=tail.bias,
        low=tail.low,
        high=tail.high,
        observation=tail.observation,
        function=tail.function,
        output_shape=shape,
        layout="NCHW" if layout == "NCHW" else "NHWC",
        strides=_ints(call.attrs.strides)[:2],
        padding=_ints(call.attrs.padding),
        dilation=_ints(call.attrs.dilation)[:2],
        groups=int(call.attrs.groups),
    )
    return float_region(view, core, x, tail, form)


def match_float_matmul(view: DataflowView, core: Var, *, takes_function: bool = True) -> Region | Rejection:
    """Claim clamp(matmul(x, w) + bias + addend), or a function of sum and addend, of a float32 x and a constant w [in, out]."""
    operands = float_operands(view, core, view.definition(core))
    if isinstance(operands, Rejection):
        return operands
    x, weight, shape = operands
    if weight.values.ndim != 2 or len(static_shape(x) or ()) < 2:
        return Rejection(reason=f"matmul by {weight.values.shape}: the kernel takes [..., in] by [in, out]")
    tail = FusedTail(view, core, len(shape) - 1, real_in_order(weight, (0, 1)), adds=True, takes_function=takes_function)
    form = FloatMatmulForm(
        op="matmul",
        x=x.name,
        addend=None if tail.addend is None else tail.addend.name,
        weight=tail.weight,
        bias=tail.bias,
        low=tail.low,
        high=tail.high,
        observation=tail.observation,
        function=tail.function,
        output_shape=shape,
    )
    return float_region(view, core, x, tail, form)


def _ints(values: Any) -> Any:
    return tuple(int(value) for value in values)
