"""Give the channels of an activation quantized per axis one zero point, which is what kernels take. Computes nothing else.

Quantizers that give each channel its own range give a channel that was never positive, while they watched, another zero point
than the rest. Behind a clamp its integers below the zero point are not used, and all of them may move.

Before (int8; channel 1 never was above 0)::

    a = R.nn.relu(x); q = R.quantize(a, [s0, s1], [-128, 0], axis=1); d = R.dequantize(q, [s0, s1], [-128, 0], axis=1)

After::

    a = R.nn.relu(x); a1 = R.minimum(a, [max, 127 * s1]); q1 = R.quantize(a1, [s0, s1], [-128, -128], axis=1)
    d = R.dequantize(q1, [s0, s1], [-128, -128], axis=1)

Exact: d holds the same numbers, for q1 - q is the difference of the zero points wherever q saturates or does not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import tvm
from tvm import relax
from tvm.relax import Expr, Var

from ...ir.graph.dataflow import (
    BodyWriter,
    DataflowView,
    call_to,
    dtype_of,
    replace_operands,
    static_shape,
    view_of_main,
    with_main,
)
from ...ir.identity import NameSupply
from ...ir.qdq.tail import clip_bounds
from ...ir.qdq.values import params_of
from ...numerics import PerAxis, QuantParams
from ...target.op_facts import CLAMPS


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Shared:
    """The zero point that all channels take, and the largest real number of each."""

    zero_point: int
    limits: npt.NDArray[np.float32]


def share_zero_points(module: tvm.IRModule) -> tvm.IRModule:
    """Give the channels of an activation that is quantized per axis one zero point, which is what kernels take."""
    view = view_of_main(module)
    found = {binding.var: shared for binding in view.bindings if (shared := _shared(view, binding.var)) is not None}
    if not found:
        return module
    return with_main(module, lambda writer: _write(view, found, writer))


def _shared(view: DataflowView, var: Var) -> _Shared | None:
    """Return what the channels of the quantize `var` can share, if they do not share it yet and only dequantizes read it."""
    quantize = call_to(view.definition(var), "quantize")
    params = None if quantize is None else params_of(quantize, dtype_of(var))
    if quantize is None or params is None or not isinstance(params.granularity, PerAxis) or np.ptp(params.zero_point) == 0:
        return None
    if view.is_returned(var) or not all(_reads_alike(view, user, params) for user in view.users(var)):
        return None
    low = _lower_bound(view, quantize.args[0])
    if low is None:
        return None
    counts = np.bincount((params.zero_point - params.qmin).astype(np.int64))
    zero_point = int(counts.argmax()) + params.qmin
    moved = params.zero_point != zero_point
    scale = params.scale.astype(np.float64)
    least = np.maximum(low, (params.qmin - params.zero_point) * scale)
    fits = (least >= (params.qmin - zero_point) * scale) & (params.zero_point >= zero_point)
    if not fits[moved].all():
        return None
    most = np.float32(np.finfo(np.float32).max)
    limits = np.where(moved, ((params.qmax - params.zero_point) * scale).astype(np.float32), most)
    return _Shared(zero_point=zero_point, limits=limits.astype(np.float32))


def _reads_alike(view: DataflowView, user: Var, params: QuantParams) -> bool:
    call = call_to(view.definition(user), "dequantize")
    read = None if call is None else params_of(call, params.dtype)
    return (
        read is not None
        and read.granularity == params.granularity
        and np.array_equal(read.scale, params.scale)
        and np.array_equal(read.zero_point, params.zero_point)
    )


def _lower_bound(view: DataflowView, expr: Expr) -> float | None:
    """Return the least value that a clamp leaves."""
    call = call_to(view.definition(expr), *CLAMPS)
    if call is None:
        return None
    bounds = (0.0, np.inf) if call_to(call, "nn.relu") is not None else clip_bounds(call)
    return None if bounds is None or not np.isfinite(bounds[0]) else bounds[0]


def _write(view: DataflowView, found: dict[Var, _Shared], writer: BodyWriter) -> Expr:
    names = NameSupply(view.variables)
    new: dict[Var, Expr] = {}
    shared_by: dict[Var, _Shared] = {}

    def substitute(expr: Any) -> Any:
        return replace_operands(expr, lambda var: new.get(var, var))

    for binding in view.bindings:
        var, value = binding.var, substitute(binding.value)
        call: Any = value
        shared = found.get(var)
        if shared is not None:
            shape = static_shape(var)
            assert shape is not None
            along = [-1 if axis == int(call.attrs.axis) % len(shape) else 1 for axis in range(len(shape))]
            limit = relax.const(shared.limits.reshape(along), "float32")
            limited = writer.emit(names.fresh(f"{var.name}_limited"), relax.op.minimum(call.args[0], limit))
            new[var] = writer.emit(names.fresh(f"{var.name}_shared"), _with_zero_point(call, limited, shared))
            shared_by[var] = shared
            continue
        source = call_to(binding.value, "dequantize")
        if source is not None and source.args[0] in shared_by:
            value = _with_zero_point(call, call.args[0], shared_by[source.args[0]])
        new[var] = writer.emit(var.name, value, is_output=not isinstance(var, relax.DataflowVar))
    return substitute(view.result)


def _with_zero_point(call: Any, data: Expr, shared: _Shared) -> Any:
    zero_points = np.full(shared.limits.shape, shared.zero_point, np.int32)
    return relax.Call(call.op, [data, call.args[1], relax.const(zero_points), *call.args[3:]], call.attrs)
