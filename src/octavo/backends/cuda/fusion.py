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

from ...composites.attributes import Composite
from ...graph.dataflow import DataflowView, operand_vars
from .emit.tail import followers_of, may_follow


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
