"""Which channels of a float graph are scaled together, as `group_finder` finds them. It scales none.

Each element of a tensor has the number of its group: elements of one group are divided by one factor.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm.relax import Var

from ..graph.dataflow import call_to
from ..graph.weighted import CONVOLUTIONS, Weighted

Groups = npt.NDArray[np.int64]
"""Numbers of groups, of a tensor's rank; 1 along axes that they don't depend on."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Reader:
    """A product by weights, `var` its result, that takes factors out of `data`, the variable that it reads."""

    var: Var
    op: Weighted
    data: Var


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ChannelGroups:
    """The groups of a model's tensors.

    Parameters
    ----------
    of
        The groups of each variable that has any, in the order of the graph. Group 0 is that of all that cannot be scaled.
    readers
        What takes factors out.
    opposites
        Of a group that a product of two activations sums over the group that it meets there, whose factor is the inverse of its.
    clamps
        The upper bound of each variable that clips from 0 to a bound.
    functions
        What is multiplied by factors where it is made: results of functions.
    noise
        For each variable the variables that are rounded, where the model is quantized, on the way to it.
    """

    of: dict[Var, Groups]
    readers: tuple[Reader, ...]
    opposites: dict[int, int]
    clamps: dict[Var, float]
    functions: frozenset[Var]
    noise: dict[Var, tuple[Var, ...]]

    @property
    def count(self) -> int:
        """Number of groups, group 0 among them."""
        return 1 + max((int(groups.max()) for groups in self.of.values()), default=0)

    def numbers(self, of: Callable[[Var], npt.NDArray[Any] | None], kept: float) -> npt.NDArray[np.float64] | Var:
        """Return the number of each group where elements of variables have these `of` them, of the shape of their groups.

        Group 0 has `kept`. The first variable that contradicts others, or of which there is None, is returned instead.
        """
        found = np.full(self.count, np.nan)
        found[0] = kept
        for var, groups in self.of.items():
            own, before = of(var), found.copy()
            if own is None or own.shape != groups.shape:
                return var
            found[groups] = own
            if not (np.isnan(before) | (before == found)).all() or (found[groups] != own).any():
                return var
        return found


def weight_groups(op: Weighted, groups: Groups) -> Groups:
    """Return which group each weight of a product multiplies, from those of its operand; 1 along axes they don't depend on."""
    if call_to(op.call, *CONVOLUTIONS) is None:
        return groups.reshape(-1, 1)
    layout, count = str(op.call.attrs.kernel_layout), int(op.call.attrs.groups)
    inputs = groups.reshape(-1)
    if call_to(op.call, "nn.conv2d_transpose") is not None:
        table = inputs.reshape(1, -1)
    else:
        rows = inputs.reshape(count, -1) if inputs.size > 1 else inputs.reshape(1, 1)
        table = np.repeat(rows, op.weight.shape[layout.index("O")] // rows.shape[0], axis=0)
    return table[:, :, None, None].transpose([_OIHW[axis] for axis in layout])


_OIHW = {"O": 0, "I": 1, "H": 2, "W": 3}


def aligned(values: npt.NDArray[Any], rank: int) -> npt.NDArray[Any]:
    """Return values of a rank at least: as what they are combined with has it."""
    return values.reshape((1,) * (rank - values.ndim) + values.shape)


def output_factors(op: Weighted, factors: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return what a product's weights are divided by for each output, from the factors of its result."""
    flat = factors.reshape(-1)
    if call_to(op.call, *CONVOLUTIONS) is None:
        return flat.reshape(1, -1)
    shape = [1, 1, 1, 1]
    shape[str(op.call.attrs.kernel_layout).index("O")] = -1
    return flat.reshape(shape)
