"""Facts of a composite op by the names of `target.limits.LIMITS`: what hardware may bound. It judges none of them."""

from __future__ import annotations

import math

from .base import CompositeOp
from .reduction import Pool2dOp
from .weighted import BatchMatmulOp, Conv2dOp, Conv2dTransposeOp, MatmulOp

Facts = dict[str, tuple[int, ...]]


def facts_of(op: CompositeOp, shape: tuple[int, ...], inputs: int) -> Facts:
    """Return the numbers of an op that has a result of this shape and reads so many tensors, constants not counted."""
    batch = {"batch": shape[:1]} if shape else {}
    return {"rank": (len(shape),), **batch, "elements": (math.prod(shape),), "inputs": (inputs,), **_window(op), **_channels(op)}


def _window(op: CompositeOp) -> Facts:
    if isinstance(op, (Conv2dOp, Conv2dTransposeOp)):
        kernel, groups = op.weight.values.shape[:2], {"groups": (op.groups,)}
    elif isinstance(op, Pool2dOp):
        kernel, groups = op.kernel, {}
    else:
        return {}
    return {"kernel": kernel, "stride": op.strides, "dilation": op.dilation, "padding": op.padding, **groups}


def _channels(op: CompositeOp) -> Facts:
    if isinstance(op, (Conv2dOp, Conv2dTransposeOp)):
        read, made = op.weight.values.shape[2] * op.groups, op.weight.values.shape[3]
    elif isinstance(op, MatmulOp):
        read, made = op.weight.values.shape
    elif isinstance(op, BatchMatmulOp):
        read, made = op.a.tensor.shape[-1], op.b.tensor.shape[-1]
    elif isinstance(op, Pool2dOp):
        read = made = op.x.shape[1 if op.layout == "NCHW" else -1]
    else:
        return {}
    return {"input_channels": (read,), "output_channels": (made,)}
