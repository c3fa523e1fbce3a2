"""What a composite op gives for integers, by the oracles of `octavo.numerics`: the one table from op to oracle.

It calls no kernel. An op that the table lacks has no expected values; what a composite says of its arithmetic (multiplier,
rounding) decides within its oracle.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ...ir.composites.base import CompositeOp, QuantizedOutput, QuantizedTensor, ratio
from ...ir.composites.elementwise import AddOp, LookupOp, PairLookupOp, PairwiseOp, integer_sum, scales_of
from ...ir.composites.movement import ConcatOp, GatherOp, MoveOp, known_maps
from ...ir.composites.normalization import SoftmaxOp
from ...ir.composites.outputs import output_spec
from ...ir.composites.reduction import ArgReduceOp, Pool2dOp, ReduceOp
from ...ir.composites.weighted import BatchMatmulOp, Conv2dOp, GatheredMatmulOp, MatmulOp, StackedMatmulOp, WeightedOp
from ...numerics import (
    FloatMeanParameters,
    Window,
    arg_reduce,
    avg_pool2d,
    batch_matmul_accumulate,
    conv2d_accumulate,
    float_avg_pool2d,
    gather,
    lookup,
    lookup_table,
    matmul_accumulate,
    max_pool2d,
    reduce_extreme,
    reduce_sum,
    requantize,
    requantize_tensor,
    softmax,
)
from ...numerics.arrays import Array
from ...numerics.quantized.binary import float_binary_int16
from ...numerics.quantized.rescale import fixed_point_table
from ...numerics.rounding.fixed_point import FIXED_POINT_ROUNDINGS, SHIFTS, fixed_point_multiplier, mean_multiplier


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Expected:
    """What an op must give.

    Parameters
    ----------
    values
        The result.
    accumulator
        Its sums of products, None where it has none.
    real
        The result before it is rounded and clamped, in float64, in its own integers; None where it is a table or is moved.
    touches_padding
        Where a window reaches beyond its image, shaped to broadcast; None for an op without windows.
    channel_axis
        Of the result; None where channels are nothing special to it.
    """

    values: Array
    accumulator: Array | None = None
    real: npt.NDArray[np.float64] | None = None
    touches_padding: Array | None = None
    channel_axis: int | None = None


def expected(op: CompositeOp, inputs: Mapping[str, Array]) -> Expected | None:
    """Return what an op must give for the integers of its tensors, by their names; None where no oracle is known here."""
    oracle = next((oracle for kind, oracle in _ORACLES.items() if isinstance(op, kind)), None)
    return None if oracle is None else oracle(op, inputs)


def _weighted_result(op: WeightedOp, acc: Array, axis: int) -> Expected | None:
    y, weight = op.y, op.weight
    if not isinstance(y, QuantizedOutput) or not isinstance(op.x, QuantizedTensor):
        return None
    params = y.tensor.params
    zero_point = int(params.zero_point)
    sums = acc if op.narrow is None else op.narrow.hold(acc)
    values = requantize(sums, op.multiplier, zero_point, y.qmin, y.qmax, params.dtype, real_bias=weight.real_bias)
    unit = op.x.params.scale.astype(np.float64) * weight.params.scale.astype(np.float64) / params.scale.astype(np.float64)
    return Expected(values=values, accumulator=acc, real=sums * unit + zero_point, channel_axis=axis)


def _conv2d(op: Conv2dOp, inputs: Mapping[str, Array]) -> Expected | None:
    assert isinstance(op.x, QuantizedTensor)
    x, is_nchw = inputs[op.x.name], op.layout == "NCHW"
    x = x.transpose(0, 2, 3, 1) if is_nchw else x
    window = Window(strides=op.strides, padding=op.padding, dilation=op.dilation)
    weight = op.weight
    acc = conv2d_accumulate(
        _exact(op, x),
        weight.values,
        x_zero_point=int(op.x.params.zero_point),
        w_zero_point=weight.zero_point,
        bias=weight.bias,
        window=window,
        groups=op.groups,
    )
    found = _weighted_result(op, acc, 3)
    return None if found is None else _in_layout(found, _beyond(x, window, weight.values.shape[:2], acc), is_nchw=is_nchw)


def _exact(op: WeightedOp, x: Array) -> Array:
    """Return integers of which sums are exact, as those of 16 bits are, where an accumulator need not hold them."""
    return x if op.narrow is None or x.dtype.itemsize > 1 else x.astype(np.int16)


def _beyond(x: Array, window: Window, kernel: tuple[int, ...], result: Array) -> Array:
    """Return of which pixels of the result the window reaches into the padding: (1, rows, columns, 1)."""
    return np.any(_taps(np.zeros((1, *x.shape[1:3], 1), bool), window, kernel, result.shape[1:3], 1), axis=0)


def _taps(x: Array, window: Window, kernel: tuple[int, ...], size: tuple[int, ...], fill: float) -> list[Array]:
    """Return what each tap reads for a result of `size` rows and columns, `fill` outside of x."""
    padded = window.pad(x, fill)
    spans = zip(size, window.strides, kernel, window.dilation, padded.shape[1:3], strict=True)
    more = [max((count - 1) * stride + (taps - 1) * step + 1 - have, 0) for count, stride, taps, step, have in spans]
    padded = np.pad(padded, ((0, 0), (0, more[0]), (0, more[1]), (0, 0)), constant_values=fill)  # windows end beyond the padding
    return [window.tap(padded, i, j, (size[0], size[1])) for i, j in np.ndindex(*kernel)]


def _in_layout(found: Expected, beyond: Array, *, is_nchw: bool) -> Expected:
    """Return what was found NHWC in the layout of the op."""

    def transposed(values: Array | None) -> Any:
        return values.transpose(0, 3, 1, 2) if is_nchw and values is not None else values

    return Expected(
        values=transposed(found.values),
        accumulator=transposed(found.accumulator),
        real=transposed(found.real),
        touches_padding=transposed(beyond),
        channel_axis=1 if is_nchw else 3,
    )


def _matmul(op: MatmulOp | StackedMatmulOp, inputs: Mapping[str, Array]) -> Expected | None:
    assert isinstance(op.x, QuantizedTensor)
    x, weight = _exact(op, inputs[op.x.name]), op.weight
    zero_point = int(op.x.params.zero_point)
    acc = matmul_accumulate(x, weight.values, x_zero_point=zero_point, w_zero_point=weight.zero_point, bias=weight.bias)
    return _weighted_result(op, acc, acc.ndim - 1)


def _stacked_matmul(op: StackedMatmulOp, inputs: Mapping[str, Array]) -> Expected | None:
    """Let every matrix meet all weights, which lie side by side, and take of each what its own gives."""
    found, stack = _matmul(op, inputs), op.stack
    if found is None:
        return None

    def own(values: Any) -> Any:
        by_weight = values.reshape(*values.shape[:-1], stack, -1)
        if isinstance(op, GatheredMatmulOp):
            chosen = np.clip(inputs[op.indices], 0, stack - 1)[..., np.newaxis, np.newaxis, np.newaxis]
            return np.take_along_axis(by_weight, chosen, axis=-2)[..., 0, :]
        return np.stack([by_weight[..., place, :, place, :] for place in range(stack)], axis=-3)

    axis = found.values.ndim - 1
    return Expected(values=own(found.values), accumulator=own(found.accumulator), real=own(found.real), channel_axis=axis)


def _sum(op: AddOp, inputs: Mapping[str, Array]) -> Expected | None:
    b = inputs[op.b.name] if op.b_values is None else op.b_values
    given = (op.a.kernel_integers(inputs[op.a.name]), op.b.kernel_integers(b))
    values = integer_sum(op.rounding, op.a, op.b, op.y, *given)
    return _of_pair("add", op.y, values, (op.a, inputs[op.a.name]), (op.b, b))


def _pairwise(op: PairwiseOp, inputs: Mapping[str, Array]) -> Expected | None:
    sides = [(side.tensor, inputs[side.tensor.name] if side.values is None else side.values) for side in (op.a, op.b)]
    if op.y.kernel_dtype == "int16" and (op.kind in ("max", "min") or op.rounding == "float32"):
        return _of_pair(op.kind, op.y, _wide_pair(op, *sides), *sides)
    values = op.in_integers(*(tensor.kernel_integers(integers) for tensor, integers in sides))
    if values is None and op.element_function() is None:
        return None
    return _of_pair(op.kind, op.y, _of_elements(op, inputs) if values is None else values, *sides)


def _wide_pair(op: PairwiseOp, a: tuple[QuantizedTensor, Array], b: tuple[QuantizedTensor, Array]) -> Array:
    """Return a op b of 16 bits, as kernels hold it: an extreme of integers, or every operation in float32."""
    out, integers = output_spec(op.y), [tensor.kernel_integers(values) for tensor, values in (a, b)]
    if op.kind in ("max", "min"):
        return np.clip(_REAL[op.kind](*integers), out.qmin, out.qmax)
    given: Any = dict(zip(("a_scale", "b_scale", "out_scale"), scales_of(a[0], b[0], op.y.tensor), strict=True))
    given |= {"a_zero_point": a[0].zero_point, "b_zero_point": b[0].zero_point, "zero_point": out.zero_point}
    return float_binary_int16(op.kind, integers[0], integers[1], **given, qmin=out.qmin, qmax=out.qmax)


_REAL: dict[str, Callable[[Array, Array], Array]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
}


def _of_pair(
    kind: str, y: QuantizedOutput, values: Array, a: tuple[QuantizedTensor, Array], b: tuple[QuantizedTensor, Array]
) -> Expected:
    """Return the result, whose integers are as kernels hold them, with what it stands for."""
    parts = [(integers.astype(np.float64) - int(t.params.zero_point)) * float(t.params.scale) for t, integers in (a, b)]
    real = _REAL[kind](*parts) / float(y.tensor.params.scale) + int(y.tensor.params.zero_point)
    return Expected(values=_own(values, y), real=real)


def _own(values: Array, y: QuantizedOutput) -> Array:
    """Return integers of kernels as those of the result's own dtype."""
    return (values.astype(np.int32) - y.tensor.relabelling).astype(y.tensor.params.dtype)


