"""Rules of the float32 ops with constant weights, nn.conv2d and matmul: what no integer rule took, in float kernels of our own.

A composite holds the op, its bias, a batch normalization (folded into weight and bias), the sum with another activation and its
clamps, as far as nobody else reads what lies between; the op's result may be observed instead of being added to another. It has
no quantize_info.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm.relax import Expr, TupleGetItem, Var

from .. import kernels
from ..graph.dataflow import DataflowView, call_to, dtype_of, op_name, operand_vars, static_shape
from ..graph.observe import read_observe
from ..graph.rules import Region, Rejection
from ..kernels import FloatConv2dSpec, Kernel, ObserveSpec
from ..numerics.batch_norm import fold_batch_norm
from .context import KernelContext, shape_of
from .forms import FloatOp, Layout
from .observe import Observation
from .tail import float_clamp
from .values import ConstantValue, constant_value, real_values
from .weights import read_bias

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class FloatForm(FloatOp):
    """clamp(op(x, weight) + bias + addend). What is observed is the sum, before the clamp; then there is no addend."""

    x: str
    addend: str | None
    weight: Floats
    bias: Floats
    low: float
    high: float
    output_shape: tuple[int, ...]
    observation: Observation | None

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
            schedules=context.schedules,
        )
        result = self._call(context, output, kernel, arguments, self.output_shape, inputs, is_nhwc=False)
        context.put(output, result, is_nhwc=False)


def match_float_conv2d(view: DataflowView, core: Var) -> Region | Rejection:
    """Claim clamp(conv2d(x, w) + bias + addend) of a float32 x and a constant w.

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
    operands = _operands(view, core, call)
    if isinstance(operands, Rejection):
        return operands
    x, weight, shape = operands
    axis = 1 if layout == "NCHW" else 3
    values = _real(weight, tuple(kernel_layout.index(letter) for letter in "HWIO"))
    is_depthwise = values.shape[2] == 1 and int(call.attrs.groups) > 1
    tail = _Tail(view, core, axis, values, adds=not is_depthwise)
    form = FloatConvForm(
        op="nn.conv2d",
        x=x.name,
        addend=None if tail.addend is None else tail.addend.name,
        weight=tail.weight,
        bias=tail.bias,
        low=tail.low,
        high=tail.high,
        observation=tail.observation,
        output_shape=shape,
        layout="NCHW" if layout == "NCHW" else "NHWC",
        strides=_ints(call.attrs.strides)[:2],
        padding=_ints(call.attrs.padding),
        dilation=_ints(call.attrs.dilation)[:2],
        groups=int(call.attrs.groups),
    )
    return _region(view, core, x, tail, form)


def match_float_matmul(view: DataflowView, core: Var) -> Region | Rejection:
    """Claim clamp(matmul(x, w) + bias + addend) of a float32 x and a constant two-dimensional w [in, out]."""
    operands = _operands(view, core, view.definition(core))
    if isinstance(operands, Rejection):
        return operands
    x, weight, shape = operands
    if weight.values.ndim != 2 or len(static_shape(x) or ()) < 2:
        return Rejection(reason=f"matmul by {weight.values.shape}: the kernel takes [..., in] by [in, out]")
    tail = _Tail(view, core, len(shape) - 1, _real(weight, (0, 1)), adds=True)
    form = FloatMatmulForm(
        op="matmul",
        x=x.name,
        addend=None if tail.addend is None else tail.addend.name,
        weight=tail.weight,
        bias=tail.bias,
        low=tail.low,
        high=tail.high,
        observation=tail.observation,
        output_shape=shape,
    )
    return _region(view, core, x, tail, form)


