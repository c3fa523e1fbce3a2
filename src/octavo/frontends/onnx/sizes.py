"""Values of small integer tensors that depend on open sizes, and ONNX's arithmetic on them, worked out while converting.

A SizeTensor stands where a graph computes with shapes: what Shape gives, and what Gather, Concat, Mul and others make of it.
It is no Relax expression. Ops that take sizes as arguments read its values; for all others it becomes a tensor, `tensor_of`.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm import relax, tirx
from tvm.ir import GenericConst as Constant

from ...ir.untyped import ops
from ..relax_ops import shape_of, size_tensor
from ..symbols import Size, Symbols
from .graph import dtype_name
from .ops import NodeContext, input_at

_MAX_VALUES = 256
"""Tensors of more values are no shapes."""
_MAX_DENOMINATOR = 4096
_Values = npt.NDArray[Any]
"""Of dtype object: sizes, bools, or Ratios."""


@dataclass(frozen=True, slots=True, eq=False)
class SizeTensor:
    """A tensor of sizes, of which at least one is open.

    Parameters
    ----------
    values
        An array of objects: sizes, or Ratios where the dtype is one of floats.
    dtype
        What ONNX says that they are.
    """

    values: _Values
    dtype: str

    @property
    def ty(self) -> Any:
        """Type of the tensor that it would be."""
        return relax.TensorType(list(self.values.shape), self.dtype)


@dataclass(frozen=True, slots=True)
class Ratio:
    """A value of a SizeTensor of floats: top / bottom. Graphs scale sizes by floats, then round the result."""

    top: Size
    bottom: Size = 1

    @staticmethod
    def of(value: float) -> Ratio:
        """Return the simplest fraction that float32 rounds to `value`: rounded products with sizes are those of ONNX Runtime."""
        near = Fraction(value).limit_denominator(_MAX_DENOMINATOR)
        exact = near if np.float32(float(near)) == np.float32(value) else Fraction(value)
        return Ratio(exact.numerator, exact.denominator)


class _UnknownError(Exception):
    """Symbols leave open what the result is."""


def size_value(context: NodeContext, inputs: Sequence[Any]) -> Any:
    """Return the SizeTensor or the constant that a node computes; None where it computes none from sizes."""
    if context.op in ("Shape", "Size"):
        return _from_values(_SHAPES[context.op](context, shape_of(inputs[0])), "int64")
    converter = _CONVERTERS.get(context.op)
    if converter is None or not (any(isinstance(each, SizeTensor) for each in inputs) or all(map(_is_integer_constant, inputs))):
        return None
    operands = [None if value is None else _values_of(value) for value in inputs]
    if any(operand is None and value is not None for operand, value in zip(operands, inputs, strict=True)):
        return None
    try:
        values = converter(context, operands)
    except _UnknownError:
        return None
    return None if values is None or values.size > _MAX_VALUES else _from_values(values, _result_dtype(context, inputs))


def _result_dtype(context: NodeContext, inputs: Sequence[Any]) -> str:
    if context.op == "Cast":
        return dtype_name(int(context.attrs["to"]))
    if context.op in _COMPARISONS or context.op in ("And", "Or", "Not"):
        return "bool"
    return str(inputs[1 if context.op == "Where" else 0].ty.dtype)


def _from_values(values: _Values, dtype: str) -> Any:
    if all(isinstance(value, int) for value in values.reshape(-1)):
        return relax.const(values.astype(dtype), dtype)
    return SizeTensor(values, dtype)


def _is_integer_constant(value: Any) -> bool:
    return value is None or (isinstance(value, Constant) and np.dtype(str(value.ty.dtype)).kind in "iub")


def _values_of(value: Any) -> _Values | None:
    """Return the values of a SizeTensor, or of a small constant."""
    if isinstance(value, SizeTensor):
        return value.values
    if not isinstance(value, Constant):
        return None
    array = value.value.numpy()
    if array.size > _MAX_VALUES or array.dtype.kind not in "iubf" or not np.isfinite(array).all():
        return None
    values = array.reshape(-1).tolist()
    return _array([Ratio.of(each) for each in values] if array.dtype.kind == "f" else values, array.shape)


def sizes_of(value: Any) -> list[Any] | None:
    """Return the values of a constant or a SizeTensor of one axis; None for what is known at run time only."""
    values = _values_of(value)
    return None if values is None else values.reshape(-1).tolist()


def tensor_of(emit: Callable[[Any], Any], value: Any) -> Any:
    """Return sizes as a Relax tensor: arange(size, size + 1) for each."""
    if not isinstance(value, SizeTensor):
        return value
    parts = [_part(emit, size, value.dtype) for size in value.values.reshape(-1)]
    result = parts[0] if len(parts) == 1 else emit(ops.concat(parts, 0))
    return result if value.values.ndim == 1 else emit(ops.reshape(result, list(value.values.shape)))


def _part(emit: Callable[[Any], Any], value: Any, dtype: str) -> Any:
    if not isinstance(value, Ratio):
        return size_tensor(emit, value, dtype)
    top, bottom = size_tensor(emit, value.top, dtype), size_tensor(emit, value.bottom, dtype)
    return emit(ops.divide(top, bottom))


def _array(values: Sequence[Any], shape: Sequence[int]) -> _Values:
    """Return an array of objects; NumPy's own constructors look into expressions."""
    result = np.empty(len(values), object)
    for place, value in enumerate(values):
        result[place] = value
    return result.reshape(tuple(shape))