def _of_elements(op: CompositeOp, inputs: Mapping[str, Array]) -> Array:
    """Return what an op's own function of single elements gives, as kernels hold it."""
    found = op.element_function()
    assert found is not None
    return found.of(*(tensor.kernel_integers(inputs[tensor.name]) for tensor in found.operands.values()))


def _table(op: LookupOp, inputs: Mapping[str, Array]) -> Expected:
    return Expected(values=lookup(inputs[op.x.name], op.table))


def _pair_table(op: PairLookupOp, inputs: Mapping[str, Array]) -> Expected | None:
    return None if op.element_function() is None else Expected(values=_own(_of_elements(op, inputs), op.y))


def _pool2d(op: Pool2dOp, inputs: Mapping[str, Array]) -> Expected:
    is_nchw = op.layout == "NCHW"
    x = inputs[op.x.name].transpose(0, 2, 3, 1) if is_nchw else inputs[op.x.name]
    window = Window(strides=op.strides, padding=op.padding, dilation=op.dilation)
    places: Any = {"kernel": op.kernel, "window": window, "out_shape": (op.out_height, op.out_width)}
    values = _maximum(op, x, places) if op.kind == "max" else _average(op, x, places)
    real = None if op.kind == "max" else _real_average(op, x, window)
    found = _in_layout(Expected(values=values, real=real), _beyond(x, window, op.kernel, values), is_nchw=is_nchw)
    if values.ndim == len(op.y.tensor.shape):
        return found
    return Expected(values=found.values.reshape(op.y.tensor.shape))


