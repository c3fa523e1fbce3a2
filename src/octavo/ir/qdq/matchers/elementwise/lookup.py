"""Rules of functions that become tables: of one quantized tensor, of two, or of one and constants of several elements.

A table is computed here, from the very float ops of the graph, on all the values that the tensor can have: any chain or branching
of float ops is one. A function of two has a row for each partner: maximum, division, power, a gate whose sigmoid stays in float,
parametric relus and what a quantizer left unquantized between two tensors are all of this kind.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm.relax import Var

from .....numerics import PAIR_LOOKUP_MAX_ROWS, PerTensor, QuantParams, lookup_table, prelu_table, quantize, real_values
from .....numerics.quantized.int16_functions import INTERPOLATED, interpolated_table, logistic_table, tanh_table
from .....numerics.quantized.rescale import has_coarse_multiplier, int16_rescale_table, integer_values, prelu_int16, rescale_table
from .....target import OpSupport
from .....target.op_facts import CLAMPS, ELEMENTWISE
from .....target.vocabulary import HALF_UP
from ....composites.base import WIDE, CompositeOp, QuantizedOutput, QuantizedTensor
from ....composites.elementwise import LookupOp, PairLookupOp, PreluOp
from ....graph.dataflow import DataflowView, call_to, dtype_of, op_name, static_shape
from ....graph.rules import Region, Rejection
from ...cluster import PRELU, Cluster, ManyConstant, attributes, cluster_before, ends_of, evaluated, name_of, operations
from ...rounding import is_exact, is_fixed_point, rounding_of, tie_rounding
from ...tail import check_activation, integer_clamp
from ...values import constant_value, params_of

ELEMENTWISE_OPS = tuple(name for name in ELEMENTWISE if name not in CLAMPS)
"""Relax ops that a table can stand for; relu and clip alone change no table but a range, which `move` has."""

_UNIT_SCALE = 1 / 32768
"""Scale of TFLite's int16 results of logistic and tanh."""


def match_lookup(view: DataflowView, core: Var, support: OpSupport) -> Region[CompositeOp] | Rejection:
    """Claim quantize(f(dequantize(x))) for any f made of elementwise ops, constants of one element, and x alone.

    A lone logistic, tanh, leaky relu or clamp of int16 is computed as the source asks for.

    `core` is one of the ops, or the quantize itself: where an op leads to several, each is a table of its own.
    """
    cluster = cluster_of(view, core)
    if isinstance(cluster, Rejection):
        return cluster
    if len(cluster.tensors) != 1 or cluster.constants:
        return Rejection(reason=_why_not_one(core, cluster))
    x = cluster.tensors[0]
    source = x.source
    x_shape, y = static_shape(source), output_of(view, cluster, support)
    if isinstance(y, Rejection):
        return y
    if not isinstance(source, Var) or x_shape is None:
        return Rejection(reason=f"the shape of {name_of(source)} is not a constant; make it so")
    problem = check_activation(source.name, x.params, support)
    if problem is not None:
        return problem
    if x_shape != y.result.tensor.shape:
        return Rejection(reason=f"a constant widens {source.name} from {x_shape} to {y.result.tensor.shape}")
    tensor = QuantizedTensor(name=source.name, shape=x_shape, params=x.params)
    is_fixed = x.params.dtype == "int16" and is_fixed_point(rounding_of(view.definition(cluster.quantize)))
    table = _fixed_table(view, cluster, tensor, y.result) if is_fixed else None
    op = LookupOp(x=tensor, y=y.result, table=_table(view, cluster, y.result) if table is None else table)
    return region_of(core, cluster, y, op)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ClusterOutput:
    """The variable that a cluster's region ends in: its quantize, or an integer clamp behind it."""

    var: Var
    result: QuantizedOutput


def cluster_of(view: DataflowView, core: Var) -> Cluster | Rejection:
    """Return the cluster that ends in `core`, a quantize, or in the one quantize that `core` leads to."""
    ends = [core] if call_to(view.definition(core), "quantize") is not None else ends_of(view, core)
    if isinstance(ends, Rejection):
        return ends
    if len(ends) > 1:
        return Rejection(reason=f"{core.name} leads to {len(ends)} quantized results: {', '.join(v.name for v in ends)}")
    found = cluster_before(view, ends[0])
    if isinstance(found, Cluster) and not operations(view, found):
        return Rejection(reason=f"{ends[0].name} quantizes nothing that is computed")
    return found


