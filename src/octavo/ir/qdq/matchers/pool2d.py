"""Rules of pooling: nn.avg_pool2d, nn.adaptive_avg_pool2d to 1x1, mean over height and width, nn.max_pool2d.

Pooling and concatenation of tensors kept in 16 bits (see downcast.py) make no detour through float32 tensors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

from tvm.relax import Var

from ....numerics import INTEGER_RANGE
from ....numerics.floats.half import HalfDtype
from ....numerics.limits import HALF_AWAY_MAX_WINDOW, INT16_MAX_COUNT
from ....numerics.rounding.fixed_point import SHIFTS, ShiftRounding
from ....target import OpSupport
from ...composites.base import CompositeOp, Layout, QuantizedOutput, QuantizedTensor
from ...composites.float_ops import HalfPool2dOp
from ...composites.reduction import Pool2dOp, Rounding
from ...graph.dataflow import DataflowView, call_to, dtype_of, op_name, static_shape
from ...graph.rules import Region, Rejection
from ..rounding import result_rounding
from ..tail import Tail, check_activation, follow_to_quantize, integer_clamp, of_width
from ..values import dequantized, integer_params
from .conv.conv2d import pair


@dataclass(frozen=True, kw_only=True, slots=True)
class _Window:
    layout: Layout
    kernel: tuple[int, int]
    strides: tuple[int, int]
    padding: tuple[int, int, int, int]
    dilation: tuple[int, int]
    count_include_pad: bool
    out: tuple[int, int]

    def overhangs(self, size: tuple[int, int]) -> bool:
        """Return whether the last window of an image of (rows, columns) ends beyond the padding."""
        ends = [
            (o - 1) * s + (k - 1) * d + 1 for o, s, k, d in zip(self.out, self.strides, self.kernel, self.dilation, strict=True)
        ]
        top, left, bottom, right = self.padding
        return ends[0] > size[0] + top + bottom or ends[1] > size[1] + left + right


def match_pool2d(view: DataflowView, core: Var, support: OpSupport) -> Region[CompositeOp] | Rejection:
    """Claim quantize(clamp(pool(dequantize(x)))), or a max pooling of integers."""
    call = view.definition(core)
    window = _window(call, static_shape(call.args[0]), static_shape(core))
    if isinstance(window, Rejection):
        return window
    if dtype_of(core) in INTEGER_RANGE:
        return _integer_pool(view, core, call, window, support)
    x = dequantized(view, call.args[0])
    if x is None or not isinstance(x.source, Var):
        name = getattr(call.args[0], "name", "constant")
        return Rejection(reason=f"input {name} is float; quantize and dequantize it (constant scale) before this op")
    problem = check_activation(x.source.name, x.params, support)
    if problem is not None:
        return problem
    tail = follow_to_quantize(view, core, of_width(support, x.params))
    if isinstance(tail, Rejection):
        return tail
    members = (*([x.var] if x.var is not None else []), core, *tail.members)
    shape = static_shape(x.source)
    assert shape is not None
    op = QuantizedTensor(name=x.source.name, shape=shape, params=x.params)
    if op_name(call) == "mean" and tail.result.fixed_point is not None and tail.result.fixed_point not in SHIFTS:
        return Rejection(reason="means in fixed point are another rule's")
    rounding = _rounding(result_rounding(view, tail.members), window, op, tail.result)
    # In float32, as ONNX Runtime has it, taps beyond the padding count as those inside do; elsewhere they do not.
    if rounding != "float32" and window.count_include_pad and window.overhangs(_size(shape, window.layout)):
        return Rejection(reason="its windows reach beyond the padding (ceil mode): choose padding that holds them")
    problem = _wide_problem(op, tail.result, window, op_name(call), rounding)
    return problem or _region(core, x.source, op, tail, window, members, call, rounding)


def _wide_problem(x: QuantizedTensor, y: QuantizedOutput, window: _Window, op: str, rounding: Rounding) -> Rejection | None:
    """Return why the 16-bit kernel does not take it; `reduce` has the means."""
    if x.kernel_dtype != "int16":
        return None
    if op == "mean":
        return Rejection(reason="means of 16-bit integers are another rule's")
    if op == "nn.max_pool2d" and x.params != y.tensor.params:
        return Rejection(reason="it changes scale or zero point; the 16-bit maximum keeps them")
    if rounding == "float32":
        # With equal parameters every other window of an even count is a tie, which float32 rounding errors decide.
        return Rejection(reason="windows of int16 are integer in TFLite files alone; ONNX Runtime sums them in float32")
    if window.kernel[0] * window.kernel[1] > INT16_MAX_COUNT // 2:
        return Rejection(reason=f"its window of {window.kernel[0]}x{window.kernel[1]} int16 values could overflow int32")
    return None


def _rounding(asked: str, window: _Window, x: QuantizedTensor, y: QuantizedOutput) -> Rounding:
    if asked == "half_even_stored":
        return "half_even_stored"
    if asked == "float32" and x.params.dtype == y.tensor.params.dtype:
        return "float32"
    asked_integers = y.fixed_point
    if asked_integers in SHIFTS:
        return cast("ShiftRounding", asked_integers)
    # TFLite's reference averages the integers as they are stored, whatever its multipliers round.
    is_away = asked == "half_away" or (asked_integers is not None and x.params.dtype != "uint16")  # which kernels relabel
    is_away = is_away and x.params == y.tensor.params and not window.count_include_pad
    return "half_away" if is_away and window.kernel[0] * window.kernel[1] <= HALF_AWAY_MAX_WINDOW else "half_even"


def _integer_pool(
    view: DataflowView, core: Var, call: Any, window: _Window, support: OpSupport
) -> Region[CompositeOp] | Rejection:
    source = call.args[0]
    params = integer_params(view, source) or integer_params(view, core)
    if op_name(call) != "nn.max_pool2d":
        return Rejection(reason=f"{op_name(call)} over {dtype_of(core)} integers ignores scale and zero point; pool in QDQ form")
    if params is None or not isinstance(source, Var):
        return Rejection(reason=f"input {getattr(source, 'name', 'constant')} has no known scale; dequantize it somewhere")
    problem = check_activation(source.name, params, support)
    if problem is not None:
        return problem
    shape, out_shape = static_shape(source), static_shape(core)
    assert shape is not None
    assert out_shape is not None
    output, qmin, qmax = integer_clamp(view, core, params.qmin, params.qmax)
    y = QuantizedOutput(tensor=QuantizedTensor(name=output.name, shape=out_shape, params=params), qmin=qmin, qmax=qmax)
    tail = Tail(members=() if output.same_as(core) else (output,), output=output, result=y)
    x = QuantizedTensor(name=source.name, shape=shape, params=params)
    problem = _wide_problem(x, y, window, op_name(call), "half_even")
    return problem or _region(core, source, x, tail, window, (core, *tail.members), call)


def _region(
    core: Var,
    source: Var,
    x: QuantizedTensor,
    tail: Tail,
    window: _Window,
    members: tuple[Var, ...],
    call: Any,
    rounding: Rounding = "half_even",
) -> Region[CompositeOp]:
    op = Pool2dOp(
        kind="max" if op_name(call) == "nn.max_pool2d" else "avg",
        x=x,
        y=tail.result,
        layout=window.layout,
        kernel=window.kernel,
        strides=window.strides,
        padding=window.padding,
        dilation=window.dilation,
        count_include_pad=window.count_include_pad,
        out_height=window.out[0],
        out_width=window.out[1],
        rounding=rounding,
    )
    return Region(core=core, output=tail.output, members=members, inputs=(source,), op=op)


def _window(call: Any, shape: tuple[int, ...] | None, out_shape: tuple[int, ...] | None) -> _Window | Rejection:
    if shape is None or out_shape is None or len(shape) != 4:
        return Rejection(reason=f"input of shape {shape}: the kernel takes four static dimensions")
    if call_to(call, "mean") is not None:
        return _mean_window(call, shape)
    layout = str(call.attrs.layout)
    if layout not in ("NCHW", "NHWC"):
        return Rejection(reason=f"layout {layout} is neither NCHW nor NHWC; transpose to one of them")
    source: Layout = "NCHW" if layout == "NCHW" else "NHWC"
    first = 2 if source == "NCHW" else 1
    size, out = (shape[first], shape[first + 1]), (out_shape[first], out_shape[first + 1])
    if call_to(call, "nn.adaptive_avg_pool2d") is not None:
        if out != (1, 1):
            return Rejection(reason=f"adaptive pooling to {out}; the kernel takes 1x1, so pool with windows instead")
        return _full_image(source, size)
    kernel = (int(call.attrs.pool_size[0]), int(call.attrs.pool_size[1]))
    top, left, bottom, right = (int(value) for value in call.attrs.padding)
    return _Window(
        layout=source,
        kernel=kernel,
        strides=(int(call.attrs.strides[0]), int(call.attrs.strides[1])),
        padding=(top, left, bottom, right),
        dilation=(int(call.attrs.dilation[0]), int(call.attrs.dilation[1])),
        count_include_pad=bool(getattr(call.attrs, "count_include_pad", False)),
        out=out,
    )


def _size(shape: tuple[int, ...], layout: Layout) -> tuple[int, int]:
    return (shape[2], shape[3]) if layout == "NCHW" else (shape[1], shape[2])


def _mean_window(call: Any, shape: tuple[int, ...]) -> _Window | Rejection:
    axes = sorted(int(axis) % 4 for axis in (call.attrs.axis if call.attrs.axis is not None else range(4)))
    if axes == [2, 3]:
        return _full_image("NCHW", (shape[2], shape[3]))
    if axes == [1, 2]:
        return _full_image("NHWC", (shape[1], shape[2]))
    return Rejection(reason=f"mean over axes {axes}; the kernel takes height and width ([2, 3] or [1, 2])")


def _full_image(layout: Layout, size: tuple[int, int]) -> _Window:
    return _Window(
        layout=layout,
        kernel=size,
        strides=(1, 1),
        padding=(0, 0, 0, 0),
        dilation=(1, 1),
        count_include_pad=False,
        out=(1, 1),
    )


def match_half_pool2d(view: DataflowView, core: Var) -> Region[CompositeOp] | Rejection:
    """Claim astype(pool(astype(x, "float32")), x's own dtype) of a 16-bit x."""
    call: Any = view.definition(core)
    x, user, shape = call.args[0], view.only_user(core), static_shape(core)
    widening: Any = call_to(view.definition(x), "astype")
    narrowing = None if user is None else call_to(view.definition(user), "astype")
    if widening is None or narrowing is None or user is None or shape is None or not isinstance(x, Var):
        return Rejection(reason=f"{core.name} is not kept in 16 bits")
    source = widening.args[0]
    dtype: HalfDtype = "bfloat16" if dtype_of(source) == "bfloat16" else "float16"
    if {dtype_of(source), dtype_of(user)} != {dtype} or not isinstance(source, Var):
        return Rejection(reason=f"{core.name} is not kept in 16 bits")
    attrs = call.attrs
    layout, kind = str(attrs.layout), "max" if op_name(call) == "nn.max_pool2d" else "avg"
    padding = tuple(int(width) for width in attrs.padding)
    # Where windows may end behind the padding, those that count it count no more than that.
    counts_beyond = kind == "avg" and bool(attrs.count_include_pad) and bool(attrs.ceil_mode)
    if layout not in ("NCHW", "NHWC") or str(attrs.out_layout) not in ("", layout) or len(padding) != 4 or counts_beyond:
        return Rejection(reason=f"layout {layout}, or windows that end behind the padding, are not those of a kernel")
    op = HalfPool2dOp(
        op=op_name(call),
        x=source.name,
        dtype=dtype,
        kind="max" if kind == "max" else "avg",
        layout="NCHW" if layout == "NCHW" else "NHWC",
        kernel=pair(attrs.pool_size),
        strides=pair(attrs.strides),
        padding=(padding[0], padding[1]),
        dilation=pair(attrs.dilation),
        count_include_pad=bool(attrs.count_include_pad),
        output_shape=shape,
    )
    return Region(core=core, output=user, members=(x, core, user), inputs=(source,), op=op)
