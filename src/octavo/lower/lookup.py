"""Rule of functions of one quantized tensor, element by element: any chain or branching of float ops becomes a table.

The table is computed here, from the very float ops of the graph, on the 256 values that the tensor can have.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm.relax import Expr, Var

from .. import kernels
from ..graph.dataflow import DataflowView, call_to, dtype_of, op_name, static_shape
from ..graph.rules import Region, Rejection
from ..kernels import LookupSpec
from ..numerics import ELEMENTWISE, QuantParams, lookup_table
from ..numerics.fixed_point import fixed_point_table, has_coarse_factor
from ..target import OpSupport
from .context import KernelContext, shape_of
from .forms import Form, OutputForm, TensorForm
from .rounding import rounding_of
from .tail import check_activation, integer_clamp
from .values import Dequantized, dequantized, numpy_constant, params_of

ELEMENTWISE_OPS = tuple(name for name in ELEMENTWISE if name not in ("nn.relu", "clip"))
"""Relax ops that a table can stand for; relu and clip alone change no table but a range, which `move` has."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class LookupForm(Form):
    """A function of x by its table: entry i is the result for the i-th integer of x's dtype, in the result's own integers."""

    x: TensorForm
    y: OutputForm
    table: npt.NDArray[np.integer]

    def quantize_info(self) -> dict[str, Any]:
        """Return its tensors by role."""
        return {"input": self.x.info(), "output": self.y.info()}

    def write(self, context: KernelContext, inputs: dict[str, Var], output: Var) -> None:
        """Write the kernel call."""
        var = inputs[self.x.name]
        is_nhwc = context.storage.is_kept_nhwc(var)
        x = context.storage.get(var, is_nhwc=is_nhwc)
        spec = LookupSpec(size=int(np.prod(shape_of(x))), threads=context.threads)
        # int8 -128 is entry 0 and, relabelled, byte 0: only the entries' values need relabelling.
        table = (self.table.astype(np.int16) + self.y.tensor.relabelling).astype(np.uint8)
        kernel = kernels.lookup(spec, table=table, isa=context.isa)
        context.put(output, context.call(output.name, kernel, [x], shape_of(x)), is_nhwc=is_nhwc)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Cluster:
    """The float ops between one dequantized tensor and the quantize of one result."""

    source: Dequantized
    members: tuple[Var, ...]
    quantize: Var


def match_lookup(view: DataflowView, core: Var, support: OpSupport) -> Region | Rejection:
    """Claim quantize(f(dequantize(x))) for any f made of elementwise ops, constants of one element, and x alone."""
    found = _cluster(view, core)
    if isinstance(found, Rejection):
        return found
    call = call_to(view.definition(found.quantize), "quantize")
    assert call is not None
    source = found.source.source
    x_shape, y_shape = static_shape(source), static_shape(found.quantize)
    y_params = params_of(call, dtype_of(found.quantize))
    if not isinstance(source, Var) or x_shape is None or y_shape is None or y_params is None:
        return Rejection(reason=f"scale, zero point or shape of {found.quantize.name} or of its operand is not a constant")
    if x_shape != y_shape:
        return Rejection(reason=f"a constant widens {source.name} from {x_shape} to {y_shape}")
    problem = check_activation(source.name, found.source.params, support) or check_activation(
        found.quantize.name, y_params, support
    )
    if problem is not None:
        return problem
    output, qmin, qmax = integer_clamp(view, found.quantize, y_params.qmin, y_params.qmax)
    form = LookupForm(
        x=TensorForm(name=source.name, shape=x_shape, params=found.source.params),
        y=OutputForm(tensor=TensorForm(name=output.name, shape=y_shape, params=y_params), qmin=qmin, qmax=qmax),
        table=_table(view, found, call.args[0], y_params, qmin, qmax),
    )
    return Region(
        core=core,
        output=output,
        members=(*found.members, found.quantize, *(() if output.same_as(found.quantize) else (output,))),
        inputs=(source,),
        attrs={"quantize_info": form.quantize_info()},
        form=form,
    )


def _table(view: DataflowView, cluster: _Cluster, result: Expr, y: QuantParams, qmin: int, qmax: int) -> npt.NDArray[np.integer]:
    x = cluster.source.params
    operations = [view.definition(var) for var in cluster.members if call_to(view.definition(var), "dequantize") is None]
    if len(operations) == 1 and op_name(operations[0]) == "nn.leakyrelu":
        slope = _attributes(operations[0])["alpha"]
        if rounding_of(view, "nn.leakyrelu") == "half_up" and has_coarse_factor(x, y, slope):
            return fixed_point_table(x, y, slope=slope, qmin=qmin, qmax=qmax)
    return lookup_table(lambda real: _evaluated(view, cluster, result, real), x, y, qmin=qmin, qmax=qmax)