def output_of(view: DataflowView, cluster: Cluster, support: OpSupport) -> ClusterOutput | Rejection:
    """Return what a cluster's region ends in, or why it can't be an activation."""
    shape = static_shape(cluster.quantize)
    params = params_of(view.definition(cluster.quantize), dtype_of(cluster.quantize))
    if shape is None or params is None:
        return Rejection(reason=f"scale, zero point or shape of {cluster.quantize.name} is not a constant; make it so")
    problem = check_activation(cluster.quantize.name, params, support)
    if problem is not None:
        return problem
    output, qmin, qmax = integer_clamp(view, cluster.quantize, params.qmin, params.qmax)
    result = QuantizedOutput(tensor=QuantizedTensor(name=output.name, shape=shape, params=params), qmin=qmin, qmax=qmax)
    return ClusterOutput(var=output, result=result)


def region_of(core: Var, cluster: Cluster, output: ClusterOutput, op: CompositeOp) -> Region[CompositeOp]:
    """Return the region of a cluster that a table stands for: others may compute its inner values as well."""
    behind = () if output.var.same_as(cluster.quantize) else (output.var,)
    return Region(
        core=core,
        output=output.var,
        members=(*cluster.members, cluster.quantize, *behind),
        inputs=tuple(x.source for x in cluster.tensors if isinstance(x.source, Var)),
        op=op,
        recomputes=True,
    )


def _why_not_one(core: Var, cluster: Cluster) -> str:
    if not cluster.tensors:
        return f"{core.name} reads no dequantized tensor"
    if len(cluster.tensors) == 1:
        shapes = ", ".join(str(constant.shape) for constant in cluster.constants)
        return f"it reads constants of shape {shapes}; a table of one tensor takes one element"
    return f"it reads {len(cluster.tensors)} tensors: {', '.join(name_of(x.source) for x in cluster.tensors)}"


