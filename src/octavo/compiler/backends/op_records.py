"""What became of each op of the graph, whichever back end computes it: one record for an op."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from tvm import relax
from tvm.ir import Call
from tvm.relax import Expr, Var

from ...ir.composites.attributes import HOST, Composite
from ...ir.composites.base import CompositeOp, FloatOp
from ...ir.composites.elementwise import MixedElementwiseOp
from ...ir.composites.weighted import DynamicTensor, RowBatchMatmulOp, WeightedOp
from ...ir.graph.dataflow import DataflowView, call_to, dtype_of, op_name, static_shape
from ...ir.graph.macs import float_macs
from ...ir.graph.partition_state import PartitionState
from ...ir.graph.probes import read_probe
from ...numerics.dynamic import is_by_row
from ...runtime.shapes import typical
from ...target import TargetDescription
from ...target.op_facts import movers


@dataclass(frozen=True, kw_only=True, slots=True)
class OpRecord:
    """What became of one op of the graph.

    Parameters
    ----------
    op
        "conv2d", "add", ... for an integer op; the Relax op's name for a float one.
    tensor
        Name of the variable that holds its result: a TensorId where the source has the tensor.
    integer
        Whether an integer kernel computes it.
    kernel, isa
        The kernel that runs, and its instruction set; "" and "tvm" for an op that TVM compiles. A float op with constant weights
        has a kernel too.
    reason
        Why it is float; of an integer op what is to be said of it: that its input is quantized when run; "" without such.
    macs
        Multiply-accumulates of one inference, of a float op too; at a typical size where sizes are open; 0 for ops without a
        product of tensors.
    shape
        Shape of the result.
    dtype
        "bfloat16" or "float16" where a downcast model keeps the result in 16 bits; "" for every other op.
    core
        Name of the variable that holds the result of the op itself, where its kernel computes what follows, too.
    backend
        Name of the back end whose composite it is; "" for the host and for what TVM compiles.
    declined
        Why the back ends that choose before its taker left it: "npu: its kernel is 7, expected at most 5"; "" without such.
    """

    op: str
    tensor: str
    integer: bool
    kernel: str
    isa: str
    reason: str
    macs: int
    shape: tuple[int, ...]
    dtype: str = ""
    declined: str = ""
    core: str = ""
    backend: str = ""


class NamedKernel(Protocol):
    """What a record says of a kernel."""

    @property
    def name(self) -> str:
        """For people."""
        ...

    @property
    def isa(self) -> str:
        """Its instruction set."""
        ...


_UNCOUNTED = ("tuple", "constant", "quantize", "dequantize", "astype", *movers("view", "transpose"))


_VIEWS = movers("view")


def _is_of_indices(value: Expr, var: Var) -> bool:
    """Return whether an op computes indices from indices: it is integer as it stands, and has nothing quantized about it."""
    if not isinstance(value, Call) or float_macs(value):
        return False
    read = {str(arg.ty.dtype) for arg in value.args if isinstance(getattr(arg, "ty", None), relax.TensorType)}
    return bool(read) and read <= {"int32", "int64"} and dtype_of(var) in ("int32", "int64", "bool")


def float_record(view: DataflowView, state: PartitionState, var: Var, target: TargetDescription) -> OpRecord | None:
    """Return the record of an op that no composite holds; None of what is no op of the source, or moves floats alone."""
    value = view.definition(var)
    name = op_name(value)
    if read_probe(value) is not None:  # an observer of a user's
        return None
    if _is_of_indices(value, var):
        return None
    rejection = state.rejections.get(var.name)
    if rejection is None and (name in _UNCOUNTED or not isinstance(value, Call)):
        return None
    if name in _VIEWS and isinstance(value, Call) and call_to(view.definition(value.args[0]), "dequantize") is None:
        return None  # floats under another shape: nothing is computed, and nothing could be in integers
    return OpRecord(
        op=name,
        tensor=state.pixels_of.get(var.name, var.name),
        integer=False,
        kernel="",
        isa="tvm",
        reason=f"target {target.name} has no integer kernel for {name}" if rejection is None else rejection,
        macs=float_macs(value),
        shape=static_shape(var) or (),
        declined=state.declined.get(var.name, ""),
    )


def _when_run(op: CompositeOp) -> str:
    if isinstance(op, RowBatchMatmulOp):
        return "its inputs are quantized per row and per column, when run"
    x = op.x if isinstance(op, WeightedOp) else None
    if not isinstance(x, DynamicTensor):
        return ""
    return f"its input is quantized {'per row, ' if is_by_row(x.style) else ''}when run"


def composite_record(composite: Composite, state: PartitionState, var: Var, kernel: NamedKernel | None) -> OpRecord:
    """Return the record of a composite whose call `var` binds, and of the kernel that does its work."""
    op = composite.op
    # A kernel that dequantizes and quantizes around a float op computes one that a rule left float, or one that asks for that.
    is_float = isinstance(op, FloatOp) or (isinstance(op, MixedElementwiseOp) and composite.core in state.rejections)
    # Only the quantize_info knows of integers that hoist_quantize.py and sink_dequantize.py made.
    described = composite.quantize_info.get("output")
    return OpRecord(
        op=op.op if isinstance(op, (FloatOp, MixedElementwiseOp)) else composite.op_name,
        tensor=state.tensor_of(var.name if described is None else str(described["id"])),
        integer=not is_float,
        kernel="" if kernel is None else kernel.name,
        isa="" if kernel is None else kernel.isa,
        reason=state.rejections.get(composite.core, "") if is_float else _when_run(op),
        macs=typical(op.macs),
        shape=static_shape(var) or (),
        declined=state.declined.get(composite.core, ""),
        core=composite.core,
        backend="" if composite.backend == HOST else composite.backend,
    )
