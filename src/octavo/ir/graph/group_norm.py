"""Group normalization as one op, or with the reshapes and factors around it that exporters write. Reads; rewrites nothing.

r = reshape(x, (n, groups, -1)); g = group_norm(r, ...); b = reshape(g, x.shape); y = b * gamma + beta
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm.relax import Expr, Var

from .dataflow import DataflowView, call_to, static_shape

Floats = npt.NDArray[np.float32]
ConstantOf = Callable[[Expr], "npt.NDArray[Any] | None"]
"""Returns the numbers of a constant operand, None for anything else."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class GroupNorm:
    """What is normalized, in how many groups of its axis `channel_axis`, and the variables of the steps, `output` the last.

    `gamma` and `beta` are float32 (channels,).
    """

    data: Var
    groups: int
    channel_axis: int
    gamma: Floats
    beta: Floats
    epsilon: float
    members: tuple[Var, ...]

    @property
    def output(self) -> Var:
        """The variable of the result."""
        return self.members[-1]


def read_group_norm(view: DataflowView, core: Var, constant: ConstantOf) -> GroupNorm | None:
    """Return the normalization around `core`, a group_norm over all axes but the first and the channels'; None for another form.

    Steps beside it belong to it where nobody else reads what is between.
    """
    call: Any = call_to(view.definition(core), "nn.group_norm")
    shape = None if call is None else static_shape(core)
    if call is None or shape is None or not isinstance(call.args[0], Var) or len(shape) < 3:
        return None
    axis, groups = int(call.attrs.channel_axis) % len(shape), int(call.attrs.num_groups)
    axes = sorted(int(other) % len(shape) for other in call.attrs.axes)
    gamma, beta = constant(call.args[1]), constant(call.args[2])
    if axes != [other for other in range(1, len(shape)) if other != axis] or gamma is None or beta is None:
        return None
    gamma = np.ones(shape[axis], np.float32) if not call.attrs.scale else gamma.reshape(-1).astype(np.float32)
    beta = np.zeros(shape[axis], np.float32) if not call.attrs.center else beta.reshape(-1).astype(np.float32)
    data, members = call.args[0], [core]
    around = _reshapes(view, core, data, groups) if axis == 1 else None
    if around is not None:
        before, after, data = around
        members = [before, core, after]
        shape = static_shape(after)
        assert shape is not None, "it was compared"
        gamma, beta = (np.repeat(values, shape[1] // groups) for values in (gamma, beta))
    while (user := view.only_user(members[-1])) is not None:
        line = _along_channels(view, user, members[-1], constant, axis)
        if line is None:
            break
        is_sum = call_to(view.definition(user), "add") is not None
        gamma, beta = (gamma, beta + line) if is_sum else (gamma * line, beta * line)
        members.append(user)
    return GroupNorm(
        data=data,
        groups=groups,
        channel_axis=axis,
        gamma=gamma,
        beta=beta,
        epsilon=float(call.attrs.epsilon),
        members=tuple(members),
    )


def _reshapes(view: DataflowView, core: Var, data: Var, groups: int) -> tuple[Var, Var, Var] | None:
    """Return the reshape before `core` that gives each group a row of its own, the one behind that undoes it, and its data."""
    before, after = view.binding_of(data), view.only_user(core)
    if before is None or after is None or view.only_user(before) is None:
        return None
    first: Any = call_to(view.definition(before), "reshape")
    last: Any = call_to(view.definition(after), "reshape")
    if first is None or last is None or not isinstance(first.args[0], Var):
        return None
    rows, shape = static_shape(before), static_shape(first.args[0])
    if rows is None or shape is None or len(shape) < 3 or rows[:2] != (shape[0], groups) or static_shape(after) != shape:
        return None
    return (before, after, first.args[0]) if shape[1] % groups == 0 else None


def _along_channels(view: DataflowView, user: Var, data: Var, constant: ConstantOf, axis: int) -> Floats | None:
    """Return the constant that `user` multiplies `data` by or adds to it, one number for each channel; None for another op."""
    call: Any = call_to(view.definition(user), "multiply", "add")
    shape = static_shape(data)
    others = [] if call is None else [arg for arg in call.args if not (isinstance(arg, Var) and arg.same_as(data))]
    values = constant(others[0]) if len(others) == 1 else None
    if values is None or shape is None or static_shape(user) != shape:
        return None
    aligned = values.reshape((1,) * (len(shape) - values.ndim) + values.shape)
    if any(extent != 1 for place, extent in enumerate(aligned.shape) if place != axis):
        return None
    return np.broadcast_to(aligned.reshape(-1).astype(np.float32), (shape[axis],))
