"""What a float32 op with constant weights takes in of the ops around it: weights, bias, normalization, addend, clamps.

The rules of these ops (float_conv2d.py, float_conv2d_transpose.py) share it; it writes no kernels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
from tvm.relax import Expr, TupleGetItem, Var

from .....numerics.floats.batch_norm import fold_batch_norm
from .....numerics.floats.float_function import FloatFunction
from .....runtime.mapped import SHARED_BYTES
from ....composites.base import FloatOp
from ....composites.float_ops import Floats, Observation
from ....graph.dataflow import DataflowView, call_to, dtype_of, op_name, operand_vars, static_shape
from ....graph.observe import read_observe
from ....graph.rules import Region, Rejection
from ...tail import float_clamp
from ...values import ConstantValue, constant_value, real_values
from ...weights import read_bias
from ..elementwise.float_chain import chain_from
from ..observe import observation_of

FloatOpT = TypeVar("FloatOpT", bound=FloatOp)


class FusedTail:
    """The bias, a batch normalization, an observer or an addend, and the clamps behind an op, while each value has one reader.

    `weight`'s last axis is that of the output channels, which is `axis` of the result. `adds` says whether the kernel takes an
    addend, `takes_function` whether it takes a function of the sum and the addend instead: a chain with SiLU, say.
    """

    def __init__(
        self, view: DataflowView, core: Var, axis: int, weight: Floats, *, adds: bool, takes_function: bool = False
    ) -> None:
        self.members: list[Var] = []
        self.weight = weight
        channels = weight.shape[-1]
        self.bias: Floats = np.zeros(channels, np.float32)
        self.low, self.high = -math.inf, math.inf
        self.output = core
        found = read_bias(view, core, axis, channels)
        if found is not None:
            self.output, bias = found
            self.members.extend([*constants_behind(view, view.definition(self.output)), self.output])
            self.bias = np.ascontiguousarray(real_in_order(bias, (0,)))
        self._fold_batch_norm(view, axis)
        self._observe(view)
        self.addend: Var | None = None
        self.function: FloatFunction | None = None
        if takes_function and self.observation is None and self._take_function(view, adds=adds):
            return
        if adds and self.observation is None:
            self._add(view)
        while (user := view.only_user(self.output)) is not None:
            bounds = float_clamp(view.definition(user))
            # A clamp above one already taken can be folded in only while it leaves low <= high.
            if bounds is None or max(self.low, bounds[0]) > min(self.high, bounds[1]):
                break
            self.low, self.high = max(self.low, bounds[0]), min(self.high, bounds[1])
            self.members.append(user)
            self.output = user

    def _take_function(self, view: DataflowView, *, adds: bool) -> bool:
        """Take the chain of single elements that alone reads the sum, if it is more than an addition and clamps."""
        chain = chain_from(view, self.output, max_inputs=2 if adds else 1)
        operations = set() if chain is None else {step.op for step in chain.function.steps}
        # With erf in it the loop over a tile's sums takes three times as long as a pass of its own.
        if chain is None or operations <= {"add", "maximum", "minimum"} or "erf" in operations:
            return False
        self.function = chain.function
        self.addend = chain.inputs[1] if len(chain.inputs) > 1 else None
        self.members.extend(chain.members)
        self.output = chain.output
        return True

    def _fold_batch_norm(self, view: DataflowView, axis: int) -> None:
        """Take a batch normalization of which only the normalized values are read."""
        norm_var = view.only_user(self.output)
        norm: Any = None if norm_var is None else call_to(view.definition(norm_var), "nn.batch_norm")
        if norm is None or norm_var is None or int(norm.attrs.axis) != axis or norm.attrs.training:
            return
        item = view.only_user(norm_var)
        value = None if item is None else view.definition(item)
        constants = [constant_value(view, arg) for arg in norm.args[1:]]
        known = [constant for constant in constants if constant is not None]
        if item is None or not isinstance(value, TupleGetItem) or value.index != 0 or len(known) < len(constants):
            return
        gamma, beta, mean, variance = (real_in_order(constant, (0,)) for constant in known)
        self.weight, self.bias = fold_batch_norm(
            self.weight,
            self.bias,
            gamma if norm.attrs.scale else np.ones_like(gamma),
            beta if norm.attrs.center else np.zeros_like(beta),
            mean,
            variance,
            epsilon=float(norm.attrs.epsilon),
            axis=self.weight.ndim - 1,
        )
        self.members.extend([*constants_behind(view, norm), norm_var, item])
        self.output = item

    def _add(self, view: DataflowView) -> None:
        """Take the sum with another activation of the same shape."""
        user = view.only_user(self.output)
        call = None if user is None else call_to(view.definition(user), "add")
        others = [] if call is None else [arg for arg in call.args if not arg.same_as(self.output)]
        if user is None or len(others) != 1:  # both: what reads it is another name of its own value
            return
        other = others[0]
        if not isinstance(other, Var) or dtype_of(other) != "float32" or constant_value(view, other) is not None:
            return
        alike = static_shape(other) == static_shape(self.output) == static_shape(user)
        # Of two products that are added, the later one takes the sum.
        is_parameter = isinstance(view.definition(other), Var)
        if alike and (is_parameter or view.is_bound_before(other, self.output)):
            self.addend = other
            self.members.append(user)
            self.output = user

    def _observe(self, view: DataflowView) -> None:
        """Take an observer of the sum, if it has one: it stands before every clamp."""
        self.observation: Observation | None = None
        self.states: tuple[Var, ...] = ()
        user = view.only_user(self.output)
        call = None if user is None else read_observe(view.definition(user))
        if user is not None and call is not None:
            self.observation, self.states = observation_of(call), (call.ranges, call.counts)
            self.members.append(user)
            self.output = user


def float_operands(view: DataflowView, core: Var, call: Any) -> tuple[Var, ConstantValue, tuple[int, ...]] | Rejection:
    """Return the activation, the weight and the shape of the result."""
    x, shape = call.args[0], static_shape(core)
    if not isinstance(x, Var) or shape is None or static_shape(x) is None or 0 in shape:
        return Rejection(reason=f"input or result of {core.name} has no static shape")
    if {dtype_of(x), dtype_of(call.args[1]), dtype_of(core)} != {"float32"}:
        return Rejection(reason=f"{op_name(call)} {core.name} is not float32 throughout")
    weight = constant_value(view, call.args[1])
    if weight is None or constant_value(view, x) is not None:
        return Rejection(reason=f"{core.name} has no constant weight")
    return x, weight, shape


def real_in_order(constant: ConstantValue, order: Sequence[int]) -> Floats:
    """Return a constant's real numbers, with its axes in `order`: large ones are not moved until they are packed."""
    found = np.transpose(real_values(constant), order)
    return found if found.nbytes >= SHARED_BYTES else np.ascontiguousarray(found)


def constants_behind(view: DataflowView, value: Expr) -> list[Var]:
    """Return the variables with a constant value from which `value` is computed, literals included."""
    found: list[Var] = []
    for var in operand_vars(value):
        if constant_value(view, var) is not None:
            source = view.binding_of(var)
            found.extend([var] if source is None or source.same_as(var) else [var, source])
            found.extend(constants_behind(view, view.definition(var)))
    return found


def float_region(view: DataflowView, core: Var, x: Var, tail: FusedTail, op: FloatOpT) -> Region[FloatOpT]:
    """Return the region of an op and what its tail takes in."""
    members = (*constants_behind(view, view.definition(core)), core, *tail.members)
    inputs = (x, *tail.states) if tail.addend is None else tuple(dict.fromkeys((x, tail.addend)))
    return Region(core=core, output=tail.output, members=members, inputs=inputs, op=op)
