"""Rules of functions of one tensor that is int16 or becomes it: a table with an entry for every integer of the operand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm.relax import Var

from ...composites.base import QuantizedOutput, QuantizedTensor
from ...composites.elementwise import Int16LookupOp, LookupOp
from ...graph.dataflow import DataflowView, call_to, op_name
from ...graph.rules import Region, Rejection
from ...numerics import lookup_table
from ...numerics.quantized.int16_functions import INTERPOLATED, interpolated_table, logistic_table, tanh_table
from ...numerics.quantized.rescale import int16_rescale_table, integer_values, prelu_int16
from ...target import OpSupport
from ..cluster import PRELU, Cluster, attributes, operations
from ..rounding import is_fixed_int16
from ..values import constant_value
from .lookup import cluster_of, match_lookup
from .move import match_move, match_requantize

_UNIT_SCALE = 1 / 32768
"""Scale of TFLite's int16 results of logistic and tanh."""


def match_int16_lookup(view: DataflowView, core: Var, support: OpSupport) -> Region | Rejection:
    """Claim what `match_lookup` claims; a lone logistic, tanh, leaky relu or clamp of a TFLite file is computed as there."""
    found = match_lookup(view, core, support)
    if isinstance(found, Rejection):
        return found
    form: LookupOp = found.form
    table = form.table
    cluster = cluster_of(view, core)
    if is_fixed_int16(view) and isinstance(cluster, Cluster) and form.x.params.dtype == "int16":
        own = _fixed_table(view, cluster, form)
        table = table if own is None else own
    return replace(found, form=Int16LookupOp(x=form.x, y=form.y, table=table))


def _fixed_table(view: DataflowView, cluster: Cluster, form: LookupOp) -> npt.NDArray[np.integer] | None:
    """Return TFLite's table of the cluster's one op; None for what it has no 16-bit kernel for."""
    ops = operations(view, cluster)
    name = op_name(ops[0]) if len(ops) == 1 else ""
    y = form.y.tensor.params
    bounds = {"qmin": form.y.qmin, "qmax": form.y.qmax}
    if name == "nn.leakyrelu":
        return int16_rescale_table(form.x.params, y, slope=attributes(ops[0])["alpha"], **bounds)
    if name == PRELU:
        return _prelu_table(view, ops[0], form)
    is_symmetric = form.x.zero_point == form.y.tensor.zero_point == 0
    if name in INTERPOLATED and is_symmetric and y.dtype == "int16":
        return np.clip(interpolated_table(name, float(form.x.params.scale), float(y.scale)), form.y.qmin, form.y.qmax)
    is_unit = float(y.scale) == _UNIT_SCALE and is_symmetric
    if name in ("sigmoid", "tanh") and is_unit:
        table = (logistic_table if name == "sigmoid" else tanh_table)(float(form.x.params.scale))
        return np.clip(table, form.y.qmin, form.y.qmax)
    return None


def _prelu_table(view: DataflowView, call: Any, form: LookupOp) -> npt.NDArray[np.integer] | None:
    """Return TFLite's table of a relu with one slope of 8 bits for all; None for other slopes."""
    slope = constant_value(view, call.args[1])
    x, y = form.x.params, form.y.tensor.params
    if slope is None or slope.scale is None or slope.zero_point is None or slope.values.dtype.itemsize != 1:
        return None
    if form.x.zero_point or form.y.tensor.zero_point:
        return None
    return prelu_int16(
        integer_values("int16").astype(np.int16),
        (slope.values.astype(np.int64) - slope.zero_point).reshape(1),
        x_scale=float(x.scale),
        slope_scale=float(slope.scale.reshape(-1)[0]),
        out_scale=float(y.scale),
        qmin=form.y.qmin,
        qmax=form.y.qmax,
    )


def match_int16_move(view: DataflowView, core: Var, support: OpSupport) -> Region | Rejection:
    """Claim movements of int16 values as they are, clamps, and changes of scale, zero point or dtype."""
    value = view.definition(core)
    rule = match_move if call_to(value, "quantize") is None else match_requantize
    found = rule(view, core, support)
    if isinstance(found, Rejection):
        return found
    x: QuantizedTensor = found.form.x
    y: QuantizedOutput = found.form.y
    if x.params == y.tensor.params and (y.qmin, y.qmax) == (y.tensor.params.qmin, y.tensor.params.qmax):
        return found
    if x.shape != y.tensor.shape or call_to(value, "permute_dims") is not None:
        return Rejection(reason=f"it moves int16 values and changes scale, zero point or bounds of {x.name} at once")
    bounds = {"qmin": y.qmin, "qmax": y.qmax}
    if is_fixed_int16(view):
        table = int16_rescale_table(x.params, y.tensor.params, **bounds)
    else:
        table = lookup_table(lambda real: real, x.params, y.tensor.params, **bounds)
    return replace(found, form=Int16LookupOp(x=x, y=y, table=table))
