"""Our converters of PyTorch functions, attention and norms that TVM's compute wrongly or not at all. Imports no PyTorch.

TVM's celu takes no slope, its grid_sampler reads the grid channels first, and its copy writes what PyTorch's returns. Its norms
want factors and addends, and read the epsilon of instance_norm from another argument. Written out, attention runs in the kernels
of products and softmax, and the moves around it in integers.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from tvm import relax

from ...ir.untyped import ops
from ..frontend import RejectedOpError
from ..relax_ops import celu, dtype_of, is_static, shape_of
from .conv1d import on_row
from .ops import Arguments, Converter, batch_norm, cast, common_dtype, divide

_METHODS = ("bilinear", "nearest", "bicubic")
_PADDINGS = ("zeros", "border", "reflection")
_NEAR = (
    2.81022636e-08,
    3.43273939e-07,
    -3.5233877e-06,
    -4.39150654e-06,
    2.1858087e-04,
    -1.25372503e-03,
    -4.17768164e-03,
    0.246640727,
    1.50140941,
)
_FAR = (
    -2.00214257e-04,
    1.00950558e-04,
    1.34934322e-03,
    -3.67342844e-03,
    5.73950773e-03,
    -7.6224613e-03,
    9.43887047e-03,
    1.00167406,
    2.83297682,
)
"""Coefficients of erfinv, from the highest power: Giles, Approximating the erfinv function (GPU Computing Gems, 2011)."""


def _celu(args: Arguments) -> Any:
    return celu(args.emit, args["self"], float(args["alpha"]))


def _inverse_error(args: Arguments) -> Any:
    """x times a polynomial of -log(1 - x^2), or of its square root far from 0; infinity at 1, NaN beyond."""
    x = cast(args["self"], "float32")

    def of(op: Any, *sides: Any) -> Any:
        return args.emit(op(*(relax.const(side, "float32") if isinstance(side, float) else side for side in sides)))

    def polynomial(value: Any, coefficients: tuple[float, ...]) -> Any:
        result: Any = coefficients[0]
        for each in coefficients[1:]:
            result = of(ops.add, of(ops.multiply, result, value), each)
        return result

    w = of(ops.negative, of(ops.log, of(ops.multiply, of(ops.subtract, 1.0, x), of(ops.add, 1.0, x))))
    inner = polynomial(of(ops.subtract, w, 2.5), _NEAR)
    outer = polynomial(of(ops.subtract, of(ops.sqrt, w), 3.0), _FAR)
    product = of(ops.multiply, x, of(ops.where, of(ops.less, w, 5.0), inner, outer))
    end = of(ops.multiply, x, math.inf)
    return ops.where(of(ops.equal, of(ops.abs, x), 1.0), end, product)


def _copy(args: Arguments) -> Any:
    """Return the source as a tensor like that which is written over: decompositions make it of an input that is changed."""
    over, source = args["self"], args["src"]
    if dtype_of(source) != dtype_of(over):
        source = args.emit(ops.astype(source, dtype_of(over)))
    return ops.broadcast_to(source, shape_of(over))


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


def _affine_grid(args: Arguments) -> Any:
    """Return where the pixels of an image, or of a volume, lie in another one: places in [-1; 1] times matrices."""
    theta, sizes = args["theta"], list(args["size"])[2:]
    if not is_static(sizes):
        raise RejectedOpError(f"an image of open size; {args.symbols.advice()}")
    reach = [1.0 if args["align_corners"] else (size - 1) / size for size in sizes]
    along = [np.linspace(-end, end, size) if size > 1 else np.zeros(1) for end, size in zip(reach, sizes, strict=True)]
    places = [*reversed(np.meshgrid(*along, indexing="ij")), np.ones(sizes)]
    base = np.stack(places, -1).reshape(1, -1, len(sizes) + 1)
    turned = args.emit(ops.permute_dims(theta, [0, 2, 1]))
    shape: Any = [shape_of(theta)[0], *sizes, len(sizes)]
    return ops.reshape(args.emit(ops.matmul(relax.const(base, dtype_of(theta)), turned)), relax.ShapeExpr(shape))


def _quotient(args: Arguments) -> Any:
    """Quotient, rounded down or towards 0 where a mode says so; of integers whole numbers."""
    mode, dtype = args["rounding_mode"], common_dtype([args["self"], args["other"]])
    if mode is None:
        return divide(args)
    left, right = (cast(side, dtype) for side in (args["self"], args["other"]))
    if dtype.startswith("float"):
        quotient = args.emit(ops.divide(left, right))
        return ops.floor(quotient) if mode == "floor" else ops.trunc(quotient)
    if mode == "floor":
        return ops.floor_divide(left, right)
    amounts = [args.emit(ops.abs(args.emit(side) if isinstance(side, relax.Call) else side)) for side in (left, right)]
    signs = args.emit(ops.multiply(args.emit(ops.sign(left)), args.emit(ops.sign(right))))
    return ops.multiply(args.emit(ops.floor_divide(*amounts)), signs)


def _product(args: Arguments) -> Any:
    """Of all values, or along an axis; of integers 64 bits."""
    x, dim = args["self"], args.values.get("dim")
    wanted = None if args["dtype"] is None else str(args["dtype"]).removeprefix("torch.")
    wanted = wanted or (dtype_of(x) if dtype_of(x).startswith("float") else "int64")
    x = x if wanted == dtype_of(x) else args.emit(ops.astype(x, wanted))
    return ops.prod(x, axis=None if dim is None else [int(dim)], keepdims=bool(args.values.get("keepdim", False)))


FUNCTIONS: dict[str, Converter] = {
    "aten.affine_grid_generator.default": _affine_grid,
    "aten.div.Scalar_mode": _quotient,
    "aten.div.Tensor_mode": _quotient,
    "aten.prod.default": _product,
    "aten.prod.dim_int": _product,
    "aten.celu.default": _celu,
    "aten.erfinv.default": _inverse_error,
    "aten.copy.default": _copy,
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