def _maximum(op: Pool2dOp, x: Array, places: Mapping[str, Any]) -> Array:
    if op.x.params == op.y.tensor.params:
        return max_pool2d(x, **places, qmin=op.y.qmin, qmax=op.y.qmax)
    return _changed(max_pool2d(x, **places), op.x, op.y)


def _real_average(op: Pool2dOp, x: Array, window: Window) -> npt.NDArray[np.float64]:
    """Return the averages before they are rounded, in the result's integers."""
    size, y = (op.out_height, op.out_width), op.y.tensor.params
    centered = x.astype(np.float64) - int(op.x.params.zero_point)
    total = np.sum(_taps(centered, window, op.kernel, size, 0), axis=0)
    counted = np.sum(_taps(np.ones((1, *x.shape[1:3], 1)), window, op.kernel, size, 0), axis=0)
    count = op.kernel[0] * op.kernel[1] if op.count_include_pad else np.maximum(counted, 1)
    return total / count * (float(op.x.params.scale) / float(y.scale)) + int(y.zero_point)


def _average(op: Pool2dOp, x: Array, places: Mapping[str, Any]) -> Array:
    y = op.y.tensor.params
    bounds: Any = {"qmin": op.y.qmin, "qmax": op.y.qmax, "dtype": y.dtype, "count_include_pad": op.count_include_pad}
    if op.rounding == "float32":
        relabelling = op.x.relabelling
        parameters = FloatMeanParameters(
            in_scale=float(op.x.params.scale),
            input_zero_point=op.x.zero_point,
            out_scale=float(y.scale),
            zero_point=op.y.tensor.zero_point,
            relabelling=relabelling,
        )
        bounds |= {"qmin": op.y.qmin + relabelling, "qmax": op.y.qmax + relabelling, "dtype": "uint8"}
        return _own(float_avg_pool2d(op.x.kernel_integers(x), parameters, **places, **bounds), op.y)
    # Half away from zero is of the integers as they are stored.
    stored = op.rounding == "half_away"
    return avg_pool2d(
        x,
        **places,
        **bounds,
        multiplier=1.0 if stored else ratio(op.x.params, y),
        input_zero_point=0 if stored else int(op.x.params.zero_point),
        zero_point=0 if stored else int(y.zero_point),
        rounding=op.rounding,
    )


