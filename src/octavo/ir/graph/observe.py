"""The observed tensor in a graph: an identity whose kernel adds what it reads to statistics that outlive the run.

    y_observed = R.call_dps_packed("octavo.observe", (y, ranges, counts, R.const(axis)), out_ty=y's)

`ranges` and `counts` are parameters of the function that the kernel writes to (`numerics.statistics.observer_state`). The graph
reads neither, so no order between observers matters. Profiling writes these calls, lowering replaces them; TVM knows no such op.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm.relax import Expr, Var

from ..untyped import relax
from .dataflow import op_name

OBSERVE = "octavo.observe"
_NO_AXIS = -1


@dataclass(frozen=True, kw_only=True, slots=True)
class ObserveCall:
    """What an observing call reads: the tensor, the two parameters it writes to, and the channel axis (None: no channels)."""

    tensor: Var
    ranges: Var
    counts: Var
    channel_axis: int | None


def write_observe(call: ObserveCall) -> Expr:
    """Return the call."""
    axis = relax.const(np.int64(_NO_AXIS if call.channel_axis is None else call.channel_axis))
    return relax.call_dps_packed(OBSERVE, relax.Tuple([call.tensor, call.ranges, call.counts, axis]), out_ty=call.tensor.ty)


def read_observe(value: Expr) -> ObserveCall | None:
    """Return what a call observes, or None if it is no such call."""
    if op_name(value) != OBSERVE:
        return None
    call: Any = value
    tensor, ranges, counts, axis = call.args[1].fields
    number = int(axis.value.numpy())
    return ObserveCall(tensor=tensor, ranges=ranges, counts=counts, channel_axis=None if number == _NO_AXIS else number)
