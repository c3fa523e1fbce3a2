"""Matmuls by weights that have a scale for each block of inputs, written as what integer kernels compute: a sum over the blocks.

Before::

    x = R.dequantize(x_q, ...); y = R.matmul(x, w)        # w [in, out]: dequantized, a scale for each 16 of `in`, say

After: the blocks are the groups of a pointwise convolution, whose weights have a scale for each output channel ::

    image = R.dequantize(R.reshape(x_q, (1, rows, 1, in)), ...); w_blocks = R.dequantize(<in blocks>, ..., axis=3)
    parts = R.nn.conv2d(image, w_blocks, groups=blocks)   # (1, rows, 1, blocks * out)
    y = R.sum(R.reshape(parts, (..., blocks, out)), axis=-2)

Requires constants bound. Ensures that y keeps its variable; float inputs, and blocks too small to be worth it, stay as they are.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import tvm
from tvm.relax import Expr, Var

from ...ir.graph.dataflow import (
    BodyWriter,
    DataflowView,
    call_to,
    dtype_of,
    replace_operands,
    static_shape,
    view_of_main,
    with_main,
)
from ...ir.identity import NameSupply
from ...ir.qdq.blocks import block_size
from ...ir.qdq.values import ConstantValue, Dequantized, constant_value, dequantized
from ...ir.untyped import relax

_MIN_BLOCK = 16
"""Inputs of a block below which a group of an integer kernel does less than the sum over the blocks costs."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Blocks:
    """A matmul's operands; `size` inputs share a scale and a zero point for each output."""

    x: Dequantized
    weight: ConstantValue
    size: int


def split_blocks(module: tvm.IRModule) -> tvm.IRModule:
    """Write a matmul whose weights have a scale for each block of inputs as a grouped convolution and a sum over the blocks."""
    view = view_of_main(module)
    found = {binding.var: blocks for binding in view.bindings if (blocks := _blocks(view, binding.var)) is not None}
    if not found:
        return module
    return with_main(module, lambda writer: _write(view, found, writer))


def _blocks(view: DataflowView, var: Var) -> _Blocks | None:
    call = call_to(view.definition(var), "matmul")
    if call is None or dtype_of(var) != "float32":
        return None
    x, weight = dequantized(view, call.args[0]), constant_value(view, call.args[1])
    if x is None or x.params.scale.ndim or weight is None or weight.values.ndim != 2:
        return None
    if weight.scale is None or weight.zero_point is None or str(weight.values.dtype) not in ("int8", "uint8"):
        return None
    size = block_size(weight)
    return _Blocks(x=x, weight=weight, size=size) if _MIN_BLOCK <= size < len(weight.values) else None


def _write(view: DataflowView, found: dict[Var, _Blocks], writer: BodyWriter) -> Expr:
    names = NameSupply(view.variables)
    new: dict[Var, Expr] = {}
    for binding in view.bindings:
        var, value = binding.var, replace_operands(binding.value, lambda var: new.get(var, var))
        if var in found:

            def emit(name: str, expr: Any, of: str = var.name) -> Var:
                return writer.emit(names.fresh(f"{of}_{name}"), expr)

            source = found[var].x.source
            value = _sum_of_blocks(found[var], new.get(source, source) if isinstance(source, Var) else source, emit)
        new[var] = writer.emit(var.name, value, is_output=not isinstance(var, relax.DataflowVar))
    return replace_operands(view.result, lambda var: new.get(var, var))


def _sum_of_blocks(blocks: _Blocks, source: Expr, emit: Any) -> Expr:
    x, weight, shape = blocks.x, blocks.weight, static_shape(source)
    assert weight.scale is not None
    assert weight.zero_point is not None
    assert shape is not None
    inputs, outputs = weight.values.shape
    count = inputs // blocks.size

    def by_channel(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return values.reshape(count, blocks.size, outputs).transpose(1, 0, 2).reshape(1, 1, blocks.size, count * outputs)

    channels = [np.ascontiguousarray(by_channel(values)[0, 0, 0]) for values in (weight.scale, weight.zero_point)]
    image = emit("image_q", relax.op.reshape(source, (1, math.prod(shape[:-1]), 1, inputs)))
    parameters = [relax.const(x.params.scale), relax.const(x.params.zero_point)]
    integers = relax.const(np.ascontiguousarray(by_channel(weight.values)))
    parts = relax.op.nn.conv2d(
        emit("image", relax.op.dequantize(image, *parameters, axis=0)),
        emit("weights", relax.op.dequantize(integers, *map(relax.const, channels), axis=3)),
        groups=count,
        data_layout="NHWC",
        kernel_layout="HWIO",
        out_layout="NHWC",
    )
    reals = emit("of_blocks", relax.op.reshape(emit("blocks", parts), (*shape[:-1], count, outputs)))
    return relax.op.sum(reals, axis=[len(shape) - 1])