def _ints(values: _Values | None) -> list[int]:
    """Return values that are known; _UnknownError where one is not."""
    flat = [] if values is None else values.reshape(-1).tolist()
    if not all(isinstance(value, int) for value in flat):
        raise _UnknownError
    return [int(value) for value in flat]


def _shape(context: NodeContext, shape: list[Size]) -> _Values:
    bounds = slice(int(context.attrs.get("start", 0)), context.attrs.get("end"))
    part = [context.symbols.simplify(size) for size in shape[bounds]]
    return _array(part, [len(part)])


def _size(context: NodeContext, shape: list[Size]) -> _Values:
    return _array([context.symbols.simplify(math.prod(shape))], [])


def _elementwise(compute: Callable[[Symbols, Any, Any], Any]) -> Callable[[NodeContext, list[Any]], _Values]:
    def convert(context: NodeContext, operands: list[Any]) -> _Values:
        result = operands[0]
        for operand in operands[1:]:
            first, second = np.broadcast_arrays(result, operand)
            pairs = zip(first.reshape(-1), second.reshape(-1), strict=True)
            result = _array([compute(context.symbols, *pair) for pair in pairs], first.shape)
        return result

    return convert


def _arithmetic(compute: Callable[[Any, Any], Any], ratios: Callable[[Ratio, Ratio], Ratio]) -> Any:
    def combine(symbols: Symbols, a: Any, b: Any) -> Any:
        if not isinstance(a, Ratio):
            return symbols.simplify(compute(a, b))
        result = ratios(a, b)
        return _reduced(symbols, symbols.simplify(result.top), symbols.simplify(result.bottom))

    return _elementwise(combine)


def _reduced(symbols: Symbols, top: Size, bottom: Size) -> Ratio:
    """Divide both by what they share."""
    if isinstance(top, int) and isinstance(bottom, int):
        exact = Fraction(top, bottom)
        return Ratio(exact.numerator, exact.denominator)
    if not symbols.at_least(bottom, 1):
        raise _UnknownError
    return Ratio(symbols.quotient(top, bottom)) if symbols.is_multiple(top, bottom) else Ratio(top, bottom)


def _quotient(symbols: Symbols, a: Any, b: Any) -> Any:
    """Round towards zero, as ONNX's Div of integers does."""
    if isinstance(a, Ratio):
        return _reduced(symbols, symbols.simplify(a.top * b.bottom), symbols.simplify(a.bottom * b.top))
    if not symbols.at_least(b, 1):
        raise _UnknownError
    if symbols.at_least(a, 0):
        return symbols.quotient(a, b)
    if symbols.at_least(-a, 0):
        return symbols.simplify(-symbols.quotient(symbols.simplify(-a), b))
    return symbols.simplify(tirx.truncdiv(a, b))


def _remainder(symbols: Symbols, a: Size, b: Size) -> Size:
    if not symbols.at_least(b, 1):
        raise _UnknownError
    return a % b if isinstance(a, int) and isinstance(b, int) else symbols.simplify(tirx.floormod(a, b))


