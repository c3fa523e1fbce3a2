"""The rule of products with 4-bit weights that have a scale for each block of inputs.

Before::

    w = <blocks of w_q, dequantized: ir.qdq.blocks>; y = R.matmul(x, w); z = R.add(y, bias)

After: one composite "octavo.block_matmul" from x to z, with w_q in it. x is float32, or quantized per row when run.
A float32 x is read as `ir.qdq.block_activations` says.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm.relax import Expr, Var

from ....numerics import INTEGER_RANGE, PerBlock, QuantParams
from ....numerics.dynamic import is_by_row
from ....target import OpSupport
from ...composites.base import CompositeOp, FloatResult
from ...composites.blocks import BlockMatmulOp, BlockWeight, FloatTensor
from ...composites.weighted import DynamicTensor
from ...graph.dataflow import DataflowView, call_to, dtype_of, static_shape
from ...graph.rules import Region, Rejection
from ..block_activations import block_activations_of
from ..blocks import block_size, of_blocks
from ..runtime_inputs import dynamic_input, dynamic_tensor
from ..tail import follow_in_float
from ..values import ConstantValue, constant_value, real_values
from ..weights import read_bias

_VALUES = 16
"""Of 4 bits."""


def match_block_matmul(view: DataflowView, core: Var, support: OpSupport) -> Region[CompositeOp] | Rejection:
    """Claim clamp(matmul(x, w) + bias) of a constant w [in, out] of 4 bits in blocks."""
    call = call_to(view.definition(core), "matmul")
    assert call is not None
    shape, constant = static_shape(core), constant_value(view, call.args[1])
    if shape is None or 0 in shape or dtype_of(core) != "float32" or not support.weight_blocks:
        return Rejection(reason=f"{core.name} is no float32 product of static shape, or the target takes no weights in blocks")
    weight = None if constant is None else _read_weight(view, constant, support)
    if weight is None:
        return Rejection(reason=f"its weight is no constant of 4 bits in blocks of {', '.join(map(str, support.weight_blocks))}")
    x = _read_input(view, call.args[0], support)
    if isinstance(x, Rejection):
        return x
    tensor, source, entry = x
    found = read_bias(view, core, len(shape) - 1, shape[-1]) if "bias" in support.fusions else None
    start, bias = (core, None) if found is None else found
    tail = follow_in_float(view, start, support)
    real = np.zeros(shape[-1], np.float32) if bias is None else np.ascontiguousarray(real_values(bias))
    y = FloatResult(
        name=tail.output.name, shape=shape, bias=real, bias_name="" if bias is None else bias.name, low=tail.low, high=tail.high
    )
    assert constant is not None, "it has a weight"
    members = (*entry, *constant.members, core, *(() if bias is None else (*bias.members, start)), *tail.members)
    activations = block_activations_of(view, (var.name for var in members))
    op = BlockMatmulOp(x=tensor, weight=weight, y=y, activations=activations)
    return Region(core=core, output=tail.output, members=tuple(dict.fromkeys(members)), inputs=(source,), op=op)


def _read_input(
    view: DataflowView, expr: Expr, support: OpSupport
) -> tuple[FloatTensor | DynamicTensor, Var, tuple[Var, ...]] | Rejection:
    """Return an activation, its variable, and the variables that quantize it per row when run."""
    dynamic = dynamic_input(view, expr)
    if dynamic is not None and is_by_row(dynamic.found.style) and support.per_row_input:
        return dynamic_tensor(dynamic), dynamic.source, dynamic.members
    shape = static_shape(expr)
    if not isinstance(expr, Var) or not shape or len(shape) < 2 or dtype_of(expr) != "float32" or constant_value(view, expr):
        return Rejection(reason=f"its input {getattr(expr, 'name', 'constant')} is no float32 activation of static shape")
    return FloatTensor(name=expr.name, shape=shape), expr, ()


def _read_weight(view: DataflowView, constant: ConstantValue, support: OpSupport) -> BlockWeight | None:
    """Return a weight that 4 bits hold, with as large blocks as the target takes and its scales allow."""
    values = constant.values
    if constant.scale is None or constant.zero_point is None or values.ndim != 2 or not values.size:
        return None
    low, high = int(values.min()), int(values.max())
    if str(values.dtype) not in ("int8", "uint8") or high - low >= _VALUES:
        return None
    common = block_size(constant)
    size = max((each for each in support.weight_blocks if common % each == 0), default=0)
    if not size:
        return None
    ranges = (INTEGER_RANGE[name] for name in ("int4", "uint4"))
    first = next((least for least, most in ranges if least <= low and high <= most), low)
    scale, zero_point = (of_blocks(each, size) for each in (constant.scale, constant.zero_point))
    try:
        params = QuantParams(dtype=str(values.dtype), scale=scale, zero_point=zero_point, granularity=PerBlock(0, size))
    except ValueError:
        return None
    return BlockWeight(
        name=_name(view, constant),
        values=np.ascontiguousarray((values.astype(np.int32) - first).astype(np.uint8)),
        scale=params.scale,
        zero_point=params.zero_point - first,
        params=params,
    )


def _name(view: DataflowView, constant: ConstantValue) -> str:
    """Return the name of the first variable that holds the weight as a matrix: dequantized, and out of its blocks."""
    real: list[Any] = [var for var in constant.members if dtype_of(var) == "float32"]
    matrices = [var for var in real if call_to(view.definition(var), "reshape") is not None and len(static_shape(var) or ()) == 2]
    return matrices[-1].name if matrices else constant.name
