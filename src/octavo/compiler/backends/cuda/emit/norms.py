"""Normalizations: softmax and its logarithm, layer and group norm, division by a length."""

from __future__ import annotations

import math
from collections.abc import Mapping

from .....ir.composites.normalization import GroupNormOp, L2NormalizeOp, LayerNormOp, SoftmaxOp
from ..emission import Emission, Value
from ..kernels.norms.norm import group_norm, l2_normalize, layer_norm
from ..kernels.norms.softmax import Rows, softmax
from .rows import as_source, rows_last


def emit_layer_norm(op: LayerNormOp, emission: Emission, inputs: Mapping[str, Value]) -> Value:
    """Launch a normalization of each row along the last axis."""
    x, order = rows_last(emission, inputs[op.x.name], len(op.x.shape) - 1)
    columns = x.shape[-1]
    rows = Rows.of(math.prod(x.shape) // columns, columns)
    result = emission.new(x.shape, op.y.tensor.params.dtype)
    return as_source(emission, emission.launch(layer_norm(op, rows, emission.isa), [x], result), order)


def emit_group_norm(op: GroupNormOp, emission: Emission, inputs: Mapping[str, Value]) -> Value:
    """Launch a normalization of groups of channels, which are brought last where they lie elsewhere."""
    x, order = rows_last(emission, inputs[op.x.name], op.axis)
    images = op.x.shape[0]
    pixels = math.prod(op.x.shape) // (images * op.x.shape[op.axis])
    result = emission.new(x.shape, op.y.tensor.params.dtype)
    return as_source(emission, emission.launch(group_norm(op, images, pixels, emission.isa), [x], result), order)


def emit_l2_normalize(op: L2NormalizeOp, emission: Emission, inputs: Mapping[str, Value]) -> Value:
    """Launch a division of each row by its norm; rows are brought together where they lie otherwise."""
    x, order = rows_last(emission, inputs[op.x.name], op.axis)
    columns = x.shape[-1]
    rows = Rows.of(math.prod(x.shape) // columns, columns)
    result = emission.new(x.shape, op.y.tensor.params.dtype)
    return as_source(emission, emission.launch(l2_normalize(op, rows, emission.isa), [x], result), order)


def emit_softmax(op: SoftmaxOp, emission: Emission, inputs: Mapping[str, Value]) -> Value:
    """Launch a softmax, or its logarithm, over rows that lie together, brought so where they do not."""
    x, order = rows_last(emission, inputs[op.x.name], op.axis)
    columns = x.shape[-1]
    rows = Rows.of(math.prod(x.shape) // columns, columns)
    result = emission.new(x.shape, op.y.tensor.params.dtype)
    return as_source(emission, emission.launch(softmax(op, rows, emission.isa), [x], result), order)
