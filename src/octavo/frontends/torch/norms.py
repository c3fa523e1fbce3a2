"""Our converters of PyTorch's normalizations over axes of one sample: each the one op that lowering knows. Imports no PyTorch.

TVM's want factors and addends, and read the epsilon of instance_norm from another argument.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax

from ..relax_ops import shape_of
from .conv1d import on_row
from .ops import Arguments, Converter, batch_norm

# TVM's stubs claim narrower arguments than its ops take.
_ops: Any = relax.op


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
        return _ops.nn.group_norm(value, gamma, beta, num_groups=groups, channel_axis=1, axes=axes, epsilon=epsilon)

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
    return _ops.nn.layer_norm(x, gamma, beta, axes=list(range(rank - len(normalized), rank)), epsilon=float(args["eps"]))


NORMS: dict[str, Converter] = {
    "aten.group_norm.default": _group_norm,
    "aten.instance_norm.default": _instance_norm,
    "aten.layer_norm.default": _layer_norm,
    "aten.native_group_norm.default": lambda args: (args.emit(_by_group(args, int(args["group"]))), None, None),
    "aten.native_layer_norm.default": lambda args: (args.emit(_layer_norm(args)), None, None),
}
"""Our converters of these ops, whose `native` forms have statistics as results, too, which only training reads."""
