"""Outline each quantize and dequantize that no composite holds: the boundary between integer and float ops.

Before::

    x_q = R.quantize(x, ...); y_q = cls.octavo_conv2d_y_q(x_q)

After::

    x_q = cls.octavo_quantize_x_q(x); y_q = cls.octavo_conv2d_y_q(x_q)

Requires that all other composites are outlined: a quantize or dequantize inside one of them costs nothing.
"""

from __future__ import annotations

import tvm

from ...ir.graph.rules import partition
from ...ir.qdq.matchers.boundary import match_dequantize, match_quantize
from .context import PartitionContext
from .target_rules import Row, describe, is_repeatable, rules_for

BOUNDARY: tuple[Row, ...] = (
    ("quantize", ("quantize",), match_quantize),
    ("dequantize", ("dequantize",), match_dequantize),
)


def outline_boundary(module: tvm.IRModule, context: PartitionContext) -> tvm.IRModule:
    """Outline each quantize and dequantize that no composite holds as a composite function."""
    for target, backend in context.takers:
        found = partition(module, rules_for(context, BOUNDARY, target, backend), repeatable=is_repeatable, describe=describe)
        context.take_integer(found, backend)
        module = found.module
    return module