def _changed(values: Array, x: QuantizedTensor, y: QuantizedOutput) -> Array:
    """Return integers of `x` with the parameters of `y`."""
    params = y.tensor.params
    if y.fixed_point is not None and ratio(x.params, params) != 1.0:
        return lookup(values, fixed_point_table(x.params, params, y.fixed_point, qmin=y.qmin, qmax=y.qmax))
    if y.kernel_dtype == "int16":  # by a table of the real values
        return lookup(values, lookup_table(lambda real: real, x.params, params, qmin=y.qmin, qmax=y.qmax))
    return requantize_tensor(
        values,
        input_zero_point=int(x.params.zero_point),
        multiplier=ratio(x.params, params),
        zero_point=int(params.zero_point),
        qmin=y.qmin,
        qmax=y.qmax,
        dtype=params.dtype,
    )


def _concat(op: ConcatOp, inputs: Mapping[str, Array]) -> Expected:
    params = op.y.tensor.params
    values = [op.constants[i] if i in op.constants else inputs[tensor.name] for i, tensor in enumerate(op.inputs)]
    joined = np.concatenate([_changed(each, x, op.y) for each, x in zip(values, op.inputs, strict=True)], axis=op.axis)
    reals = [
        (integers.astype(np.float64) - int(tensor.params.zero_point)) * float(tensor.params.scale) / float(params.scale)
        for tensor, integers in zip(op.inputs, values, strict=True)
    ]
    return Expected(values=joined, real=np.concatenate(reals, axis=op.axis) + int(params.zero_point))


def _move(op: MoveOp, inputs: Mapping[str, Array]) -> Expected:
    x = inputs[op.x.name]
    transposed = x.reshape(op.y.tensor.shape) if op.axes is None else x.transpose(op.axes).reshape(op.y.tensor.shape)
    return Expected(values=_changed(transposed, op.x, op.y))


def _gather(op: GatherOp, inputs: Mapping[str, Array]) -> Expected:
    gathered = gather(inputs[op.x.name], known_maps(op.maps), op.fill).reshape(op.y.tensor.shape)
    return Expected(values=_changed(gathered, op.x, op.y))


def _batch_matmul(op: BatchMatmulOp, inputs: Mapping[str, Array]) -> Expected | None:
    if not isinstance(op.y, QuantizedOutput):
        return None
    a, b = (inputs[side.tensor.name] if side.values is None else side.values for side in (op.a, op.b))
    points = [int(side.tensor.params.zero_point) for side in (op.a, op.b)]
    acc = batch_matmul_accumulate(a, b, a_zero_point=points[0], b_zero_point=points[1])
    params = op.y.tensor.params
    sums = acc if op.narrow is None else op.narrow.hold(acc)
    values = requantize(sums, op.multiplier, int(params.zero_point), op.y.qmin, op.y.qmax, params.dtype)
    return Expected(
        values=values, accumulator=acc, real=sums.astype(np.float64) * (op.unit / float(params.scale)) + int(params.zero_point)
    )