def _table(view: DataflowView, cluster: Cluster, y: QuantizedOutput) -> npt.NDArray[np.integer]:
    x, result = cluster.tensors[0].params, y.tensor.params
    ops = operations(view, cluster)
    if len(ops) == 1 and op_name(ops[0]) == "nn.leakyrelu":
        slope = attributes(ops[0])["alpha"]
        if rounding_of(view.definition(cluster.quantize)) == HALF_UP and has_coarse_multiplier(x, result, slope):
            return rescale_table(x, result, slope=slope, qmin=y.qmin, qmax=y.qmax)

    def function(real: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return evaluated(view, cluster, [real], [])

    asked = rounding_of(view.definition(cluster.quantize))
    bounds = {"qmin": y.qmin, "qmax": y.qmax}
    return lookup_table(function, x, result, **bounds, rounding=tie_rounding(asked), exact=is_exact(asked))


def _fixed_table(view: DataflowView, cluster: Cluster, x: QuantizedTensor, y: QuantizedOutput) -> npt.NDArray[np.integer] | None:
    """Return TFLite's table of the cluster's one op; None for what it has no 16-bit kernel for."""
    ops = operations(view, cluster)
    name = op_name(ops[0]) if len(ops) == 1 else ""
    bounds, result = {"qmin": y.qmin, "qmax": y.qmax}, y.tensor.params
    if name == "nn.leakyrelu":
        return int16_rescale_table(x.params, result, slope=attributes(ops[0])["alpha"], **bounds)
    if name == PRELU:
        return _prelu_table(view, ops[0], x, y)
    is_symmetric = x.zero_point == y.tensor.zero_point == 0
    if name in INTERPOLATED and is_symmetric and result.dtype == "int16":
        return np.clip(interpolated_table(name, float(x.params.scale), float(result.scale)), y.qmin, y.qmax)
    is_unit = float(result.scale) == _UNIT_SCALE and is_symmetric
    if name in ("sigmoid", "tanh") and is_unit:
        table = (logistic_table if name == "sigmoid" else tanh_table)(float(x.params.scale))
        return np.clip(table, y.qmin, y.qmax)
    return None


def _prelu_table(view: DataflowView, call: Any, x: QuantizedTensor, y: QuantizedOutput) -> npt.NDArray[np.integer] | None:
    """Return TFLite's table of a relu with one slope of 8 bits for all; None for other slopes."""
    slope = constant_value(view, call.args[1])
    if slope is None or slope.scale is None or slope.zero_point is None or slope.values.dtype.itemsize != 1:
        return None
    if x.zero_point or y.tensor.zero_point:
        return None
    return prelu_int16(
        integer_values("int16").astype(np.int16),
        (slope.values.astype(np.int64) - slope.zero_point).reshape(1),
        x_scale=float(x.params.scale),
        slope_scale=float(slope.scale.reshape(-1)[0]),
        out_scale=float(y.tensor.params.scale),
        qmin=y.qmin,
        qmax=y.qmax,
    )


def match_pair_lookup(view: DataflowView, core: Var, support: OpSupport) -> Region[CompositeOp] | Rejection:
    """Claim quantize(f(dequantize(a), dequantize(b))), or of one tensor and constants, for any f made of elementwise ops."""
    cluster = cluster_of(view, core)
    if isinstance(cluster, Rejection):
        return cluster
    count = len(cluster.tensors)
    if count not in (1, 2) or (count == 2 and cluster.constants):
        constants = f" and constants of shape {', '.join(str(c.shape) for c in cluster.constants)}" if cluster.constants else ""
        names = ", ".join(name_of(x.source) for x in cluster.tensors)
        return Rejection(reason=f"it reads {count} tensors ({names}){constants}; a table takes two tensors, or one and constants")
    output = output_of(view, cluster, support)
    if isinstance(output, Rejection):
        return output
    if any(params.dtype in WIDE for params in (output.result.tensor.params, *(x.params for x in cluster.tensors))):
        return _wide_prelu(view, core, cluster, output)
    operands: list[QuantizedTensor] = []
    for x in cluster.tensors:
        shape = static_shape(x.source)
        if not isinstance(x.source, Var) or shape is None:
            return Rejection(reason=f"the shape of {name_of(x.source)} is not a constant; make it so")
        problem = check_activation(x.source.name, x.params, support)
        if problem is not None:
            return problem
        operands.append(QuantizedTensor(name=x.source.name, shape=shape, params=x.params))
    asked = rounding_of(view.definition(cluster.quantize))
    every = [real_values(operand.params, exact=is_exact(asked)) for operand in operands]
    if count == 2:
        reals = [every[0][None, :], every[1][:, None]]
        table = _quantized(evaluated(view, cluster, reals, []), output.result, asked)
        op = PairLookupOp(a=operands[0], b=operands[1], rows=None, y=output.result, table=table)
        return region_of(core, cluster, output, op)
    if not cluster.constants:
        return Rejection(reason=f"a single element widens {operands[0].name}")
    chosen = _Rows.of(cluster)
    if len(chosen.first) > PAIR_LOOKUP_MAX_ROWS:
        return Rejection(
            reason=f"its constants make {len(chosen.first)} different functions; a table has {PAIR_LOOKUP_MAX_ROWS} rows"
        )
    table, reals = _fixed_point(view, cluster, chosen, operands[0], output.result), None
    if table is None:
        real = evaluated(view, cluster, [every[0][None, :]], [c[:, None] for c in chosen.constants])
        table = _quantized(real, output.result, asked)
        with np.errstate(all="ignore"):
            reals = (real / output.result.tensor.params.scale).astype(np.float32)
    op = PairLookupOp(a=operands[0], b=None, rows=chosen.rows, y=output.result, table=table, reals=reals)
    return region_of(core, cluster, output, op)


def _wide_prelu(view: DataflowView, core: Var, cluster: Cluster, output: ClusterOutput) -> Region[CompositeOp] | Rejection:
    """Claim quantize(prelu(dequantize(x), slopes)) of TFLite files, with symmetric int16 x and y and slopes of one scale.

    It is the one function of a 16-bit tensor and constants that has a kernel: a table would be too large.
    """
    ops = operations(view, cluster)
    is_prelu = len(ops) == 1 and op_name(ops[0]) == PRELU and len(cluster.tensors) == len(cluster.constants) == 1
    if not is_prelu or not is_fixed_point(rounding_of(view.definition(cluster.quantize))):
        return Rejection(reason=f"{op_name(ops[0]) if ops else core.name} of two 16-bit operands has no kernel")
    x, y = cluster.tensors[0], output.result.tensor
    shape = static_shape(x.source)
    if not isinstance(x.source, Var) or shape is None or shape != y.shape:
        return Rejection(reason=f"the shape of the operand of {core.name} is not a constant, or its slopes widen it")
    other = next((params for params in (x.params, y.params) if params.dtype != "int16" or np.any(params.zero_point)), None)
    slopes = _slopes(cluster.constants[0])
    if other is not None or slopes is None:
        return Rejection(reason=f"{x.source.name}, its slopes or its result: one is not symmetric int16 or slopes of one scale")
    tensor = QuantizedTensor(name=x.source.name, shape=shape, params=x.params)
    op = PreluOp(x=tensor, y=output.result, slopes=slopes[0], slope_scale=slopes[1])
    return region_of(core, cluster, output, op)


def _slopes(constant: ManyConstant) -> tuple[npt.NDArray[np.int16], float] | None:
    """Return 8-bit slopes less their zero point, and their scale; None where they have several."""
    value = constant.value
    if value.scale is None or value.zero_point is None or value.values.dtype.itemsize != 1 or np.ptp(value.scale) != 0:
        return None
    integers = value.values.astype(np.int16) - value.zero_point.astype(np.int16)
    return integers.reshape(constant.shape), float(value.scale.reshape(-1)[0])


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Rows:
    """The different values that the constants of a cluster have together.

    `rows` says for each element, in the shape that the constants broadcast to, which it has; `first` is the position, in the
    flattened shape, of the first element of each; `constants` are the real values by row.
    """

    rows: npt.NDArray[np.int32]
    first: npt.NDArray[np.integer]
    constants: list[npt.NDArray[Any]]

    @staticmethod
    def of(cluster: Cluster) -> _Rows:
        shape = np.broadcast_shapes(*(constant.shape for constant in cluster.constants))
        flat = [np.broadcast_to(constant.real, shape).reshape(-1) for constant in cluster.constants]
        stacked = np.stack([values.astype(np.float64) for values in flat], axis=1)
        _, first, rows = np.unique(stacked, axis=0, return_index=True, return_inverse=True)
        constants = [values[first] for values in flat]
        return _Rows(rows=rows.astype(np.int32).reshape(shape), first=first, constants=constants)


def _fixed_point(
    view: DataflowView, cluster: Cluster, rows: _Rows, x: QuantizedTensor, y: QuantizedOutput
) -> npt.NDArray[np.integer] | None:
    """Return the table of a parametric relu that the source rounds in fixed point; None for anything else."""
    ops = operations(view, cluster)
    if len(ops) != 1 or op_name(ops[0]) != PRELU or rounding_of(view.definition(cluster.quantize)) != HALF_UP:
        return None
    value = cluster.constants[0].value
    if value.scale is None or value.zero_point is None or np.ptp(value.scale) or np.ptp(value.zero_point):
        return None
    slope = QuantParams(
        dtype=str(value.values.dtype),
        scale=value.scale.reshape(-1)[0],
        zero_point=value.zero_point.reshape(-1)[0],
        granularity=PerTensor(),
    )
    slopes = value.values.reshape(-1)[rows.first]
    return prelu_table(slopes, x.params, slope, y.tensor.params, qmin=y.qmin, qmax=y.qmax)


def _quantized(real: npt.NDArray[Any], y: QuantizedOutput, asked: str) -> npt.NDArray[np.integer]:
    """Return a table's entries; what has no result (NaN) becomes qmin, as `quantize` has it."""
    with np.errstate(all="ignore"):
        table = quantize(real, y.tensor.params, tie_rounding(asked), exact=is_exact(asked))
    return np.clip(table, y.qmin, y.qmax)
