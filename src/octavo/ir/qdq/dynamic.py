"""Quantization at run time in Relax: the one form in which frontends write it and by which lowering knows it. Computes nothing.

    low = min(min(x), 0); high = max(max(x), 0); scale, zero_point = f(low, high); x_q = quantize(x, scale, zero_point)

Meaning and styles: `numerics.dynamic`. "litert" has parameters for each index of the first axis, the others one pair for all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax
from tvm.ir import Call, GenericConst
from tvm.relax import Expr, Var
from tvm_ffi import structural_equal

from ...numerics import INTEGER_RANGE
from ...numerics.dynamic import DynamicStyle, TorchStyle
from ..graph.dataflow import DataflowView, call_to, dtype_of, static_shape
from ..untyped import ops, tirx

Emit = Callable[[Any], Any]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class DynamicValue:
    """The expressions of a value quantized at run time; zero points are int32, and `stored_zero_point` of the integers' dtype."""

    integers: Any
    scale: Any
    zero_point: Any
    stored_zero_point: Any


def _number(value: float) -> Any:
    return relax.const(value, "float32")


def write_dynamic(x: Any, shape: tuple[int, ...], style: DynamicStyle, emit: Emit) -> DynamicValue:
    """Write the quantization of float32 `x` of this shape; `emit` binds each expression, or passes it on."""
    if isinstance(style, TorchStyle):
        scale, zero_point = write_torch_parameters(x, style, emit)
        rows = shape[0] if style.by_row else 0
        integers = write_torch_integers(x, scale, zero_point, style.dtype, (style.qmin, style.qmax), emit, rows=rows)
        if not style.by_row:
            scale, zero_point = emit(ops.reshape(scale, [])), emit(ops.reshape(zero_point, []))
        stored = emit(ops.astype(zero_point, style.dtype))
        return DynamicValue(integers=integers, scale=scale, zero_point=zero_point, stored_zero_point=stored)
    axes = None if style == "onnx" else list(range(1, len(shape)))
    low = emit(ops.minimum(emit(ops.min(x, axes)), _number(0)))
    high = emit(ops.maximum(emit(ops.max(x, axes)), _number(0)))
    span = emit(ops.subtract(high, low))
    is_empty = emit(ops.equal(span, _number(0)))
    if style == "onnx":
        scale = emit(ops.where(is_empty, _number(1), emit(ops.divide(span, _number(255)))))
        real = emit(ops.clip(emit(ops.divide(emit(ops.subtract(_number(0), low)), scale)), 0, 255))
        stored = emit(ops.astype(emit(ops.round(real)), "uint8"))
        zero_point = emit(ops.astype(stored, "int32"))
        integers = emit(ops.quantize(x, scale, zero_point, axis=0, out_dtype="uint8"))
        return DynamicValue(integers=integers, scale=scale, zero_point=zero_point, stored_zero_point=stored)
    factor = emit(ops.where(is_empty, _number(1), emit(ops.divide(_number(255), span))))
    below, above = emit(ops.multiply(low, factor)), emit(ops.multiply(high, factor))
    errors = emit(ops.add(emit(ops.add(_number(-128), below)), emit(ops.add(_number(127), above))))
    from_low, from_high = emit(ops.subtract(_number(-128), below)), emit(ops.subtract(_number(127), above))
    real = emit(ops.where(emit(ops.greater(errors, _number(0))), from_low, from_high))
    zero = emit(ops.round(emit(ops.clip(real, -128, 127))))
    scale = emit(ops.divide(_number(1), factor))
    column = [shape[0], *[1] * (len(shape) - 1)]
    steps = emit(ops.multiply(x, emit(ops.reshape(emit(ops.divide(_number(1), scale)), column))))
    moved = emit(ops.add(emit(ops.round(steps)), emit(ops.reshape(zero, column))))
    integers = emit(ops.astype(emit(ops.clip(moved, -128, 127)), "int8"))
    zeros = {"zero_point": emit(ops.astype(zero, "int32")), "stored_zero_point": emit(ops.astype(zero, "int8"))}
    return DynamicValue(integers=integers, scale=scale, **zeros)


