"""The edges of integer regions."""

from __future__ import annotations

from collections.abc import Mapping

from .....ir.composites.movement import DequantizeOp, QuantizeOp
from ..emission import TO_NHWC, Emission, Value
from ..kernels.quantization.quantize import EdgeSpec, dequantize, quantize


def emit_quantize(op: QuantizeOp, emission: Emission, inputs: Mapping[str, Value]) -> Value:
    """Launch a quantize."""
    x, params = inputs[op.source], op.y.tensor.params
    bounds = max(op.y.qmin, params.qmin), min(op.y.qmax, params.qmax)
    result = emission.new(op.y.shape, params.dtype, is_nhwc=x.is_nhwc)
    spec = EdgeSpec.of(op.y.shape, params, _order(x))
    return emission.launch(quantize(spec, op.rounding, bounds, emission.isa), [x], result)


def emit_dequantize(op: DequantizeOp, emission: Emission, inputs: Mapping[str, Value]) -> Value:
    """Launch a dequantize; the source's layout is reached before, in which integers are quicker to move than floats."""
    x = emission.lying(inputs[op.x.name], is_nhwc=False)
    result = emission.new(op.x.shape, "float32")
    return emission.launch(dequantize(EdgeSpec.of(op.x.shape, op.x.params, _order(x)), emission.isa), [x], result)


def _order(x: Value) -> tuple[int, ...]:
    return TO_NHWC if x.is_nhwc else tuple(range(len(x.shape)))
