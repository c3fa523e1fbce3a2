"""Functions of single elements: of one tensor by its table, of two tensors, of float32 that read integers or give them."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from .....ir.composites.elementwise import (
    AddOp,
    CompareOp,
    LogicalOp,
    LookupOp,
    MixedElementwiseOp,
    PairLookupOp,
    PairwiseOp,
    SelectOp,
)
from ..emission import TO_NHWC, Emission, Value
from ..kernels.elementwise.elementwise import ElementwiseSpec, elementwise
from ..kernels.elementwise.pair import (
    PairFunction,
    comparison_of,
    extreme_of,
    logic_of,
    pair,
    product_of,
    select,
    sum_of,
    table_of,
)
from ..kernels.language.axes import Operand
from ..kernels.quantization.change import change_of, looked_up
from .move import changed
from .operands import operand, shared_layout, steps_of


def emit_mixed_elementwise(op: MixedElementwiseOp, emission: Emission, inputs: Mapping[str, Value]) -> Value:
    """Launch a function of tensors of one shape, which are brought to one layout."""
    known = {tensor.name: tensor for tensor in op.integers}
    shape = inputs[op.inputs[0]].shape
    is_nhwc = shared_layout([inputs[name] for name in op.inputs], shape)
    values = [emission.lying(inputs[name], is_nhwc=is_nhwc) for name in op.inputs]
    inner = 1
    if op.axis is not None:
        axis = TO_NHWC.index(op.axis) if is_nhwc else op.axis
        inner = math.prod(values[0].lying_shape[axis + 1 :])
    spec = ElementwiseSpec(
        function=op.function,
        size=math.prod(shape),
        inputs=[known.get(name) for name in op.inputs],
        channels=op.channels,
        inner=inner,
        y=op.y,
        rounding=op.rounding,
    )
    result = emission.new(shape, spec.dtypes[-1], is_nhwc=is_nhwc)
    return emission.launch(elementwise(spec, "mixed_elementwise", emission.isa), values, result)


Constant = npt.NDArray[np.generic]


def function_of(op: AddOp | PairwiseOp) -> PairFunction:
    """Return what an op computes of two integers."""
    if isinstance(op, AddOp):
        return sum_of(op.rounding, op.a, op.b, op.y)
    tensors = op.a.tensor, op.b.tensor, op.y
    if op.kind in ("add", "sub"):
        return sum_of(op.rounding, *tensors, subtract=op.kind == "sub")
    if op.kind == "mul":
        return product_of(*tensors, stored_even=op.rounding == "half_even_stored")
    return extreme_of(op.kind, op.y)


def emit_add(op: AddOp, emission: Emission, inputs: Mapping[str, Value]) -> Value:
    """Launch a sum."""
    b = inputs[op.b.name] if op.b_values is None else op.b_values
    return _launch(emission, function_of(op), inputs[op.a.name], b, op.y.shape, op.y.tensor.params.dtype)


def emit_pairwise(op: PairwiseOp, emission: Emission, inputs: Mapping[str, Value]) -> Value:
    """Launch a sum, difference, product or extreme; a constant on the left is given a place in memory."""
    a, b = (inputs[side.tensor.name] if side.values is None else side.values for side in (op.a, op.b))
    if not isinstance(a, Value):
        a = emission.given(a)
    return _launch(emission, function_of(op), a, b, op.y.shape, op.y.tensor.params.dtype)


def emit_pair_lookup(op: PairLookupOp, emission: Emission, inputs: Mapping[str, Value]) -> Value:
    """Launch a function of two tensors, or of one and a constant, by its table."""
    b = inputs[op.b.name] if op.b is not None else op.rows
    assert b is not None, "a table of pairs has rows for a tensor or for a constant"
    table = op.table.astype(op.y.tensor.params.dtype)
    function = table_of(table, op.a.params.dtype, str(b.dtype))
    return _launch(emission, function, inputs[op.a.name], b, op.y.shape, op.y.tensor.params.dtype)


def emit_compare(op: CompareOp, emission: Emission, inputs: Mapping[str, Value]) -> Value:
    """Launch a comparison of integers, or of the float32 numbers that they stand for."""
    function = comparison_of(op.kind, op.a.tensor, op.b.tensor, in_float=op.rounding == "float32")
    a, b = (inputs[side.tensor.name] if side.values is None else emission.given(side.values) for side in (op.a, op.b))
    return _launch(emission, function, a, b, op.shape, "bool")


def emit_logical(op: LogicalOp, emission: Emission, inputs: Mapping[str, Value]) -> Value:
    """Launch logic of booleans."""
    operands = [inputs[name] for name in op.operands]
    return _launch(emission, logic_of(op.kind), operands[0], operands[-1], op.shape, "bool")


def emit_select(op: SelectOp, emission: Emission, inputs: Mapping[str, Value]) -> Value:
    """Launch a choice by booleans; operands of other parameters than the result's are changed before."""
    shape, dtype = op.y.shape, op.y.tensor.params.dtype
    given = op.condition_values
    values = [inputs[op.condition] if given is None else emission.given(given.astype(np.bool_))]
    for side in (op.a, op.b):
        if side.values is None:
            values.append(changed(emission, inputs[side.tensor.name], change_of(side.tensor, op.y)))
        else:
            values.append(emission.given(side.values.astype(dtype)))
    is_nhwc = shared_layout(values, shape)
    result = emission.new(shape, dtype, is_nhwc=is_nhwc)
    condition, a, b = (operand(value, shape, is_nhwc=is_nhwc) for value in values)
    return emission.launch(select(result.lying_shape, (condition, a, b), dtype, emission.isa), values, result)


def _launch(
    emission: Emission, function: PairFunction, a: Value, b: Value | Constant, shape: tuple[int, ...], dtype: str
) -> Value:
    variables = [each for each in (a, b) if isinstance(each, Value)]
    is_nhwc = shared_layout(variables, shape)
    result = emission.new(shape, dtype, is_nhwc=is_nhwc)
    first = operand(a, shape, is_nhwc=is_nhwc)
    if isinstance(b, Value):
        sides = first, operand(b, shape, is_nhwc=is_nhwc)
        return emission.launch(pair(function, result.lying_shape, sides, dtype, emission.isa), variables, result)
    second = Operand(dtype=str(b.dtype), steps=steps_of(b.shape, shape, is_nhwc=is_nhwc))
    kernel = pair(function, result.lying_shape, (first, second), dtype, emission.isa, b_values=b)
    return emission.launch(kernel, variables, result)


def emit_lookup(op: LookupOp, emission: Emission, inputs: Mapping[str, Value]) -> Value:
    """Launch a lookup in a table of 256 entries."""
    dtype = op.y.tensor.params.dtype
    how = looked_up(op.x.params.dtype, dtype, op.table.astype(dtype))
    return changed(emission, inputs[op.x.name], how, name="lookup")