def _reduce(op: ReduceOp, inputs: Mapping[str, Array]) -> Expected | None:
    x, params = inputs[op.x.name], op.y.tensor.params
    if op.kind in ("max", "min"):
        return Expected(values=_changed(reduce_extreme(x, op.axes, largest=op.kind == "max"), op.x, op.y).reshape(op.y.shape))
    centered = x.astype(np.float64) - int(op.x.params.zero_point)
    total = centered.mean(axis=op.axes) if op.kind == "mean" else centered.sum(axis=op.axes)
    real = np.asarray(total, np.float64) * (float(op.x.params.scale) / float(params.scale)) + int(params.zero_point)
    bounds: Any = {"qmin": op.y.qmin, "qmax": op.y.qmax, "dtype": params.dtype}
    points: Any = {"input_zero_point": int(op.x.params.zero_point), "zero_point": int(params.zero_point)}
    multiplier: Any = np.float32(ratio(op.x.params, params))
    asked = FIXED_POINT_ROUNDINGS.get(op.rounding)
    if op.kind == "sum" or (asked is not None and asked not in SHIFTS):
        if asked is not None:
            factor, count = float(op.x.params.scale) / float(params.scale), math.prod(x.shape[axis] for axis in op.axes)
            multiplier = fixed_point_multiplier(factor, asked) if op.kind == "sum" else mean_multiplier(factor, count, asked)
        stored = op.rounding == "half_even_stored"
        values = reduce_sum(x, op.axes, multiplier=multiplier, **points, **bounds, stored_even=stored)
    elif op.rounding in ("half_even", "half_even_stored", *SHIFTS):
        rounding: Any = op.rounding
        # A mean is the average of one window that holds all.
        rows = np.moveaxis(x, op.axes, range(len(op.axes)))
        image = rows.reshape(1, math.prod(rows.shape[: len(op.axes)]), 1, -1)
        window: Any = {"kernel": image.shape[1:3], "out_shape": (1, 1), "rounding": rounding}
        values = avg_pool2d(image, **window, **points, **bounds, multiplier=float(multiplier))
    else:
        return None
    return Expected(values=values.reshape(op.y.shape), real=real.reshape(op.y.shape))


def _place(op: ArgReduceOp, inputs: Mapping[str, Array]) -> Expected | None:
    return None if op.axis is None else Expected(values=arg_reduce(inputs[op.x.name], op.axis, largest=op.kind == "argmax"))


def _softmax(op: SoftmaxOp, inputs: Mapping[str, Array]) -> Expected | None:
    if op.is_log or op.rounding != "half_even" or op.x.kernel_dtype == "int16":
        return None
    params = op.y.tensor.params
    scale = float(np.float32(op.x.params.scale) * np.float32(op.beta))
    out: Any = {"out_scale": float(params.scale), "zero_point": int(params.zero_point), "dtype": params.dtype}
    rows = np.moveaxis(inputs[op.x.name], op.axis, -1)
    values = softmax(rows, scale=scale, **out, qmin=op.y.qmin, qmax=op.y.qmax)
    return Expected(values=np.moveaxis(values, -1, op.axis))


_ORACLES: dict[type[CompositeOp], Callable[[Any, Mapping[str, Array]], Expected | None]] = {
    Conv2dOp: _conv2d,
    MatmulOp: _matmul,
    StackedMatmulOp: _stacked_matmul,
    GatheredMatmulOp: _stacked_matmul,
    AddOp: _sum,
    PairwiseOp: _pairwise,
    LookupOp: _table,
    PairLookupOp: _pair_table,
    BatchMatmulOp: _batch_matmul,
    ReduceOp: _reduce,
    ArgReduceOp: _place,
    SoftmaxOp: _softmax,
    Pool2dOp: _pool2d,
    ConcatOp: _concat,
    MoveOp: _move,
    GatherOp: _gather,
}
