"""What is said of ops that stay float for being steps of a larger one: of which, why, what that costs, what would change it.

It decides nothing: placement asks once it has decided.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import prod

from tvm.relax import Var

from ...ir.graph.dataflow import DataflowView, static_shape
from ...ir.identity import TensorEntry, TensorId, TensorTable
from ...runtime.shapes import typical

_KIB = 1024


def cost(tensors: Iterable[Var]) -> str:
    """Return how much memory the float32 values of tensors take."""
    count = 4 * sum(typical(prod(static_shape(var) or ())) for var in tensors)
    return f"{count:,} bytes" if count < _KIB else f"{count / _KIB:,.1f} KiB"


def together(reasons: Mapping[str, str]) -> str:
    """Return why several targets do not take an op, each by its name; of one target, its reason alone."""
    if len(set(reasons.values())) == 1:
        return next(iter(reasons.values()))
    return "; ".join(f"{name}: {reason}" for name, reason in reasons.items())


def without_range(
    view: DataflowView, tensors: TensorTable, missing: list[Var], touched: Iterable[Var], *, multiplies: bool
) -> str:
    """Return why an op of which the profile tells too little stays float.

    Parameters
    ----------
    tensors
        Of the source: what a profile can know.
    missing
        The variables whose range it needs and that have none.
    touched
        The tensors that it reads and makes.
    multiplies
        Whether it has multiply-accumulates.
    """
    inner = next((var for var in missing if TensorId(var.name) not in tensors), None)
    full = None if inner is None else _full(view, tensors, inner)
    if full is None:
        return f"the profile holds no range of {', '.join(var.name for var in missing)}"
    work = "and its multiply-accumulates" if multiplies else "without a product"
    return (
        f"it is a step within {full.op} {full.source_name}, of which a profile knows only what the op reads and makes; it "
        f"stays float, {cost(touched)} a call {work}; written in plain ops in the source, its steps would have ranges"
    )


def _full(view: DataflowView, tensors: TensorTable, step: Var) -> TensorEntry | None:
    """Return the tensor of the source that a step leads to."""
    line = [step]
    for var in line:  # which grows
        entry = tensors.get(TensorId(var.name))
        if entry is not None and entry.op:
            return entry
        line.extend(user for user in view.users(var) if user not in line)
    return None