def write_torch_parameters(x: Any, style: TorchStyle, emit: Emit) -> tuple[Any, Any]:
    """Write scale (float32) and zero point (int32) of float32 `x` as PyTorch's choose_qparams finds them.

    Each has the shape (1,), or (rows,) where a matrix has parameters by row.
    """
    ends = (ops.min(x, [1]), ops.max(x, [1])) if style.by_row else (ops.min(x), ops.max(x))
    least, most = (emit(end) if style.by_row else emit(ops.reshape(emit(end), [1])) for end in ends)
    low = emit(ops.minimum(least, _number(0)))
    high = emit(ops.maximum(most, _number(0)))
    width = style.qmax - style.qmin
    if style.is_symmetric:
        reach = emit(ops.maximum(emit(ops.negative(low)), high))
        scale = emit(ops.maximum(emit(ops.divide(reach, _number(width / 2))), _number(style.eps)))
        return scale, _of_rows(128 if style.dtype == "uint8" else 0, x.ty.shape[0] if style.by_row else 1, emit)
    span = emit(ops.subtract(high, low))
    scale = emit(ops.maximum(emit(ops.divide(span, _number(width))), _number(style.eps)))
    steps = emit(ops.round(emit(ops.divide(low, scale))))
    zero_point = emit(ops.clip(emit(ops.subtract(_number(style.qmin), steps)), style.qmin, style.qmax))
    return scale, emit(ops.astype(zero_point, "int32"))


def _of_rows(zero_point: int, rows: Any, emit: Emit) -> Any:
    """Write the zero point of so many rows: a constant, or of an open number one that is repeated."""
    if isinstance(rows, int | tirx.IntImm):
        return relax.const(np.full(int(rows), zero_point, np.int32))
    return emit(ops.full(relax.ShapeExpr([rows]), relax.const(zero_point, "int32"), "int32"))


def write_torch_integers(
    x: Any, scale: Any, zero_point: Any, dtype: str, bounds: tuple[int, int], emit: Emit, *, rows: int = 0
) -> Any:
    """Write clamp(rint(x * (1 / scale)) + zero_point) of a scale and a zero point known at run time.

    Each is of one element; or (rows,), one for each of the `rows` of a matrix.
    """
    shape = [] if rows == 0 else [rows, 1]
    factor = emit(ops.divide(_number(1), emit(ops.reshape(scale, shape))))
    zero = emit(ops.astype(emit(ops.reshape(zero_point, shape)), "float32"))
    steps = emit(ops.add(emit(ops.round(emit(ops.multiply(x, factor)))), zero))
    return emit(ops.astype(emit(ops.clip(steps, *bounds)), dtype))


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class FoundDynamic:
    """A float32 variable that is quantized at run time, and the variables that do it."""

    x: Var
    shape: tuple[int, ...]
    style: DynamicStyle
    members: tuple[Var, ...]


def find_dynamic(view: DataflowView, integers: Expr, scale: Expr | None, zero_point: Expr) -> FoundDynamic | None:
    """Return what was quantized at run time to these integers and parameters; None if they are made in any other way.

    A scale of None is not looked at.
    """
    shape = static_shape(integers)
    if not shape:
        return None
    for style in (_torch_style(view, integers), "onnx", "litert"):  # where the first is one, it hardly ever is another
        if style is None or (style == "litert" and len(shape) < 2):
            continue
        x = Var("x", relax.TensorType(list[Any](shape), "float32"))
        pattern = write_dynamic(x, shape, style, lambda expr: expr)
        search = _Search(view, x)
        pairs = [(integers, pattern.integers), (zero_point, pattern.zero_point)]
        if scale is not None:
            pairs.append((scale, pattern.scale))
        if all(search.same(*pair) for pair in pairs) and search.found is not None:
            return FoundDynamic(x=search.found, shape=shape, style=style, members=tuple(search.members))
    return None


