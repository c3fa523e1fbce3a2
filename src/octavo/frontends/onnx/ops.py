"""Our converters of ONNX ops, for those where TVM's leave PrimFuncs, misread a form, or say nothing of why they fail.

A converter gets the node and its inputs (Relax expressions, None for an absent one) and returns the result, or None to leave
the node to TVM's converter. All shapes are static here: `prepare` has seen to that.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from tvm import relax
from tvm.ir import GenericConst as Constant
from tvm.relax import Var

from ...ir.graph.dataflow import call_to
from ...ir.untyped import ops
from ...runtime.tensors import array_of
from ..frontend import RejectedOpError
from ..relax_ops import clamp, dtype_of, is_static, padded_for_windows, same_padding, shape_of
from ..symbols import Symbols
from ..volumes import Volumes, Windows


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeContext:
    """The node under conversion: block builder, op, attributes by name, version of the operator set, the model's symbols.

    `node` is the source's node, which `op` may be one step of; `roundings` is what the file says of its QuantizeLinears.
    """

    builder: Any
    op: str
    node: onnx.NodeProto
    attrs: dict[str, Any]
    opset: int
    symbols: Symbols
    roundings: Mapping[str, str]

    def text(self, name: str, default: str) -> str:
        """Return a string attribute."""
        value = self.attrs.get(name, default)
        return value.decode() if isinstance(value, bytes) else str(value)

    def ints(self, name: str, default: Sequence[int]) -> list[int]:
        """Return an attribute that lists integers."""
        return [int(value) for value in self.attrs.get(name, default)]

    def is_read(self, output: int) -> bool:
        """Whether the node names that output."""
        return len(self.node.output) > output and bool(self.node.output[output])

    def definition(self, expr: Any) -> Any:
        """Return what a variable is bound to, by way of others; anything else as it is."""
        while isinstance(expr, Var) and (bound := self.builder.lookup_binding(expr)) is not None:
            expr = bound
        return expr


Converter = Callable[[NodeContext, list[Any]], Any]


def input_at(inputs: Sequence[Any], index: int) -> Any:
    """Return an input, None if absent."""
    return inputs[index] if index < len(inputs) else None


def known_value(expr: Any, what: str) -> npt.NDArray[Any]:
    """Return the value of an input that must be constant, as `what` it is in the message."""
    if not isinstance(expr, Constant):
        raise RejectedOpError(f"its {what} must be constant")
    return array_of(expr.value)


def with_padding(context: NodeContext, data: Any, kernel: Sequence[int], fill: float = 0.0) -> tuple[Any, list[int]]:
    """Return data and explicit pads, all befores first, as ONNX and Relax write them.

    Pads that depend on open sizes are part of the data then, as `fill`.
    """
    spatial = shape_of(data)[2:]
    pads, rank = _padding_of(context, spatial, kernel), len(spatial)
    strides, dilations = context.ints("strides", [1] * rank), context.ints("dilations", [1] * rank)
    windows: dict[int, tuple[Any, int, int]] = {}
    for axis in range(rank):
        if not is_static((pads[axis], pads[axis + rank])):
            windows[axis + 2] = pads[axis], dilations[axis] * (kernel[axis] - 1) + 1, strides[axis]
            pads[axis] = pads[axis + rank] = 0
    return padded_for_windows(context.builder.emit, data, windows, fill) if windows else data, pads


def _padding_of(context: NodeContext, spatial: Sequence[Any], kernel: Sequence[int]) -> list[Any]:
    rank = len(spatial)
    mode = context.text("auto_pad", "NOTSET")
    if mode == "NOTSET":
        return context.ints("pads", [0] * 2 * rank)
    if mode == "VALID":
        return [0] * 2 * rank
    if mode not in ("SAME_UPPER", "SAME_LOWER"):
        raise RejectedOpError(f"auto_pad {mode!r} is none of NOTSET, VALID, SAME_UPPER, SAME_LOWER")
    strides, dilations = context.ints("strides", [1] * rank), context.ints("dilations", [1] * rank)
    pairs = [
        same_padding(*axis, lower=mode == "SAME_LOWER", symbols=None if isinstance(axis[0], int) else context.symbols)
        for axis in zip(spatial, kernel, strides, dilations, strict=True)
    ]
    return [before for before, _ in pairs] + [after for _, after in pairs]


def _pool(context: NodeContext, inputs: list[Any]) -> Any:
    name = {"MaxPool": "max_pool", "AveragePool": "avg_pool"}[context.op]
    kernel = _pooled_kernel(context, inputs[0])
    if context.is_read(1):
        raise RejectedOpError("its second output (indices) is not supported")
    dtype = np.dtype(dtype_of(inputs[0]))
    least = np.finfo(dtype).min if dtype.kind == "f" else np.iinfo(dtype).min  # TVM's full takes no infinity
    data, padding = with_padding(context, inputs[0], kernel, fill=float(least))
    if data is not inputs[0] and name == "avg_pool":
        raise RejectedOpError(f"its padding depends on open sizes; {context.symbols.advice()}")
    count = bool(context.attrs.get("count_include_pad", 0))
    rounds_up = _rounds_up(context)
    if rounds_up and not is_static(shape_of(data)[2:]):
        # TVM chooses between two sizes, which are no size of a result.
        if count and name == "avg_pool":
            raise RejectedOpError(f"ceil_mode with count_include_pad over open sizes; {context.symbols.advice()}")
        padding, rounds_up = _rounded_padding(context, kernel, padding), False
    return _pooled(context, name, data, kernel, padding, ceil_mode=rounds_up, count_include_pad=count)


def _lp_pool(context: NodeContext, inputs: list[Any]) -> Any:
    """(sum of |x| ** p) ** (1 / p), as an average that counts all of each window: what ceil_mode lets reach beyond is padding."""
    emit, p = context.builder.emit, float(context.attrs.get("p", 2))
    kernel, dtype = _pooled_kernel(context, inputs[0]), dtype_of(inputs[0])
    powers = emit(ops.power(emit(ops.abs(inputs[0])), relax.const(p, dtype)))
    data, padding = with_padding(context, powers, kernel)
    if _rounds_up(context):
        padding = _rounded_padding(context, kernel, padding)
    mean = emit(_pooled(context, "avg_pool", data, kernel, padding, ceil_mode=False, count_include_pad=True))
    sums = emit(ops.multiply(mean, relax.const(math.prod(kernel), dtype)))
    return ops.power(sums, relax.const(1 / p, dtype))


def _pooled_kernel(context: NodeContext, data: Any) -> list[int]:
    kernel, rank = context.ints("kernel_shape", []), len(shape_of(data)) - 2
    if rank not in (1, 2, 3) or len(kernel) != rank:
        raise RejectedOpError(f"kernel_shape {kernel} does not fit an input of shape {shape_of(data)}")
    return kernel


def _rounds_up(context: NodeContext) -> bool:
    return bool(context.attrs.get("ceil_mode", 0)) and context.text("auto_pad", "NOTSET") == "NOTSET"


def _rounded_padding(context: NodeContext, kernel: list[int], padding: list[int]) -> list[int]:
    """Return padding that reaches behind as far as a last window of ceil_mode, which begins ahead of the padding given."""
    rank = len(kernel)
    strides, dilations = context.ints("strides", [1] * rank), context.ints("dilations", [1] * rank)
    reach = [dilation * (taps - 1) for taps, dilation in zip(kernel, dilations, strict=True)]
    rounded = [after + stride - 1 for after, stride in zip(padding[rank:], strides, strict=True)]
    return [*padding[:rank], *map(min, rounded, reach)]


def _pooled(context: NodeContext, name: str, data: Any, kernel: list[int], padding: list[int], **modes: bool) -> Any:
    rank = len(kernel)
    windows = {"strides": context.ints("strides", [1] * rank), "dilation": context.ints("dilations", [1] * rank)}
    if rank == 3:
        op = getattr(ops.nn, f"{name}2d")
        return Volumes(context.builder.emit).pool(data, op, kernel, Windows(padding=padding, **windows), **modes)
    return getattr(ops.nn, f"{name}{rank}d")(data, pool_size=kernel, padding=padding, **windows, **modes)


def _bound(value: Any, what: str) -> float | None:
    """Return a clip bound; None where there is none (absent, infinite, or NaN, which ONNX Runtime ignores)."""
    if value is None:
        return None
    number = float(known_value(value, what).reshape(-1)[0])
    return number if np.isfinite(number) else None


def _clip(context: NodeContext, inputs: list[Any]) -> Any:
    data = inputs[0]
    if context.opset < 11:
        low, high = (context.attrs.get(name) for name in ("min", "max"))
        low, high = (v if v is not None and abs(v) < np.finfo(np.float32).max else None for v in (low, high))
    else:
        bounds = [input_at(inputs, index) for index in (1, 2)]
        if any(bound is not None and not isinstance(bound, Constant) for bound in bounds):
            low_expr, high_expr = bounds
            result = data if low_expr is None else ops.maximum(data, low_expr)
            return result if high_expr is None else ops.minimum(result, high_expr)
        low, high = _bound(bounds[0], "min"), _bound(bounds[1], "max")
    return clamp(data, low, high)


def _fill(context: NodeContext, value: Any) -> float:
    """Return the constant of a Pad, which quantizers put behind a DequantizeLinear."""
    call: Any = context.definition(value)
    if call_to(call, "dequantize") is not None and all(isinstance(each, Constant) for each in call.args[:3]):
        integers, scale, zero_point = (array_of(each.value).reshape(-1) for each in call.args[:3])
        return float((np.float32(integers[0]) - np.float32(zero_point[0])) * np.float32(scale[0]))
    return float(known_value(value, "constant value").reshape(-1)[0])


_PAD_MODES = {"constant": "constant", "reflect": "reflect", "edge": "replicate", "wrap": "circular"}


def _pad(context: NodeContext, inputs: list[Any]) -> Any:
    data = inputs[0]
    rank = len(shape_of(data))
    if context.opset < 11:
        pads, fill = context.ints("pads", []), float(context.attrs.get("value", 0.0))
    else:
        pads = [int(pad) for pad in known_value(inputs[1], "pads")]
        value = input_at(inputs, 2)
        fill = 0.0 if value is None else _fill(context, value)
    axes = list(range(rank))
    if input_at(inputs, 3) is not None:
        axes = [int(axis) % rank for axis in known_value(inputs[3], "axes")]
    if len(pads) != 2 * len(axes):
        raise RejectedOpError(f"{len(pads)} pads do not fit {len(axes)} axes")
    mode = context.text("mode", "constant")
    if mode not in _PAD_MODES:
        raise RejectedOpError(f"mode {mode!r} is none of {', '.join(_PAD_MODES)}")
    widths = [0] * 2 * rank
    for position, axis in enumerate(axes):
        widths[2 * axis], widths[2 * axis + 1] = pads[position], pads[len(axes) + position]
    data, widths = _cropped(context, data, widths), [max(width, 0) for width in widths]
    return data if not any(widths) else ops.nn.pad(data, widths, pad_mode=_PAD_MODES[mode], pad_value=fill)


def _cropped(context: NodeContext, data: Any, widths: list[int]) -> Any:
    """Cut off what widths below 0 take away; of the rest others are padded."""
    shape = shape_of(data)
    axes = [axis for axis in range(len(shape)) if min(widths[2 * axis : 2 * axis + 2]) < 0]
    if not axes:
        return data
    begin = [max(-widths[2 * axis], 0) for axis in axes]
    end = [shape[axis] + min(widths[2 * axis + 1], 0) for axis in axes]
    if any(isinstance(last, int) and first >= last for first, last in zip(begin, end, strict=True)):
        raise RejectedOpError(f"pads that take all of {shape} away")
    return context.builder.emit(ops.strided_slice(data, axes=axes, begin=begin, end=end))


def _dropout(context: NodeContext, inputs: list[Any]) -> Any:
    training = input_at(inputs, 2)
    ratio = input_at(inputs, 1)
    drops = ratio is None or bool(known_value(ratio, "ratio").any())
    if drops and training is not None and bool(known_value(training, "training_mode").any()):
        raise RejectedOpError("training_mode must be false; export the model for inference")
    if not context.is_read(1):
        return inputs[0]
    shape = shape_of(inputs[0])
    if context.opset < 12 or not is_static(shape):
        raise RejectedOpError("its second output (mask) is supported of fixed sizes, from opset 12 on")
    return relax.Tuple([inputs[0], relax.const(np.ones(shape, bool), "bool")])


def _softmax(context: NodeContext, inputs: list[Any]) -> Any:
    """Before opset 13 the axes from `axis` on count as one; over the last axis alone both meanings agree."""
    rank = len(shape_of(inputs[0]))
    if context.opset >= 13:
        return None
    axis = int(context.attrs.get("axis", 1)) % max(rank, 1)
    inner = shape_of(inputs[0])[axis + 1 :]
    if any(dim != 1 for dim in inner):
        return None
    op = ops.nn.softmax if context.op == "Softmax" else ops.nn.log_softmax
    return op(inputs[0], axis=axis)


_CHAINS: dict[str, Callable[[Any, Any], Any]] = {"Max": ops.maximum, "Min": ops.minimum, "Sum": ops.add}


def _chain(context: NodeContext, inputs: list[Any]) -> Any:
    """Convert an op of any number of tensors to one of two after another; TVM's stacks them all."""
    result, *others = inputs
    for other in others[:-1]:
        result = context.builder.emit(_CHAINS[context.op](result, other))
    return _CHAINS[context.op](result, others[-1]) if others else result


CONVERTERS: dict[str, Converter] = {
    "AveragePool": _pool,
    "Clip": _clip,
    "Dropout": _dropout,
    "LogSoftmax": _softmax,
    "LpPool": _lp_pool,
    "Max": _chain,
    "MaxPool": _pool,
    "Min": _chain,
    "Pad": _pad,
    "Softmax": _softmax,
    "Sum": _chain,
}
"""Our converters by ONNX op."""
