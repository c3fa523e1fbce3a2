"""Chains: a product of a graph, and the ops behind it that its kernel may compute before it writes anything.

Before::

    y_q = octavo_conv2d(x_q); z_q = octavo_add(y_q, r_q); s_q = octavo_lookup(z_q)      # three launches

After::

    s_q = octavo_conv2d + add + lookup (x_q, r_q)                                       # one

Each result within a chain is read once, by the next op. A chain is computed where its last op stands: all that its ops read is
there then. Of two products whose sum is taken the later one has the sum. It decides by the graph alone; where a tensor lies in
another layout than the product's result, the op that reads it has a launch of its own after all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tvm import relax
from tvm.relax import Expr, Var

from ....ir.composites.attributes import Composite
from ....ir.composites.movement import MoveOp
from ....ir.composites.weighted import BatchMatmulOp
from ....ir.graph.dataflow import DataflowView, operand_vars
from .emit.tail import followers_of, may_follow
from .kernels.matmuls.batch_matmul import can_read
from .kernels.quantization.change import KEPT, change_of


@dataclass(frozen=True, slots=True, eq=False)
class Link:
    """One op of a chain: its binding, its composite, and what it calls the result of the op in front of it."""

    binding: relax.VarBinding
    composite: Composite
    read: str = ""

    @property
    def operands(self) -> Mapping[str, Var]:
        """What else it reads, by the names that it calls them."""
        names = zip(self.composite.inputs, operand_vars(self.binding.value), strict=True)
        return {name: var for name, var in names if name != self.read}


Chain = tuple[Link, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Transposed:
    """Transpositions that need not be made: the first one's operand, their bindings, and what each axis is of it."""

    source: Var
    links: tuple[Link, ...]
    axes: tuple[int, ...]


def chains_of(view: DataflowView, composite_of: Callable[[Expr], Composite | None]) -> dict[Var, Chain]:
    """Return for each variable that is computed within a chain of two ops or more that chain."""
    found: dict[Var, Chain] = {}
    bindings = {binding.var: binding for binding in view.bindings}
    for binding in reversed(view.bindings):
        composite = composite_of(binding.value)
        if composite is None or followers_of(composite.op) is None:
            continue
        chain = [Link(binding, composite)]
        while (user := view.only_user(chain[-1].binding.var)) is not None and user not in found:
            link = _link(bindings[user], composite_of(bindings[user].value), chain[-1].binding.var)
            if link is None:
                break
            chain.append(link)
        if len(chain) > 1:
            found |= {link.binding.var: tuple(chain) for link in chain}
    return found


def _link(binding: relax.VarBinding, composite: Composite | None, var: Var) -> Link | None:
    """Return an op as what follows a variable, None where it cannot."""
    if composite is None:
        return None
    name = composite.inputs[operand_vars(binding.value).index(var)]
    return Link(binding, composite, name) if may_follow(composite, name) else None


def transposed_of(view: DataflowView, composite_of: Callable[[Expr], Composite | None]) -> dict[Var, Transposed]:
    """Return the variables that a product of two variables alone reads, and can read without the transpositions they are of."""
    found: dict[Var, Transposed] = {}
    bindings = {binding.var: binding for binding in view.bindings}
    for binding in view.bindings:
        composite = composite_of(binding.value)
        if composite is None or not isinstance(composite.op, BatchMatmulOp):
            continue
        operands = Link(binding, composite).operands
        for side in (composite.op.a, composite.op.b):
            if side.values is None:
                var = operands[side.tensor.name]
                moved = _transposed(view, bindings, composite_of, var)
                if moved is not None and can_read(moved.axes, is_b=side is composite.op.b):
                    found[var] = moved
    return found


def _transposed(
    view: DataflowView, bindings: Mapping[Var, relax.VarBinding], composite_of: Callable[[Expr], Composite | None], var: Var
) -> Transposed | None:
    """Return the transpositions that a variable is of, each read by the next one alone; None without any."""
    links: list[Link] = []
    axes: tuple[int, ...] = ()
    while view.only_user(var) is not None and var in bindings:
        binding = bindings[var]
        composite = composite_of(binding.value)
        op = None if composite is None else composite.op
        if composite is None or not isinstance(op, MoveOp) or op.axes is None or change_of(op.x, op.y).kind != KEPT:
            break
        own = op.axes
        axes = tuple(own[axis] for axis in axes) if links else own
        links.insert(0, Link(binding, composite))
        (var,) = operand_vars(binding.value)
    return Transposed(var, tuple(links), axes) if links else None
