"""Rule of the places of what is true.

Before::

    y = R.octavo.places((x,), R.str(""))

After: one composite "octavo.places" from x to y.
"""

from __future__ import annotations

from typing import Any

from tvm.relax import Var

from ....runtime.size import is_open
from ...composites.base import CompositeOp
from ...composites.float_ops import PlacesOp
from ...graph.dataflow import DataflowView, dtype_of, static_shape
from ...graph.places import read_places
from ...graph.rules import Region, Rejection


def match_places(view: DataflowView, core: Var) -> Region[CompositeOp] | Rejection:
    """Claim the places of booleans of known sizes."""
    call: Any = view.definition(core)
    x = read_places(call)
    shape = static_shape(x) if isinstance(x, Var) and dtype_of(x) == "bool" else None
    if not isinstance(x, Var) or shape is None or any(is_open(dim) for dim in shape):
        return Rejection(reason=f"{core.name} are places in no booleans of known sizes that are computed")
    op = PlacesOp(op="places", x=x.name, shape=tuple(shape))
    return Region(core=core, output=core, members=(core,), inputs=(x,), op=op)
