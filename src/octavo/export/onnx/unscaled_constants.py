"""Which constants of a module equalization left as they were, and whether one is what it made of another."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm.relax import Var

from ...ir.graph import Model
from ...ir.graph.dataflow import DataflowView, call_to, operand_vars
from ...ir.graph.moving import CONSTANT_MOVERS
from ...ir.identity import TensorId


def unscaled_constants(model: Model, equalized: Collection[TensorId], in_steps: Collection[TensorId]) -> set[TensorId]:
    """Return the parameters that no step reads beside an equalized tensor.

    Those of the source's own ops are scaled where the op's result is equalized, too, unless the file has it
    `in_steps`, with constants of another form; steps within larger ops, recurrent ones say, leave theirs as they are.
    """
    view = DataflowView(model.module["main"])
    found: set[TensorId] = set()
    for param in view.function.params:
        users = view.users(param)
        while len(users) == 1 and call_to(view.definition(users[0]), *CONSTANT_MOVERS) is not None:
            users = view.users(users[0])
        read = {_before_rounding(view, var) for user in users for var in operand_vars(view.definition(user))}
        # What has no name in the source is one of several of a parameter that its ops share, or belongs to a step of one.
        own = users if TensorId(param.name) in model.tensors else (each for each in users if TensorId(each.name) in model.tensors)
        read |= {TensorId(user.name) for user in own} - {*in_steps}
        if read.isdisjoint(equalized):
            found.add(TensorId(param.name))
    return found


def is_scaled(source: npt.NDArray[Any], value: npt.NDArray[Any]) -> bool:
    """Return whether a constant holds the values of another, in its layout, multiplied by factors of channels.

    Of a matrix these are positive numbers for rows and for columns, which tells it from one that is transposed.
    """
    if source.squeeze().shape != value.squeeze().shape:
        return False
    if source.ndim != 2:
        return True
    known = source != 0
    if (value[~known] != 0).any() or not known.any(axis=0).all() or not known.any(axis=1).all():
        return False
    ratio = np.ma.masked_array(np.divide(value, source, where=known, out=np.ones(value.shape)), ~known)
    rows = np.ma.median(ratio, axis=1).filled(1.0)[:, None]
    columns = np.ma.median(ratio / rows, axis=0).filled(1.0)[None]
    return bool((ratio > 0).all() and np.ma.allclose(ratio, rows * columns, rtol=1e-4, atol=0))


def _before_rounding(view: DataflowView, var: Var) -> TensorId:
    """Return the tensor that a variable holds, dequantized or not."""
    value = view.definition(var)
    while call_to(value, "quantize", "dequantize") is not None:
        var = operand_vars(value)[0]
        value = view.definition(var)
    return TensorId(var.name)
