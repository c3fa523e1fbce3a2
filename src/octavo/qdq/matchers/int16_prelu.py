"""Rule of parametric relus of int16 with constant slopes: the one function of an int16 tensor and constants that has a kernel."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from tvm.relax import Var

from ...composites.base import QuantizedTensor
from ...composites.elementwise import Int16PreluOp
from ...graph.dataflow import DataflowView, op_name, static_shape
from ...graph.rules import Region, Rejection
from ...target import OpSupport
from ..cluster import PRELU, ManyConstant, operations
from ..rounding import is_fixed_int16
from .lookup import cluster_of, output_of, region_of


def match_int16_prelu(view: DataflowView, core: Var, support: OpSupport) -> Region | Rejection:
    """Claim quantize(prelu(dequantize(x), slopes)) of TFLite files, with symmetric int16 x and y and slopes of one scale."""
    cluster = cluster_of(view, core)
    if isinstance(cluster, Rejection):
        return cluster
    ops = operations(view, cluster)
    is_prelu = len(ops) == 1 and op_name(ops[0]) == PRELU and len(cluster.tensors) == len(cluster.constants) == 1
    if not is_prelu or not is_fixed_int16(view):
        return Rejection(reason=f"{op_name(ops[0]) if ops else core.name} of two 16-bit operands has no kernel")
    x, output = cluster.tensors[0], output_of(view, cluster, support)
    if isinstance(output, Rejection):
        return output
    shape, y = static_shape(x.source), output.form.tensor
    if not isinstance(x.source, Var) or shape is None or shape != y.shape:
        return Rejection(reason=f"the shape of the operand of {core.name} is not a constant, or its slopes widen it")
    other = next((params for params in (x.params, y.params) if params.dtype != "int16" or np.any(params.zero_point)), None)
    slopes = _slopes(cluster.constants[0])
    if other is not None or slopes is None:
        return Rejection(reason=f"{x.source.name}, its slopes or its result: one is not symmetric int16 or slopes of one scale")
    form = Int16PreluOp(
        x=QuantizedTensor(name=x.source.name, shape=shape, params=x.params),
        y=output.form,
        slopes=slopes[0],
        slope_scale=slopes[1],
    )
    return region_of(core, cluster, output, form)


def _slopes(constant: ManyConstant) -> tuple[npt.NDArray[np.int16], float] | None:
    """Return 8-bit slopes less their zero point, and their scale; None where they have several."""
    value = constant.value
    if value.scale is None or value.zero_point is None or value.values.dtype.itemsize != 1 or np.ptp(value.scale) != 0:
        return None
    integers = value.values.astype(np.int16) - value.zero_point.astype(np.int16)
    return integers.reshape(constant.shape), float(value.scale.reshape(-1)[0])