def _comparison(holds: Callable[[Any, Any], Any], fails: Callable[[Any, Any], Any]) -> Callable[[Symbols, Size, Size], bool]:
    def compute(symbols: Symbols, a: Size, b: Size) -> bool:
        if symbols.can_prove(holds(a, b)):
            return True
        if symbols.can_prove(fails(a, b)):
            return False
        raise _UnknownError

    return compute


def _equals(symbols: Symbols, a: Size, b: Size) -> bool:
    if symbols.is_equal(a, b):
        return True
    if symbols.can_prove(a < b) or symbols.can_prove(a > b):
        return False
    raise _UnknownError


def _where(context: NodeContext, operands: list[Any]) -> _Values:
    del context
    chosen, a, b = np.broadcast_arrays(*operands)
    return _array([one if pick else other for pick, one, other in zip(_ints(chosen), a.flat, b.flat, strict=True)], chosen.shape)


def _not(context: NodeContext, operands: list[Any]) -> _Values:
    del context
    return _array([not value for value in _ints(operands[0])], operands[0].shape)


def _of_sizes(convert: Callable[[NodeContext, list[Any]], _Values]) -> Callable[[NodeContext, list[Any]], _Values]:
    """Return a converter that leaves Ratios alone."""

    def checked(context: NodeContext, operands: list[Any]) -> _Values:
        if any(isinstance(value, Ratio) for operand in operands if operand is not None for value in operand.flat):
            raise _UnknownError
        return convert(context, operands)

    return checked


def _negative(context: NodeContext, operands: list[Any]) -> _Values:
    return _array([context.symbols.simplify(-value) for value in operands[0].flat], operands[0].shape)


def _absolute(context: NodeContext, operands: list[Any]) -> _Values:
    symbols = context.symbols
    return _array([symbols.maximum(value, symbols.simplify(-value)) for value in operands[0].flat], operands[0].shape)


def _cast(context: NodeContext, operands: list[Any]) -> _Values | None:
    kind = np.dtype(dtype_name(int(context.attrs["to"]))).kind
    values = operands[0].reshape(-1).tolist()
    are_ratios = any(isinstance(value, Ratio) for value in values)
    if kind == "b" and not are_ratios:
        return _not(context, [_elementwise(_equals)(context, [operands[0], _array([0], [])])])
    if kind in "iu" and are_ratios:
        values = [_quotient(context.symbols, value.top, value.bottom) for value in values]
    elif kind == "f" and not are_ratios:
        values = [Ratio(value) for value in values]
    return _array(values, operands[0].shape) if kind in "iuf" else None


def _rounded(is_up: bool) -> Callable[[NodeContext, list[Any]], _Values]:
    """Return Floor, or Ceil, of Ratios."""

    def convert(context: NodeContext, operands: list[Any]) -> _Values:
        symbols, values = context.symbols, operands[0].reshape(-1).tolist()
        tops = [symbols.simplify(value.top + value.bottom - 1) if is_up else value.top for value in values]
        rounded = [Ratio(symbols.quotient(top, value.bottom)) for top, value in zip(tops, values, strict=True)]
        return _array(rounded, operands[0].shape)

    return convert


def _same(context: NodeContext, operands: list[Any]) -> _Values:
    del context
    return operands[0]


def _gather(context: NodeContext, operands: list[Any]) -> _Values:
    data, indices = operands
    axis = int(context.attrs.get("axis", 0))
    taken = np.take(data, np.asarray(_ints(indices), np.int64).reshape(indices.shape), axis=axis)
    return taken if isinstance(taken, np.ndarray) else _array([taken], [])


def _concat(context: NodeContext, operands: list[Any]) -> _Values:
    return np.concatenate(operands, axis=int(context.attrs["axis"]))


def _slice(context: NodeContext, operands: list[Any]) -> _Values:
    data = operands[0]
    if context.opset < 10:
        starts, ends = context.ints("starts", []), context.ints("ends", [])
        axes, steps = context.ints("axes", range(len(starts))), [1] * len(starts)
    else:
        starts, ends = _ints(operands[1]), _ints(operands[2])
        axes = _ints(input_at(operands, 3)) or list(range(len(starts)))
        steps = _ints(input_at(operands, 4)) or [1] * len(starts)
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        size = data.shape[axis]
        # A negative end before the first place means "from the start on" to a negative step, to NumPy one from the back.
        stop = None if step < 0 and end < -size else end
        data = data[(*[slice(None)] * (axis % data.ndim), slice(start, stop, step))]
    return data