def _cluster(view: DataflowView, core: Var) -> _Cluster | Rejection:
    """Collect every op that hangs together with `core` through float values, up to one dequantize and one quantize."""
    members: dict[Var, None] = {}
    ends: dict[Var, None] = {}
    source: Dequantized | None = None
    waiting = [core]
    while waiting:
        var = waiting.pop()
        if var in members or var in ends:
            continue
        value = view.definition(var)
        if call_to(value, "quantize") is not None:
            ends[var] = None
            if len(ends) > 1:
                return Rejection(reason=f"{core.name} leads to {len(ends)} quantized results: {', '.join(v.name for v in ends)}")
            continue
        x = dequantized(view, var)
        if x is not None and _scalar(view, var) is None:
            if source is not None and not _same_tensor(source, x):
                return Rejection(reason=f"it reads two tensors: {_name(source.source)} and {_name(x.source)}")
            source = x if source is None else source
            members[var] = None
            continue
        if _scalar(view, var) is not None:
            # A quantized constant of one element: its dequantize belongs to the region that reads it.
            members[var] = None
            continue
        if not _is_elementwise(value):
            return Rejection(reason=f"{var.name} ({op_name(value)}) is float and no function of single elements")
        if view.is_returned(var):
            return Rejection(reason=f"its result {var.name} is returned in float; it has no scale")
        members[var] = None
        for operand in value.args:
            problem = _operand_problem(view, operand)
            if problem is not None:
                return problem
            bound = view.binding_of(operand)
            waiting.extend([] if bound is None else [bound])
        waiting.extend(view.users(var))
    if source is None or not isinstance(source.source, Var):
        return Rejection(reason=f"{core.name} reads no dequantized tensor")
    if not ends:
        return Rejection(reason=f"the result of {core.name} is never quantized")
    ordered = tuple(binding.var for binding in view.bindings if binding.var in members)
    return _Cluster(source=source, members=ordered, quantize=next(iter(ends)))


def _operand_problem(view: DataflowView, operand: Expr) -> Rejection | None:
    if _scalar(view, operand) is not None or _prim_value(operand) is not None or view.binding_of(operand) is not None:
        return None
    shape = static_shape(operand)
    return Rejection(reason=f"operand {_name(operand)} is float, or a constant of shape {shape}; a table takes one element")


def _is_elementwise(value: Any) -> bool:
    cast = call_to(value, "astype")
    if cast is not None:
        return str(cast.attrs.dtype) in ("float32", "bool")
    return call_to(value, *ELEMENTWISE) is not None


def _scalar(view: DataflowView, operand: Expr) -> npt.NDArray[Any] | None:
    """Return a constant of one element, dequantized if it is quantized, shaped [1]; None for anything else."""
    literal = numpy_constant(view.definition(operand))
    if literal is not None:
        return literal.reshape(1) if literal.size == 1 else None
    x = dequantized(view, operand)
    inner = None if x is None else numpy_constant(view.definition(x.source))
    if x is None or inner is None or inner.size != 1:
        return None
    return ((inner.reshape(1).astype(np.int64) - x.params.zero_point).astype(np.float32) * x.params.scale).astype(np.float32)


def _prim_value(operand: Expr) -> float | None:
    value = getattr(operand, "value", None)
    return float(value) if isinstance(value, (int, float)) else None


def _same_tensor(a: Dequantized, b: Dequantized) -> bool:
    same = a.params.dtype == b.params.dtype and np.array_equal(a.params.scale, b.params.scale)
    return a.source.same_as(b.source) and same and np.array_equal(a.params.zero_point, b.params.zero_point)


def _name(expr: Expr) -> str:
    return str(getattr(expr, "name", "constant"))


def _attributes(value: Any) -> dict[str, float]:
    names = {"nn.leakyrelu": ("alpha",), "nn.softplus": ("beta", "threshold")}.get(op_name(value), ())
    return {name: float(getattr(value.attrs, name)) for name in names}


def _evaluated(view: DataflowView, cluster: _Cluster, result: Expr, real: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Run the cluster's ops on `real`, the dequantized values of its source."""
    values: dict[Var, npt.NDArray[Any]] = {}

    def of(operand: Expr) -> npt.NDArray[Any]:
        scalar = _scalar(view, operand)
        if scalar is not None:
            return scalar
        plain = _prim_value(operand)
        if plain is not None:
            return np.full(1, plain, np.float32)
        var = view.binding_of(operand)
        assert var is not None
        return values[var]

    for var in cluster.members:
        value: Any = view.definition(var)
        if _scalar(view, var) is not None:
            continue
        if call_to(value, "dequantize") is not None:
            values[var] = real
        elif call_to(value, "astype") is not None:
            values[var] = of(value.args[0]).astype(str(value.attrs.dtype))
        else:
            values[var] = ELEMENTWISE[op_name(value)](*(of(arg) for arg in value.args), **_attributes(value))
    return np.broadcast_to(of(result), real.shape).astype(np.float32)
