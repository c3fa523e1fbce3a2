"""Rule of functions of one quantized tensor, element by element: any chain or branching of float ops becomes a table.

The table is computed here, from the very float ops of the graph, on the 256 values that the tensor can have.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from tvm.relax import Var

from ...composites.base import CompositeOp, QuantizedOutput, QuantizedTensor
from ...composites.elementwise import LookupOp
from ...graph.dataflow import DataflowView, call_to, dtype_of, op_name, static_shape
from ...graph.rules import Region, Rejection
from ...numerics import lookup_table
from ...numerics.quantized.rescale import has_coarse_multiplier, rescale_table
from ...ops import CLAMPS, ELEMENTWISE
from ...target import OpSupport
from ..cluster import Cluster, attributes, cluster_before, ends_of, evaluated, name_of, operations
from ..rounding import rounding_of
from ..tail import check_activation, integer_clamp
from ..values import params_of

ELEMENTWISE_OPS = tuple(name for name in ELEMENTWISE if name not in CLAMPS)
"""Relax ops that a table can stand for; relu and clip alone change no table but a range, which `move` has."""


def match_lookup(view: DataflowView, core: Var, support: OpSupport) -> Region | Rejection:
    """Claim quantize(f(dequantize(x))) for any f made of elementwise ops, constants of one element, and x alone.

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
    if x_shape != y.form.tensor.shape:
        return Rejection(reason=f"a constant widens {source.name} from {x_shape} to {y.form.tensor.shape}")
    form = LookupOp(
        x=QuantizedTensor(name=source.name, shape=x_shape, params=x.params), y=y.form, table=_table(view, cluster, y.form)
    )
    return region_of(core, cluster, y, form)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ClusterOutput:
    """The variable that a cluster's region ends in: its quantize, or an integer clamp behind it."""

    var: Var
    form: QuantizedOutput


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
    form = QuantizedOutput(tensor=QuantizedTensor(name=output.name, shape=shape, params=params), qmin=qmin, qmax=qmax)
    return ClusterOutput(var=output, form=form)


def region_of(core: Var, cluster: Cluster, output: ClusterOutput, form: CompositeOp) -> Region:
    """Return the region of a cluster that a table stands for: others may compute its inner values as well."""
    behind = () if output.var.same_as(cluster.quantize) else (output.var,)
    return Region(
        core=core,
        output=output.var,
        members=(*cluster.members, cluster.quantize, *behind),
        inputs=tuple(x.source for x in cluster.tensors if isinstance(x.source, Var)),
        attrs={"quantize_info": form.quantize_info()},
        form=form,
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
        if rounding_of(view, "nn.leakyrelu") == "half_up" and has_coarse_multiplier(x, result, slope):
            return rescale_table(x, result, slope=slope, qmin=y.qmin, qmax=y.qmax)

    def function(real: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        return evaluated(view, cluster, [real], [])

    return lookup_table(function, x, result, qmin=y.qmin, qmax=y.qmax)