def _axes(context: NodeContext, operands: list[Any]) -> list[int]:
    return context.ints("axes", []) or _ints(input_at(operands, 1))


def _unsqueeze(context: NodeContext, operands: list[Any]) -> _Values:
    return np.expand_dims(operands[0], tuple(_axes(context, operands)))


def _squeeze(context: NodeContext, operands: list[Any]) -> _Values:
    axes = _axes(context, operands)
    result = np.squeeze(operands[0], tuple(axes) if axes else None)
    return result if isinstance(result, np.ndarray) else _array([result], [])


def _reshape(context: NodeContext, operands: list[Any]) -> _Values:
    data, shape = operands[0], _ints(operands[1])
    if not context.attrs.get("allowzero", 0):
        shape = [data.shape[axis] if size == 0 else size for axis, size in enumerate(shape)]
    return data.reshape(shape)


def _expand(context: NodeContext, operands: list[Any]) -> _Values:
    del context
    data, shape = operands[0], _ints(operands[1])
    return np.broadcast_to(data, np.broadcast_shapes(data.shape, tuple(shape)))


def _tile(context: NodeContext, operands: list[Any]) -> _Values:
    del context
    return np.tile(operands[0], _ints(operands[1]))


def _reduction(compute: Callable[[Symbols, Any, Any], Any]) -> Callable[[NodeContext, list[Any]], _Values]:
    combine = _elementwise(compute)

    def convert(context: NodeContext, operands: list[Any]) -> _Values:
        data = operands[0]
        axes = sorted({axis % max(data.ndim, 1) for axis in _axes(context, operands) or range(data.ndim)}, reverse=True)
        for axis in axes:
            parts = [data.take([place], axis) for place in range(data.shape[axis])]
            data = combine(context, parts)
        return (
            data
            if context.attrs.get("keepdims", 1)
            else data.reshape([n for axis, n in enumerate(data.shape) if axis not in axes])
        )

    return convert


_SHAPES = {"Shape": _shape, "Size": _size}
_COMPARISONS: dict[str, Callable[[Symbols, Size, Size], bool]] = {
    "Equal": _equals,
    "Greater": _comparison(operator.gt, operator.le),
    "GreaterOrEqual": _comparison(operator.ge, operator.lt),
    "Less": _comparison(operator.lt, operator.ge),
    "LessOrEqual": _comparison(operator.le, operator.gt),
}
_CONVERTERS: dict[str, Callable[[NodeContext, list[Any]], _Values | None]] = {
    **{op: _of_sizes(_elementwise(compute)) for op, compute in _COMPARISONS.items()},
    "Abs": _of_sizes(_absolute),
    "Add": _arithmetic(operator.add, lambda a, b: Ratio(a.top * b.bottom + b.top * a.bottom, a.bottom * b.bottom)),
    "And": _elementwise(lambda _, a, b: bool(a and b)),
    "Cast": _cast,
    "Ceil": _rounded(is_up=True),
    "Concat": _concat,
    "Div": _elementwise(_quotient),
    "Expand": _expand,
    "Floor": _rounded(is_up=False),
    "Gather": _gather,
    "Identity": _same,
    "Max": _of_sizes(_elementwise(Symbols.maximum)),
    "Min": _of_sizes(_elementwise(Symbols.minimum)),
    "Mod": _of_sizes(_elementwise(_remainder)),
    "Mul": _arithmetic(operator.mul, lambda a, b: Ratio(a.top * b.top, a.bottom * b.bottom)),
    "Neg": _of_sizes(_negative),
    "Not": _not,
    "Or": _elementwise(lambda _, a, b: bool(a or b)),
    "ReduceMax": _of_sizes(_reduction(Symbols.maximum)),
    "ReduceMin": _of_sizes(_reduction(Symbols.minimum)),
    "ReduceProd": _of_sizes(_reduction(lambda symbols, a, b: symbols.simplify(a * b))),
    "ReduceSum": _of_sizes(_reduction(lambda symbols, a, b: symbols.simplify(a + b))),
    "Reshape": _reshape,
    "Slice": _slice,
    "Squeeze": _squeeze,
    "Sub": _arithmetic(operator.sub, lambda a, b: Ratio(a.top * b.bottom - b.top * a.bottom, a.bottom * b.bottom)),
    "Tile": _tile,
    "Unsqueeze": _unsqueeze,
    "Where": _where,
}
