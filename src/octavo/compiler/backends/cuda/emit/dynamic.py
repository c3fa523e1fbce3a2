"""Products with constant weights of a tensor that is quantized at run time.

Its integers are padded by their zero point as they are written, so that a kernel for zero points of 0 multiplies them; what the
true zero point adds to a sum is that times the sum of the weights, which the last launch takes off.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from .....ir.composites.base import FloatResult, QuantizedOutput, QuantizedTensor, SumResult
from .....ir.composites.weighted import Conv2dOp, DynamicTensor, MatmulOp
from .....numerics import QuantParams
from ..emission import TO_NCHW, TO_NHWC, Emission, Value
from ..kernels.language.axes import dense_steps
from ..kernels.quantization.dynamic import (
    DynamicResult,
    Image,
    dynamic_result,
    parameters,
    parts_of,
    quantize_at_run_time,
    ranges,
)
from .conv2d import emit_conv2d, emit_matmul

Padding = tuple[int, int, int, int]


def emit_dynamic_conv2d(op: Conv2dOp, emission: Emission, inputs: Mapping[str, Value]) -> Value:
    """Launch a convolution of a tensor that is quantized first."""
    assert isinstance(op.x, DynamicTensor)
    x = _source(op.x, emission, inputs)
    steps = dense_steps(x.lying_shape)
    is_nchw = op.layout == "NCHW"
    by_axis = [steps[TO_NHWC.index(axis)] if x.is_nhwc else steps[axis] for axis in (TO_NHWC if is_nchw else range(4))]
    sizes = [x.shape[axis] for axis in (TO_NHWC if is_nchw else range(4))]
    image = Image(sizes=_four(sizes), steps=_four(by_axis))
    integers, found = _quantized(op.x, x, image, op.padding, emission)
    shape = image.padded(op.padding)
    shape = _four([shape[axis] for axis in TO_NCHW]) if is_nchw else shape
    value = Value(buffer=integers.buffer, shape=shape, dtype="uint8", is_nhwc=is_nchw)
    return _ended(replace(op, padding=(0, 0, 0, 0)), value, found, emission)


def emit_dynamic_matmul(op: MatmulOp, emission: Emission, inputs: Mapping[str, Value]) -> Value:
    """Launch a product of a tensor that is quantized first."""
    assert isinstance(op.x, DynamicTensor)
    x = emission.lying(_source(op.x, emission, inputs), is_nhwc=False)
    sizes = op.x.scales, math.prod(op.x.shape[:-1]) // op.x.scales, 1, op.x.shape[-1]
    integers, found = _quantized(op.x, x, Image(sizes=sizes, steps=_four(dense_steps(sizes))), (0, 0, 0, 0), emission)
    return _ended(op, Value(buffer=integers.buffer, shape=op.x.shape, dtype="uint8"), found, emission)


def _four(values: list[int] | tuple[int, ...]) -> tuple[int, int, int, int]:
    first, second, third, fourth = values
    return first, second, third, fourth


def _source(x: DynamicTensor, emission: Emission, inputs: Mapping[str, Value]) -> Value:
    """Return the floats in the shape of their integers, which may have axes of size 1 more."""
    value = inputs[x.name]
    return value if value.shape == x.shape else replace(emission.lying(value, is_nhwc=False), shape=x.shape)


def _quantized(x: DynamicTensor, value: Value, image: Image, padding: Padding, emission: Emission) -> tuple[Value, Value]:
    """Return integers and parameters, made once for all products that read them."""
    rows, size = x.scales, math.prod(x.shape) // x.scales

    def parameters_of() -> Value:
        found = emission.launch(ranges(rows, size, emission.isa), [value], emission.new((rows, parts_of(size), 2), "float32"))
        return emission.launch(parameters(rows, size, x.style, emission.isa), [found], emission.new((rows, 2), "float32"))

    found = emission.once((value.buffer, "parameters", x.style, rows), parameters_of)

    def integers_of() -> Value:
        kernel = quantize_at_run_time(image, padding, rows, x.style, emission.isa)
        return emission.launch(kernel, [value, found], emission.new(image.padded(padding), "uint8"))

    return emission.once((value.buffer, "integers", x.style, rows, image, padding), integers_of), found


def _ended(op: Conv2dOp | MatmulOp, integers: Value, found: Value, emission: Emission) -> Value:
    """Return the result of the product of integers, whose zero point is still in every sum."""
    y, weight, x = op.y, op.weight, op.x
    assert isinstance(x, DynamicTensor)
    assert not isinstance(y, QuantizedOutput), "its scale is not known"
    weight.check_overflow_of((0, 255), y.name)
    if isinstance(y, FloatResult):
        weight = replace(weight, bias=np.zeros_like(weight.bias), real_bias=None)
    tensor = QuantizedTensor(name=x.name, shape=integers.shape, params=QuantParams.per_tensor("uint8", 1.0, 0))
    product = replace(op, x=tensor, weight=weight, y=SumResult(name=y.name, shape=y.shape))
    read = {x.name: integers}
    sums = emit_conv2d(product, emission, read) if isinstance(product, Conv2dOp) else emit_matmul(product, emission, read)
    values = weight.values.astype(np.int64).reshape(-1, weight.values.shape[-1])
    channels = values.shape[1]
    multiplier = np.ascontiguousarray(np.broadcast_to(np.asarray(op.multiplier, np.float32), (channels,)))
    spec = DynamicResult(
        rows=x.scales,
        pixels=math.prod(y.shape) // channels,
        weights=(values - weight.zero_point.astype(np.int64)).sum(axis=0).astype(np.int32),
        multiplier=multiplier,
        y=y,
    )
    result = emission.new(y.shape, y.kernel_dtype, is_nhwc=sums.is_nhwc)
    return emission.launch(dynamic_result(spec, emission.isa), [sums, found], result)
