"""Whether each sample of a batch is computed from that sample alone, and what else reads across samples. Changes nothing.

A module with an open batch is read op by op: what depends on the batch has it as its first dimension, and no op works along that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import tvm
from tvm import relax
from tvm.ir import Call

from ...ir.graph.dataflow import DataflowView, op_name, static_shape
from ...ir.graph.nodes import elements
from ...ir.graph.sizes import size_of
from ...runtime.size import Size, names_in
from .inputs import BATCH

_EACH = frozenset(
    {"abs", "add", "astype", "ceil", "clip", "cos", "divide", "equal", "erf", "exp", "floor", "floor_divide", "floor_mod"}
    | {"greater", "greater_equal", "less", "less_equal", "log", "logical_and", "logical_not", "logical_or", "maximum", "minimum"}
    | {"multiply", "negative", "nn.gelu", "nn.leakyrelu", "nn.relu", "nn.silu", "not_equal", "power", "round", "rsqrt", "sigmoid"}
    | {"sign", "sin", "sqrt", "square", "subtract", "tanh", "where", "nn.avg_pool2d", "nn.max_pool2d", "image.resize2d"}
)
"""Ops that compute each element, or each image, on its own."""


def obstacle(module: tvm.IRModule) -> str:
    """Return what keeps the samples of "main", whose open dimension BATCH is, from being apart; "" where nothing does."""
    view = DataflowView(module["main"])
    for var in view.function.params:
        if _depends(var) and not _is_by_sample(var):
            return f"input {var.name} has its batch along another axis than the first"
    for binding in view.bindings:
        call = binding.value
        if not isinstance(call, Call) or not any(_depends(each) for each in _operands(call)):
            continue
        name = op_name(call)
        rule = _RULES.get(name, _is_each if name in _EACH else None)
        if rule is None or not _is_by_sample(binding.var) or not rule(call, static_shape(binding.var) or ()):
            return f"{name} ({binding.var.name}) may read several samples"
    return ""


def _operands(call: Any) -> list[Any]:
    return [field for arg in call.args for field in (elements(arg.fields) if isinstance(arg, relax.Tuple) else [arg])]


def _depends(expr: Any) -> bool:
    return BATCH in names_in(static_shape(expr) or ()) if isinstance(expr.ty, relax.TensorType) else False


def _is_by_sample(expr: Any) -> bool:
    """Return whether the batch is the first dimension, and in no other."""
    shape = static_shape(expr)
    return shape is not None and bool(shape) and shape[0] == Size.named(BATCH) and BATCH not in names_in(shape[1:])


def _is_each(call: Any, shape: tuple[Any, ...]) -> bool:
    """Of operands that are broadcast, each has the samples first, or is the same for all."""
    return all(len(static_shape(each) or ()) == len(shape) and _is_by_sample(each) for each in _operands(call) if _depends(each))


def _axes(value: Any) -> list[int]:
    return [int(each) for each in (elements(value) if hasattr(value, "__len__") else [value])]


def _along(field: str, default: Any = None) -> Callable[[Any, tuple[Any, ...]], bool]:
    """Return a rule: the op works along axes of an attribute, none of which may be the first; None: along all."""

    def rule(call: Any, shape: tuple[Any, ...]) -> bool:
        rank = len(static_shape(_operands(call)[0]) or shape)
        axes = getattr(call.attrs, field, default)
        return axes is not None and all(axis % rank for axis in _axes(axes))

    return rule


def _first_is_sample(call: Any, shape: tuple[Any, ...]) -> bool:
    """Of the operands the first alone has samples: a convolution, a product with a weight."""
    del shape
    return _is_by_sample(call.args[0]) and not any(_depends(each) for each in _operands(call)[1:])


def _product(call: Any, shape: tuple[Any, ...]) -> bool:
    return _first_is_sample(call, shape) or (len(shape) > 2 and all(_is_by_sample(each) for each in call.args))


def _reordered(call: Any, shape: tuple[Any, ...]) -> bool:
    del shape
    return _is_by_sample(call.args[0])


def _permuted(call: Any, shape: tuple[Any, ...]) -> bool:
    return call.attrs.axes is not None and _axes(call.attrs.axes)[0] % len(shape) == 0


def _padded(call: Any, shape: tuple[Any, ...]) -> bool:
    del shape
    return not any(_axes(call.attrs.pad_width)[:2])


def _sliced(call: Any, shape: tuple[Any, ...]) -> bool:
    axes: Any = call.args[1]
    sizes = [size_of(each) for each in elements(axes.fields)] if isinstance(axes, relax.Tuple) else [0]
    return all(isinstance(axis, int) and axis % len(shape) for axis in sizes)


def _quantized(call: Any, shape: tuple[Any, ...]) -> bool:
    of_tensor = all(not static_shape(each) for each in call.args[1:3])
    return of_tensor or int(call.attrs.axis) % len(shape) != 0 or all(_depends(each) for each in call.args[1:3])


_RULES: Mapping[str, Callable[[Any, tuple[Any, ...]], bool]] = {
    "nn.conv2d": _first_is_sample,
    "nn.conv2d_transpose": _first_is_sample,
    "matmul": _product,
    "reshape": _reordered,
    "permute_dims": _permuted,
    "nn.pad": _padded,
    "strided_slice": _sliced,
    "quantize": _quantized,
    "dequantize": _quantized,
    "concat": _along("axis"),
    "flip": _along("axis"),
    "take": _along("axis"),
    "expand_dims": _reordered,
    "squeeze": _reordered,
    "mean": _along("axis"),
    "sum": _along("axis"),
    "max": _along("axis"),
    "min": _along("axis"),
    "prod": _along("axis"),
    "argmax": _along("axis"),
    "argmin": _along("axis"),
    "nn.softmax": _along("axis", -1),
    "nn.log_softmax": _along("axis", -1),
}
