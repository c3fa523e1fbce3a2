"""Normalizations with statistics over rows, or over groups of channels."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ......ir.composites.normalization import GroupNormOp, L2NormalizeOp, LayerNormOp, NormalizationOp
from ......numerics.quantized.normalization import scaled_epsilon
from ...isa import Isa
from ...kernel import Argument, BoundKernel, Kernel, Number
from .softmax import Rows

_THREADS = 256


def layer_norm(op: LayerNormOp, rows: Rows, isa: Isa) -> BoundKernel:
    """Return the kernel of rows that lie together, each normalized."""
    kernel = Kernel(
        name="layer_norm",
        header="norm.cuh",
        function="layer_norm",
        parameters={**rows.parameters, **_parameters(op, rows.columns)},
        types=_types(op),
        arguments=_arguments(op),
        grid=rows.grid,
        block=rows.block,
        shared_bytes=4 * rows.block[0],
        isa=isa.name,
    )
    return kernel, _constants(op)


def group_norm(op: GroupNormOp, images: int, pixels: int, isa: Isa) -> BoundKernel:
    """Return the kernel of images whose channels lie last, each group of channels normalized."""
    channels = op.x.shape[op.axis]
    sizes: dict[str, Number] = {"pixels": pixels, "channels": channels, "groups": op.groups, "threads": _THREADS}
    kernel = Kernel(
        name="group_norm",
        header="norm.cuh",
        function="group_norm",
        parameters={**sizes, **_parameters(op, pixels * channels // op.groups)},
        types=_types(op),
        arguments=_arguments(op),
        grid=(images * op.groups, 1, 1),
        block=(_THREADS, 1, 1),
        shared_bytes=8 * _THREADS,
        isa=isa.name,
    )
    return kernel, _constants(op)


def l2_normalize(op: L2NormalizeOp, rows: Rows, isa: Isa) -> BoundKernel:
    """Return the kernel of rows that lie together, each over its norm."""
    x, params = op.x.params, op.y.tensor.params
    kernel = Kernel(
        name="l2_normalize",
        header="norm.cuh",
        function="l2_normalize",
        parameters={
            **rows.parameters,
            "x_zero_point": int(x.zero_point),
            "is_fixed": op.rounding == "fixed_point",
            "y_scale": float(params.scale),
            "zero_point": int(params.zero_point),
            "qmin": op.y.qmin,
            "qmax": op.y.qmax,
        },
        types={"X": x.dtype, "Y": params.dtype},
        arguments=(Argument(name="x", dtype=x.dtype), Argument(name="y", dtype=params.dtype, writes=True)),
        grid=rows.grid,
        block=rows.block,
        shared_bytes=4 * rows.block[0],
        isa=isa.name,
    )
    return kernel, ()


def _parameters(op: NormalizationOp, count: int) -> dict[str, Number]:
    epsilon = float(scaled_epsilon(op.epsilon, float(op.x.params.scale)))
    points: dict[str, Number] = {"zero_point": int(op.y.tensor.params.zero_point), "qmin": op.y.qmin, "qmax": op.y.qmax}
    return {**points, "epsilon": epsilon, "squared_count": float(np.float32(count * count))}


def _types(op: NormalizationOp) -> dict[str, str]:
    return {"X": op.x.params.dtype, "Y": op.y.tensor.params.dtype}


def _arguments(op: NormalizationOp) -> tuple[Argument, ...]:
    return (
        Argument(name="x", dtype=op.x.params.dtype),
        Argument(name="factor", dtype="float32"),
        Argument(name="addend", dtype="float32"),
        Argument(name="y", dtype=op.y.tensor.params.dtype, writes=True),
    )


def _constants(op: NormalizationOp) -> tuple[npt.NDArray[np.float32], ...]:
    """Return gamma and beta in steps of the result."""
    scale = np.float32(op.y.tensor.params.scale)
    return tuple((values.astype(np.float32) / scale).astype(np.float32) for values in (op.gamma, op.beta))
