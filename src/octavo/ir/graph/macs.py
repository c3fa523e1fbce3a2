"""How many multiply-accumulates an op of the graph takes in one inference, whatever computes it. Writes no kernels.

Kernels of our own count theirs themselves (`CompositeOp.macs`); what is counted here is left to TVM: convolutions of any rank,
transposed ones, products of matrices and attention, so that the share of integer work is right for a mixed model.
"""

from __future__ import annotations

import math
from typing import Any

from ...runtime.shapes import typical
from .dataflow import op_name, static_shape
from .recurrence import NAME as RECURRENCE
from .recurrence import read_recurrence

_CONVOLUTIONS = ("nn.conv1d", "nn.conv2d", "nn.conv3d")


_TRANSPOSED = tuple(f"{name}_transpose" for name in _CONVOLUTIONS)


_ATTENTION = ("nn.attention", "nn.attention_bias")


def float_macs(value: Any) -> int:
    """Return the multiply-accumulates of a call, at a typical size where sizes are open.

    0 for ops without a product of tensors and where a shape is not known.
    """
    return typical(_macs(value))


def _macs(value: Any) -> int:
    name = op_name(value)
    if name == RECURRENCE:
        return _recurrence(value)
    if name not in ("matmul", "einsum", *_CONVOLUTIONS, *_TRANSPOSED, *_ATTENTION):
        return 0
    operands = list(value.args[0].fields) if name == "einsum" and hasattr(value.args[0], "fields") else list(value.args)
    result, shapes = static_shape(value), [static_shape(operand) for operand in operands]
    known = [shape for shape in shapes if shape is not None]
    if result is None or len(known) < len(shapes):
        return 0
    if name == "einsum":
        return _einsum(str(value.attrs.subscripts), known)
    first, second = known[:2]
    if name == "matmul":
        return math.prod(result) * first[-1]
    if name in _ATTENTION:
        # Batch, length, heads, size: each query meets each key, and the weights of these each value.
        return math.prod(first[:-1]) * second[1] * (first[-1] + result[-1])
    layout = str(value.attrs.kernel_layout)
    # A convolution gathers for each result; a transposed one spreads each element of its operand.
    spread, one = (first, "I") if name in _TRANSPOSED else (result, "O")
    return math.prod(spread) * math.prod(second) // second[layout.index(one)]


def _einsum(subscripts: str, shapes: list[tuple[int, ...]]) -> int:
    """Return the size of the space of all indices: one product for each point of it."""
    terms = subscripts.replace(" ", "").split("->")[0].split(",")
    if len(shapes) < 2 or "." in subscripts or [len(term) for term in terms] != [len(shape) for shape in shapes]:
        return 0
    sizes = {index: dim for term, shape in zip(terms, shapes, strict=True) for index, dim in zip(term, shape, strict=True)}
    return math.prod(sizes.values())


def _recurrence(value: Any) -> int:
    what, operands = read_recurrence(value)
    result, weights = static_shape(value), static_shape(operands["weights"])
    if result is None or weights is None:
        return 0
    return (result[0] - what.states) * result[1] * math.prod(weights)
