"""Our converter of PyTorch's attention, as products and a softmax. Imports no PyTorch.

Written out, attention runs in the kernels of products and softmax, and the moves around it in integers.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from tvm import relax

from ..frontend import RejectedOpError
from ..relax_ops import dtype_of, shape_of
from .ops import Arguments, Converter

# TVM's stubs claim narrower arguments than its ops take.
_ops: Any = relax.op


def _attention(args: Arguments) -> Any:
    """softmax(query @ key^T * scale + mask) @ value, over the last two axes.

    Formula of torch.nn.functional.scaled_dot_product_attention; scale is 1 / sqrt(width of a query) where none is declared.
    """
    if args["dropout_p"]:
        raise RejectedOpError("it drops values out; call model.eval() before torch.export.export")
    query, key, value = args["query"], args["key"], args["value"]
    if args["enable_gqa"]:
        key, value = (_repeated(args, side, shape_of(query)[-3]) for side in (key, value))
    axes = list(range(len(shape_of(key))))
    turned = args.emit(_ops.permute_dims(key, [*axes[:-2], axes[-1], axes[-2]]))
    factor = 1 / math.sqrt(shape_of(query)[-1]) if args["scale"] is None else float(args["scale"])
    products = args.step("products", _ops.matmul(query, turned))
    scores = args.step("scores", _ops.multiply(products, relax.const(factor, dtype_of(query))))
    weights = args.step("weights", _ops.nn.softmax(_masked(args, scores), -1))
    return _ops.matmul(weights, value)


def _repeated(args: Arguments, side: Any, query_heads: int) -> Any:
    """Give each head of keys or values to as many heads of queries as share it."""
    kv_heads = shape_of(side)[-3]
    return side if kv_heads == query_heads else args.emit(_ops.repeat(side, query_heads // kv_heads, len(shape_of(side)) - 3))


def _masked(args: Arguments, scores: Any) -> Any:
    mask, dtype = args["attn_mask"], dtype_of(scores)
    if args["is_causal"]:
        mask = relax.const(np.tri(*shape_of(scores)[-2:], dtype=bool))
    if mask is None:
        return scores
    if dtype_of(mask) != "bool":
        return args.emit(_ops.add(scores, mask))
    return args.emit(_ops.where(mask, scores, relax.const(-np.inf, dtype)))


ATTENTION: dict[str, Converter] = {"aten.scaled_dot_product_attention.default": _attention}
"""Our converters by op and overload."""