def _torch_style(view: DataflowView, integers: Expr) -> TorchStyle | None:
    """Read range and smallest scale of what may be PyTorch's form from its constants; None if it certainly isn't."""
    dtype = dtype_of(integers)
    clamped = _step(view, integers, "astype", 0)
    total = _step(view, clamped, "clip", 0)
    reciprocal = _step(view, _step(view, _step(view, total, "add", 0), "round", 0), "multiply", 1)
    scale = _step(view, _step(view, reciprocal, "divide", 1), "reshape", 0)
    eps = None if scale is None else _step(view, scale, "maximum", 1)
    if clamped is None or eps is None or dtype not in ("int8", "uint8"):
        return None
    least: Any = view.definition(eps)
    least = least.value.numpy() if isinstance(least, GenericConst) else np.zeros(())
    clip: Any = view.definition(clamped)
    qmin, qmax = (getattr(bound, "value", None) for bound in clip.args[1:3])
    low, high = INTEGER_RANGE[dtype]
    if least.size != 1 or not 0 < least.item() < np.inf or qmin is None or qmax is None or not low <= qmin < qmax <= high:
        return None
    zero_point = _step(view, _step(view, _step(view, total, "add", 1), "astype", 0), "reshape", 0)
    zero_point = None if zero_point is None else view.definition(zero_point)
    is_symmetric = isinstance(zero_point, GenericConst) or call_to(zero_point, "full") is not None
    by_row = len(static_shape(_step(view, reciprocal, "divide", 1)) or ()) == 2
    return TorchStyle(dtype=dtype, qmin=int(qmin), qmax=int(qmax), eps=least.item(), is_symmetric=is_symmetric, by_row=by_row)


def _step(view: DataflowView, expr: Expr | None, op: str, position: int) -> Any:
    """Return an argument of the call that makes `expr`; None if another op makes it."""
    call = None if expr is None else call_to(view.definition(expr), op)
    return None if call is None else call.args[position]


class _Search:
    """Compares expressions of a function with a form over the variable `x`, and finds what stands in x's place."""

    def __init__(self, view: DataflowView, x: Var) -> None:
        self._view = view
        self._x = x
        self.found: Var | None = None
        self.members: dict[Var, None] = {}
        self._compared: dict[Var, Expr] = {}
        """By what stands for it, what was found to be the same: parameters are read in several places."""

    def same(self, expr: Expr, pattern: Any) -> bool:
        """Whether `expr` is `form`."""
        if isinstance(pattern, Var):
            return self._is_x(expr)
        if isinstance(expr, Var) and expr in self._compared and self._compared[expr].same_as(pattern):
            return True
        definition: Any = self._view.definition(expr)
        if isinstance(pattern, GenericConst):
            return isinstance(definition, GenericConst) and np.array_equal(definition.value.numpy(), pattern.value.numpy())
        if not isinstance(pattern, Call):
            return structural_equal(definition, pattern)
        if not isinstance(definition, Call) or not definition.op.same_as(pattern.op) or len(definition.args) != len(pattern.args):
            return False
        if not structural_equal(definition.attrs, pattern.attrs):
            return False
        first = expr
        while isinstance(expr, Var):
            self.members[expr] = None
            source = self._view.binding_of(expr)
            expr = source if source is not None and not source.same_as(expr) else definition
        is_same = all(self.same(arg, part) for arg, part in zip(definition.args, pattern.args, strict=True))
        if is_same and isinstance(first, Var):
            self._compared[first] = pattern
        return is_same

    def _is_x(self, expr: Expr) -> bool:
        source = self._view.binding_of(expr)
        var = expr if source is None else source
        if not isinstance(var, Var):
            return False
        if self.found is None:
            self.found = var
        return self.found.same_as(var)