class _Tail:
    """The bias, a batch normalization, an observer or an addend, and the clamps behind an op, while each value has one reader.

    `weight`'s last axis is that of the output channels, which is `axis` of the result. `adds` says whether the kernel takes an
    addend.
    """

    def __init__(self, view: DataflowView, core: Var, axis: int, weight: Floats, *, adds: bool) -> None:
        self.members: list[Var] = []
        self.weight = weight
        channels = weight.shape[-1]
        self.bias: Floats = np.zeros(channels, np.float32)
        self.low, self.high = -math.inf, math.inf
        self.output = core
        found = read_bias(view, core, axis, channels)
        if found is not None:
            self.output, bias = found
            self.members.extend([*constants_behind(view, view.definition(self.output)), self.output])
            self.bias = np.ascontiguousarray(_real(bias, (0,)))
        self._fold_batch_norm(view, axis)
        self._observe(view)
        self.addend: Var | None = None
        if adds and self.observation is None:
            self._add(view)
        while (user := view.only_user(self.output)) is not None:
            bounds = float_clamp(view.definition(user))
            # A clamp above one already taken can be folded in only while it leaves low <= high.
            if bounds is None or max(self.low, bounds[0]) > min(self.high, bounds[1]):
                break
            self.low, self.high = max(self.low, bounds[0]), min(self.high, bounds[1])
            self.members.append(user)
            self.output = user

    def _fold_batch_norm(self, view: DataflowView, axis: int) -> None:
        """Take a batch normalization of which only the normalized values are read."""
        norm_var = view.only_user(self.output)
        norm: Any = None if norm_var is None else call_to(view.definition(norm_var), "nn.batch_norm")
        if norm is None or norm_var is None or int(norm.attrs.axis) != axis or norm.attrs.training:
            return
        item = view.only_user(norm_var)
        value = None if item is None else view.definition(item)
        constants = [constant_value(view, arg) for arg in norm.args[1:]]
        known = [constant for constant in constants if constant is not None]
        if item is None or not isinstance(value, TupleGetItem) or value.index != 0 or len(known) < len(constants):
            return
        gamma, beta, mean, variance = (_real(constant, (0,)) for constant in known)
        self.weight, self.bias = fold_batch_norm(
            self.weight,
            self.bias,
            gamma if norm.attrs.scale else np.ones_like(gamma),
            beta if norm.attrs.center else np.zeros_like(beta),
            mean,
            variance,
            epsilon=float(norm.attrs.epsilon),
            axis=self.weight.ndim - 1,
        )
        self.members.extend([*constants_behind(view, norm), norm_var, item])
        self.output = item

    def _add(self, view: DataflowView) -> None:
        """Take the sum with another activation of the same shape."""
        user = view.only_user(self.output)
        call = None if user is None else call_to(view.definition(user), "add")
        others = [] if call is None else [arg for arg in call.args if not arg.same_as(self.output)]
        if user is None or len(others) != 1:  # both: what reads it is another name of its own value
            return
        other = others[0]
        if not isinstance(other, Var) or dtype_of(other) != "float32" or constant_value(view, other) is not None:
            return
        alike = static_shape(other) == static_shape(self.output) == static_shape(user)
        # Of two products that are added, the later one takes the sum.
        first = next(binding.var for binding in view.bindings if binding.var in (other, self.output))
        is_parameter = isinstance(view.definition(other), Var)
        if alike and (first.same_as(other) or is_parameter):
            self.addend = other
            self.members.append(user)
            self.output = user

    def _observe(self, view: DataflowView) -> None:
        """Take an observer of the sum, if it has one: it stands before every clamp."""
        self.observation: Observation | None = None
        self.states: tuple[Var, ...] = ()
        user = view.only_user(self.output)
        call = None if user is None else read_observe(view.definition(user))
        if user is not None and call is not None:
            self.observation, self.states = Observation.of(call), (call.ranges, call.counts)
            self.members.append(user)
            self.output = user


def _operands(view: DataflowView, core: Var, call: Any) -> tuple[Var, ConstantValue, tuple[int, ...]] | Rejection:
    """Return the activation, the weight and the shape of the result."""
    x, shape = call.args[0], static_shape(core)
    if not isinstance(x, Var) or shape is None or static_shape(x) is None or 0 in shape:
        return Rejection(reason=f"input or result of {core.name} has no static shape")
    if {dtype_of(x), dtype_of(call.args[1]), dtype_of(core)} != {"float32"}:
        return Rejection(reason=f"{op_name(call)} {core.name} is not float32 throughout")
    weight = constant_value(view, call.args[1])
    if weight is None or constant_value(view, x) is not None:
        return Rejection(reason=f"{core.name} has no constant weight")
    return x, weight, shape


def _real(constant: ConstantValue, order: Sequence[int]) -> Floats:
    """Return a constant's real numbers, with its axes in `order`."""
    return np.ascontiguousarray(np.transpose(real_values(constant), order))


def constants_behind(view: DataflowView, value: Expr) -> list[Var]:
    """Return the variables with a constant value from which `value` is computed, literals included."""
    found: list[Var] = []
    for var in operand_vars(value):
        if constant_value(view, var) is not None:
            source = view.binding_of(var)
            found.extend([var] if source is None or source.same_as(var) else [var, source])
            found.extend(constants_behind(view, view.definition(var)))
    return found


def _region(view: DataflowView, core: Var, x: Var, tail: _Tail, form: FloatForm) -> Region:
    members = (*constants_behind(view, view.definition(core)), core, *tail.members)
    inputs = (x, *tail.states) if tail.addend is None else tuple(dict.fromkeys((x, tail.addend)))
    return Region(core=core, output=tail.output, members=members, inputs=inputs, attrs={}, form=form)


def _ints(values: Any) -> Any:
    return tuple(int(value) for value in values)
