"""Softmax, and its logarithm."""

from __future__ import annotations

import math
from collections.abc import Mapping

from .....ir.composites.normalization import SoftmaxOp
from ..emission import Emission, Value
from ..kernels.norms.softmax import Rows, softmax
from .rows import as_source, rows_last


def emit_softmax(op: SoftmaxOp, emission: Emission, inputs: Mapping[str, Value]) -> Value:
    """Launch a softmax, or its logarithm, over rows that lie together, brought so where they do not."""
    x, order = rows_last(emission, inputs[op.x.name], op.axis)
    columns = x.shape[-1]
    rows = Rows.of(math.prod(x.shape) // columns, columns)
    result = emission.new(x.shape, op.y.tensor.params.dtype)
    return as_source(emission, emission.launch(softmax(op, rows, emission.isa), [x], result), order)
