"""Our converters of PyTorch functions, attention and norms that TVM's compute wrongly or not at all. Imports no PyTorch.

TVM's celu takes no slope, its grid_sampler reads the grid channels first, its cumsum does not build, and its copy writes what
PyTorch's returns. Its norms want factors and addends, and read the epsilon of instance_norm from another argument. Written out,
attention runs in the kernels of products and softmax, and the moves around it in integers.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from tvm import relax

from ...ir.untyped import ops
from ..frontend import RejectedOpError
from ..relax_ops import celu, dtype_of, is_static, running_sum, shape_of
from .conv1d import on_row
from .ops import Arguments, Converter, batch_norm

_METHODS = ("bilinear", "nearest", "bicubic")
_PADDINGS = ("zeros", "border", "reflection")


def _celu(args: Arguments) -> Any:
    return celu(args.emit, args["self"], float(args["alpha"]))


def _copy(args: Arguments) -> Any:
    """Return the source as a tensor like that which is written over: decompositions make it of an input that is changed."""
    over, source = args["self"], args["src"]
    if dtype_of(source) != dtype_of(over):
        source = args.emit(ops.astype(source, dtype_of(over)))
    return ops.broadcast_to(source, shape_of(over))


def _cumsum(args: Arguments) -> Any:
    x, shape = args["self"], shape_of(args["self"])
    wanted = dtype_of(x) if args["dtype"] is None else str(args["dtype"]).removeprefix("torch.")
    if args["dtype"] is None and not wanted.startswith("float"):
        wanted = "int64"
    x = x if wanted == dtype_of(x) else args.emit(ops.astype(x, wanted))
    return running_sum(args.emit, x, shape, int(args["dim"]) % len(shape)) if shape else x


def _grid_sampler(args: Arguments) -> Any:
    if len(shape_of(args["input"])) != 4:
        raise RejectedOpError("only images are sampled")
    grid = args.emit(ops.permute_dims(args["grid"], [0, 3, 1, 2]))
    return ops.image.grid_sample(
        args["input"],
        grid,
        method=_METHODS[int(args["interpolation_mode"])],
        layout="NCHW",
        padding_mode=_PADDINGS[int(args["padding_mode"])],
        align_corners=bool(args["align_corners"]),
    )


FUNCTIONS: dict[str, Converter] = {
    "aten.celu.default": _celu,
    "aten.copy.default": _copy,
    "aten.cumsum.default": _cumsum,
    "aten.grid_sampler.default": _grid_sampler,
    "aten.grid_sampler_2d.default": _grid_sampler,
    "aten.numpy_T.default": lambda args: ops.permute_dims(args["self"]),
}
"""Our converters by op and overload."""


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
    turned = args.emit(ops.permute_dims(key, [*axes[:-2], axes[-1], axes[-2]]))
    factor = 1 / math.sqrt(shape_of(query)[-1]) if args["scale"] is None else float(args["scale"])
    products = args.step("products", ops.matmul(query, turned))
    scores = args.step("scores", ops.multiply(products, relax.const(factor, dtype_of(query))))
    weights = args.step("weights", ops.nn.softmax(_masked(args, scores), -1))
    return ops.matmul(weights, value)


def _repeated(args: Arguments, side: Any, heads: int) -> Any:
    """Give each head of keys or values to as many heads of queries as share it."""
    kv_heads = shape_of(side)[-3]
    return side if kv_heads == heads else args.emit(ops.repeat(side, heads // kv_heads, len(shape_of(side)) - 3))


def _masked(args: Arguments, scores: Any) -> Any:
    mask, dtype = args["attn_mask"], dtype_of(scores)
    if args["is_causal"]:
        mask = _causal_mask(args, *shape_of(scores)[-2:])
    if mask is None:
        return scores
    if dtype_of(mask) != "bool":
        return args.emit(ops.add(scores, mask))
    return args.emit(ops.where(mask, scores, relax.const(-np.inf, dtype)))


def _causal_mask(args: Arguments, queries: Any, keys: Any) -> Any:
    """Return where the place of a key is at most that of a query."""
    if is_static((queries, keys)):
        return relax.const(np.tri(queries, keys, dtype=bool))
    rows, columns = (args.emit(ops.arange(0, size, 1, "int64")) for size in (queries, keys))
    return args.emit(ops.less_equal(args.emit(ops.expand_dims(columns, 0)), args.emit(ops.expand_dims(rows, 1))))


ATTENTION: dict[str, Converter] = {"aten.scaled_dot_product_attention.default": _attention}
"""Our converters by op and overload."""


def _constants(args: Arguments, x: Any, shape: list[int]) -> tuple[Any, Any]:
    """Return the factors and the addends, 1 and 0 where there are none."""
    dtype = str(x.ty.dtype)
    gamma, beta = args["weight"], args["bias"]
    return (
        relax.const(np.ones(shape), dtype) if gamma is None else gamma,
        relax.const(np.zeros(shape), dtype) if beta is None else beta,
    )


def _by_group(args: Arguments, groups: int) -> Any:
    x, shape = args["input"], shape_of(args["input"])
    gamma, beta = _constants(args, x, shape[1:2])

    def normalized(value: Any) -> Any:
        axes, epsilon = list(range(2, len(shape_of(value)))), float(args["eps"])
        return ops.nn.group_norm(value, gamma, beta, num_groups=groups, channel_axis=1, axes=axes, epsilon=epsilon)

    return on_row(args, x, normalized) if len(shape) == 3 else normalized(x)


def _group_norm(args: Arguments) -> Any:
    return _by_group(args, int(args["num_groups"]))


def _instance_norm(args: Arguments) -> Any:
    """By the statistics of each sample's channels, or by running ones where it keeps them."""
    if not args["use_input_stats"]:
        return batch_norm(args, args["input"])
    return _by_group(args, shape_of(args["input"])[1])


def _layer_norm(args: Arguments) -> Any:
    x, normalized = args["input"], [int(size) for size in args["normalized_shape"]]
    gamma, beta = _constants(args, x, normalized)
    rank = len(shape_of(x))
    return ops.nn.layer_norm(x, gamma, beta, axes=list(range(rank - len(normalized), rank)), epsilon=float(args["eps"]))


NORMS: dict[str, Converter] = {
    "aten.group_norm.default": _group_norm,
    "aten.instance_norm.default": _instance_norm,
    "aten.layer_norm.default": _layer_norm,
    "aten.native_group_norm.default": lambda args: (args.emit(_by_group(args, int(args["group"]))), None, None),
    "aten.native_layer_norm.default": lambda args: (args.emit(_layer_norm(args)), None, None),
}
"""Our converters of these ops, whose `native` forms have statistics as results, too, which only training reads."""
