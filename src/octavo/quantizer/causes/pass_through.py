"""Pass-through tensors, which only move what was rounded before: their own rounding does nothing. It simulates nothing."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
from tvm.relax import TupleGetItem

from ...ir.graph.dataflow import DataflowView, call_to, dtype_of, operand_vars
from ...ir.identity import TensorId
from ...numerics import QuantParams
from ...target.op_facts import MOVERS


def pass_through_tensors(
    view: DataflowView, activations: Mapping[TensorId, QuantParams], constants: Collection[str]
) -> frozenset[TensorId]:
    """Return the activations whose values are those of others, moved, which are rounded to the same steps already.

    Parameters
    ----------
    view
        Of the float model's function.
    activations
        With the parameters that they are rounded by.
    constants
        Names of the model's: what holds numbers of one rounds those.
    """
    found: set[TensorId] = set()
    for binding in view.bindings:
        name = TensorId(str(binding.var.name))
        if name not in activations:
            continue
        value: Any = binding.value
        if isinstance(value, TupleGetItem):
            value = view.definition(value.tuple_value)
        if call_to(value, *MOVERS) is None:
            continue
        read = [TensorId(str(view.root_of(var).name)) for var in operand_vars(value) if dtype_of(var) == "float32"]
        known = [activations[each] for each in read if each in activations]
        is_constant = any(str(each) in constants for each in read)
        if read and len(known) == len(read) and not is_constant and all(_is_same(each, activations[name]) for each in known):
            found.add(name)
    return frozenset(found)


def _is_same(params: QuantParams, other: QuantParams) -> bool:
    return (
        params.dtype == other.dtype
        and np.array_equal(params.scale, other.scale)
        and np.array_equal(params.zero_point, other.zero_point)
    )
