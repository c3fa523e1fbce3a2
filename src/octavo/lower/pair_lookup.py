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

from .. import kernels
from ..graph.dataflow import DataflowView, op_name, static_shape
from ..graph.rules import Region, Rejection
from ..kernels import AffineRowsSpec, PairLookupSpec
from ..numerics import PAIR_LOOKUP_MAX_ROWS, PerTensor, QuantParams, affine_rows, prelu_table, quantize, real_values
from ..target import OpSupport
from .cluster import PRELU, Cluster, evaluated, name_of, operations
from .context import KernelContext, shape_of
from .forms import ElementFunction, Form, OutputForm, TensorForm
from .lookup import cluster_of, output_of, region_of
from .rounding import rounding_of
from .storage import TO_NHWC
from .tail import check_activation


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class PairLookupForm(Form):
    """A function of a and b by its table, in the result's own integers: entry [i, j] is for the j-th integer of a's dtype.

    `b` is a tensor, whose i-th integer it is, or None: then `rows` holds i for each element of a constant. `reals` are the
    entries before rounding, in steps of the result from its zero point; None where the table was made of integers.
    """

    a: TensorForm
    b: TensorForm | None
    rows: npt.NDArray[np.int32] | None
    y: OutputForm
    table: npt.NDArray[np.integer]
    reals: npt.NDArray[np.float32] | None = None

    def quantize_info(self) -> dict[str, Any]:
        """Return its tensors by role."""
        others = {} if self.b is None else {"input1": self.b.info()}
        return {"input0": self.a.info(), **others, "output": self.y.info()}

    def write(self, context: KernelContext, inputs: dict[str, Var], output: Var) -> None:
        """Write the kernel call."""
        tensors = [self.a] if self.b is None else [self.a, self.b]
        is_nhwc = self._is_nhwc(context, [inputs[tensor.name] for tensor in tensors])
        values = [context.storage.get(inputs[tensor.name], is_nhwc=is_nhwc) for tensor in tensors]
        rows = self.rows
        if rows is not None and is_nhwc:
            rows = rows.reshape((1,) * (4 - rows.ndim) + rows.shape).transpose(TO_NHWC)
        b_shape = shape_of(values[1]) if rows is None else rows.shape
        # int8 -128 is entry 0 and, relabelled, byte 0: only the entries' values need relabelling.
        table = (self.table.astype(np.int16) + self.y.tensor.relabelling).astype(np.uint8)
        lines = None if self.reals is None else affine_rows(table, self.reals, self.y.tensor.zero_point)
        if rows is not None and lines is not None:
            affine = AffineRowsSpec(a_shape=shape_of(values[0]), b_shape=b_shape, threads=context.threads)
            kernel = kernels.affine_rows(affine, lines=lines, rows=rows, isa=context.isa)
        else:
            spec = PairLookupSpec(a_shape=shape_of(values[0]), b_shape=b_shape, threads=context.threads)
            kernel = kernels.pair_lookup(spec, table=table, rows=rows, isa=context.isa)
        shape = self.y.tensor.shape
        shape = tuple(shape[axis] for axis in TO_NHWC) if is_nhwc else shape
        context.put(output, context.call(output.name, kernel, values, shape), is_nhwc=is_nhwc)

    def element_function(self) -> ElementFunction | None:
        """Return the function that the table is of, where no operand is widened and none is a constant of several elements."""
        if self.b is None or not self.a.shape == self.b.shape == self.y.tensor.shape:
            return None
        table = (self.table.astype(np.int16) + self.y.tensor.relabelling).astype(np.uint8)
        return ElementFunction(operands={"input0": self.a, "input1": self.b}, result=self.y, of=lambda a, b: table[b, a])

    def _is_nhwc(self, context: KernelContext, variables: list[Var]) -> bool:
        """Whether to compute in the permuted layout: where a tensor lies so, and every tensor has four dimensions."""
        tensors = [self.a, self.y.tensor] if self.b is None else [self.a, self.b, self.y.tensor]
        if any(len(tensor.shape) != 4 for tensor in tensors):
            return False
        return any(context.storage.is_kept_nhwc(var) for var in variables)


def match_pair_lookup(view: DataflowView, core: Var, support: OpSupport) -> Region | Rejection:
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
    forms: list[TensorForm] = []
    for x in cluster.tensors:
        shape = static_shape(x.source)
        if not isinstance(x.source, Var) or shape is None:
            return Rejection(reason=f"the shape of {name_of(x.source)} is not a constant; make it so")
        problem = check_activation(x.source.name, x.params, support)
        if problem is not None:
            return problem
        forms.append(TensorForm(name=x.source.name, shape=shape, params=x.params))
    if count == 2:
        reals = [real_values(forms[0].params)[None, :], real_values(forms[1].params)[:, None]]
        table = _quantized(evaluated(view, cluster, reals, []), output.form)
        form = PairLookupForm(a=forms[0], b=forms[1], rows=None, y=output.form, table=table)
        return region_of(core, cluster, output, form)
    if not cluster.constants:
        return Rejection(reason=f"a single element widens {forms[0].name}")
    chosen = _Rows.of(cluster)
    if len(chosen.first) > PAIR_LOOKUP_MAX_ROWS:
        return Rejection(
            reason=f"its constants make {len(chosen.first)} different functions; a table has {PAIR_LOOKUP_MAX_ROWS} rows"
        )
    table, reals = _fixed_point(view, cluster, chosen, forms[0], output.form), None
    if table is None:
        real = evaluated(view, cluster, [real_values(forms[0].params)[None, :]], [c[:, None] for c in chosen.constants])
        table = _quantized(real, output.form)
        with np.errstate(all="ignore"):
            reals = real / output.form.tensor.params.scale
    form = PairLookupForm(a=forms[0], b=None, rows=chosen.rows, y=output.form, table=table, reals=reals)
    return region_of(core, cluster, output, form)


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
    view: DataflowView, cluster: Cluster, rows: _Rows, x: TensorForm, y: OutputForm
) -> npt.NDArray[np.integer] | None:
    """Return the table of a parametric relu that the source rounds in fixed point; None for anything else."""
    ops = operations(view, cluster)
    if len(ops) != 1 or op_name(ops[0]) != PRELU or rounding_of(view, PRELU) != "half_up":
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


def _quantized(real: npt.NDArray[np.float32], y: OutputForm) -> npt.NDArray[np.integer]:
    """Return a table's entries; what has no result (NaN) becomes qmin, as `quantize` has it."""
    with np.errstate(all="ignore"):
        return np.clip(quantize(real, y.tensor.params), y.qmin, y.qmax)
