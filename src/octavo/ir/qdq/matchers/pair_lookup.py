"""Rule of functions of two quantized tensors, or of one and constants of several elements: a table with a row for each partner.

Like a table of 256 entries it is computed here, from the very float ops of the graph. Maximum, division, power, a gate whose
sigmoid stays in float, parametric relus and what a quantizer left unquantized between two tensors are all of this kind.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm.relax import Var

from ....numerics import PAIR_LOOKUP_MAX_ROWS, PerTensor, QuantParams, prelu_table, quantize, real_values
from ....target import OpSupport
from ....target.vocabulary import HALF_UP
from ...composites.base import WIDE, CompositeOp, QuantizedOutput, QuantizedTensor
from ...composites.elementwise import PairLookupOp, PreluOp
from ...graph.dataflow import DataflowView, op_name, static_shape
from ...graph.rules import Region, Rejection
from ..cluster import PRELU, Cluster, ManyConstant, evaluated, name_of, operations
from ..rounding import is_exact, is_fixed_point, rounding_of, tie_rounding
from ..tail import check_activation
from .lookup import ClusterOutput, cluster_of, output_of, region_of


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
