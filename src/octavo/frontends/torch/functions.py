"""Our converters of PyTorch functions that TVM's compute wrongly or not at all. Imports no PyTorch.

TVM's celu takes no slope, its grid_sampler reads the grid channels first, its cumsum does not build, and its copy writes what
PyTorch's returns.
"""

from __future__ import annotations

from typing import Any

from ...ir.untyped import ops
from ..frontend import RejectedOpError
from ..relax_ops import celu, dtype_of, running_sum, shape_of
from .ops import Arguments, Converter

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
