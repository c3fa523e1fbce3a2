"""Reading products by weights that are gathered when run of a constant that holds several matrices. Rewrites nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm.relax import Expr, Var

from ..graph.constants import Constant, Constants
from ..graph.dataflow import DataflowView, call_to, static_shape
from ..graph.weighted import swapped_matrices


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class GatheredWeights:
    """Matrices of a constant, one for each index, as a product reads them.

    Parameters
    ----------
    operand
        The variable that the product reads.
    steps
        The variables before it that gather and move what is gathered, which nothing else reads.
    indices
        Of the matrices, as many as the operand has.
    constant
        It holds the matrices along its first axis.
    is_turned
        Whether they are transposed once gathered.
    """

    operand: Var
    steps: tuple[Var, ...]
    indices: Expr
    constant: Constant
    is_turned: bool

    def rows(self, constants: Constants, *, is_left: bool) -> npt.NDArray[Any]:
        """Return the matrices as [several, out, in], as they lie on the left of a product; on the right they lie transposed."""
        values = constants.value(self.constant)
        return values if is_left != self.is_turned else np.swapaxes(values, -1, -2)


def gathered_weights(view: DataflowView, constants: Constants, operand: Expr, product: Var) -> GatheredWeights | None:
    """Return what the `operand` of a product is gathered of, if nothing but this product reads it."""
    steps, is_turned, expr = list[Var](), False, operand
    while True:
        var, value = view.binding_of(expr), view.definition(expr)
        call: Any = call_to(value, "take", "reshape", "permute_dims")
        shape = static_shape(expr)
        if var is None or call is None or shape is None or view.only_user(var) is None:
            return None
        steps.append(var)
        if call_to(call, "take") is not None:
            break
        if call_to(call, "permute_dims") is not None:
            if [*map(int, call.attrs.axes or ())] != swapped_matrices(len(shape)):
                return None
            is_turned = not is_turned
        elif (static_shape(call.args[0]) or ())[-2:] != shape[-2:]:
            return None
        expr = call.args[0]
    constant = constants.find(call.args[0])
    if constant is None or len(constant.shape) != 3 or call.attrs.axis is None or int(call.attrs.axis) != 0:
        return None
    reader = view.only_user(steps[0])
    if reader is None or not reader.same_as(product) or constants.is_constant(call.args[1]):
        return None
    return GatheredWeights(operand=steps[0], steps=tuple(steps[1:]), indices=call.args[1], constant=constant, is_turned=is_turned)
