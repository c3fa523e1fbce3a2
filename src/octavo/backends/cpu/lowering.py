"""The lowering of one module: composites first, then a kernel call for each, with a record of what became of every op."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import tvm
from tvm import relax
from tvm.ir import Call
from tvm.relax import Expr, Var

from ...composites.attributes import HOST, Composite, read_composites
from ...composites.base import FloatOp
from ...composites.float_ops import ObserveOp
from ...errors import CompileError
from ...graph.dataflow import (
    BodyWriter,
    DataflowView,
    attrs_of,
    call_to,
    dtype_of,
    op_name,
    operand_vars,
    replace_operands,
    static_shape,
    write_function,
)
from ...graph.lineage import announce
from ...graph.macs import float_macs
from ...graph.model import MODEL_ATTR
from ...graph.partition_state import PARTITION_ATTR, PartitionState, read_state
from ...graph.probes import read_probe
from ...graph.tracking import Announced
from ...numerics import INTEGER_RANGE
from ...ops import movers
from ...qdq.matchers.half_float import weight_obstacle
from ...target import TargetDescription
from ...target.precision import Precision
from ..protocol import Backend, where_of
from .backend import CpuBackend
from .compose import compose_tables
from .context import KernelContext, KernelTable, PlacedKernel
from .emit.half_float import emit_cast
from .emit.half_pool2d import emit_concat
from .float_layout import emit_nhwc
from .guest import External
from .kernels import NO_SCHEDULES, Kernel, Schedules
from .storage import TO_NHWC, StorageLayout


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
        Why it is float; "" for an integer op.
    macs
        Multiply-accumulates of one inference, of a float op too; 0 for ops without a product of tensors.
    shape
        Shape of the result.
    dtype
        "bfloat16" or "float16" where a downcast model keeps the result in 16 bits; "" for every other op.
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


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Lowered:
    """A module whose kernels are calls to external symbols, the kernels by symbol, and the records in graph order.

    `externals` are the functions by symbol that kernels call in the code of other back ends.
    """

    module: tvm.IRModule
    kernels: dict[str, PlacedKernel]
    records: tuple[OpRecord, ...]
    externals: dict[str, External] = field(default_factory=dict[str, External])


def lower_composites(
    module: tvm.IRModule,
    target: TargetDescription,
    isas: tuple[str, ...],
    threads: int,
    precision: Precision | None = None,
    schedules: Schedules = NO_SCHEDULES,
    backends: Sequence[Backend] = (),
) -> Lowered:
    """Lower a partitioned module to kernel calls.

    Parameters
    ----------
    isas
        Instruction sets of the machine, best first; the first that the target description lists is used.
    threads
        Chunks that large kernels are cut into; at least 1.
    precision
        What the module was downcast to before it was partitioned; None where it was not.
    schedules
        Those that were measured to be best, by the kernels' keys; the other kernels choose their own.
    backends
        Those of the composites that are not the CPU's.

    Raises
    ------
    CompileError
        The machine has no ISA that the target lists; a composite cannot be read, or is of none of the back ends.
    """
    isa = next((name for name in isas if not target.isas or name in target.isas), None)
    if isa is None:
        raise CompileError(f"target {target.name} has kernels for {', '.join(target.isas)}; the machine offers {', '.join(isas)}")
    state = read_state(module)
    composed = compose_tables(module, read_composites(module))
    main = module["main"]
    view = DataflowView(main)
    table = KernelTable()
    emitters: dict[str, Backend] = {HOST: CpuBackend(), **{each.description.name: each for each in backends}}
    records: list[OpRecord] = []
    written: dict[Var, tuple[StorageLayout, Expr]] = {}
    stated: set[tuple[str, Var]] = set()

    def body(writer: BodyWriter) -> Expr:
        context = KernelContext(writer, table, isa, threads, schedules)
        for binding in view.bindings:
            composite = _composite(composed.composites, binding.value)
            if composite is None:
                if emit_cast(context, view, binding.var, binding.value, state.halves):
                    continue
                if not emit_concat(context, binding.var, binding.value, state.halves):
                    _emit_float(context, writer, view, binding)
                is_op = not isinstance(binding.value, Var) and binding.var.name not in state.cuts  # no other name of a value
                record = _float_record(view, state, binding.var, target) if is_op else None
                records.extend([] if record is None else [record])
                continue
            if binding.var in composed.fused:
                record = _composite_record(composite, state, binding.var, None)
                records.append(replace(record, kernel=TABLE, isa=isa))
                continue
            root = composed.inputs.get(binding.var)
            kernel = context.write(
                _backend_of(composite, emitters),
                composite,
                operand_vars(binding.value) if root is None else [root],
                binding.var,
            )
            if isinstance(composite.op, ObserveOp) or binding.var.name in state.cuts:  # no op of the graph
                continue
            records.append(_composite_record(composite, state, binding.var, kernel))
        results = _results(context, writer, view.result)
        written.update(context.storage.first())
        stated.update(context.stated)
        if not context.kept:
            return results
        fields = list(results.fields) if isinstance(results, relax.Tuple) else [results]
        return relax.Tuple([*fields, *context.kept])

    builder = relax.BlockBuilder()
    attrs = {key: value for key, value in attrs_of(main).items() if key not in (PARTITION_ATTR, MODEL_ATTR)}
    write_function(builder, "main", list(main.params), body, attrs)
    lowered = builder.get()
    # Other entry points, helpers and what other code generators took stay as they are; composites are in "main" by now.
    for var, function in module.functions_items():
        if var.name_hint != "main" and var.name_hint not in composed.composites:
            lowered.update_func(var, function)
    if module.attrs:
        lowered = lowered.with_attrs(dict(module.attrs.items()))
    announce(
        "octavo.lower",
        lambda: lowered,
        {symbol: placed.func for symbol, placed in table.placed.items()},
        _announced(_calls(view, composed.composites), state, written, stated),
    )
    if precision is not None:
        records = _with_precision(records, precision, state, _calls(view, composed.composites))
    return Lowered(module=lowered, kernels=table.placed, records=tuple(records), externals=table.externals)


def _calls(view: DataflowView, composites: Mapping[str, Composite]) -> dict[str, Composite]:
    """Return the composites by the names of the variables that their calls bind."""
    found = ((binding.var.name, _composite(composites, binding.value)) for binding in view.bindings)
    return {name: composite for name, composite in found if composite is not None}


def _announced(
    calls: Mapping[str, Composite],
    state: PartitionState,
    written: Mapping[Var, tuple[StorageLayout, Expr]],
    stated: Collection[tuple[str, Var]],
) -> Announced:
    """Say which variable each source tensor became: kernels hold integers, which can be compared with no float.

    A tensor of which only some pixels are computed is held by nobody: a call fuses it. So is one whose integers are held by a
    variable that no kernel has `stated` to hold it.
    """
    holders: dict[str, str] = {}
    permutations: dict[str, tuple[int, ...]] = {}
    # A tensor's integers and its floats both bear its id: those that a composite gives first are what became of it.
    for var, (layout, value) in sorted(written.items(), key=lambda item: item[0].name not in calls):
        tensor = state.tensors.get(var.name, var.name)
        is_known = isinstance(value, Var) and ((tensor, value) in stated or _is_itself(var, tensor, layout))
        if isinstance(value, Var) and is_known and tensor not in holders and var.name not in state.pixels_of:
            holders[tensor] = value.name
            if layout.is_nhwc:
                permutations[tensor] = TO_NHWC
    names = {var.name: value.name for var, (_, value) in written.items() if isinstance(value, Var)}
    fused_into: dict[str, str] = {}
    for output, composite in calls.items():
        constants = [str(entry["id"]) for role, entry in composite.quantize_info.items() if role in ("weight", "bias")]
        made = [*composite.tensor_ids, *([state.pixels_of[output]] if output in state.pixels_of else [])]
        around = names.get(output)
        if around is not None:
            fused_into |= {tensor: around for tensor in (*constants, *made) if tensor not in holders}
    return Announced(holders=holders, fused_into=fused_into, permutations=permutations)


def _is_itself(var: Var, tensor: str, form: StorageLayout) -> bool:
    """Return whether what is written for a variable is a tensor's own values: floats, or the integers that the source has."""
    return dtype_of(var) not in INTEGER_RANGE or (var.name == tensor and not form.is_relabelled)


def _with_precision(
    records: list[OpRecord], precision: Precision, state: PartitionState, calls: Mapping[str, Composite]
) -> list[OpRecord]:
    """Say of each op of a downcast model in what its result is kept, and why in float32."""
    halves = {state.pixels_of[name] for name in state.halves}
    weights = {
        state.pixels_of.get(output, output): weight_obstacle(composite.op, precision.dtype) for output, composite in calls.items()
    }
    return [
        replace(
            record,
            dtype=precision.dtype if record.tensor in halves else "",
            reason=precision.kept.get(record.tensor) or weights.get(record.tensor, ""),
        )
        for record in records
    ]


TABLE = "lookup"
"""Kernel of an op that a table of several ops stands for."""


def _composite(composites: Mapping[str, Composite], value: Expr) -> Composite | None:
    """Return the composite that `value` calls, None where it calls none."""
    if not isinstance(value, Call) or not isinstance(value.op, tvm.ir.GlobalVar):
        return None
    return composites.get(value.op.name_hint)


def _backend_of(composite: Composite, backends: Mapping[str, Backend]) -> Backend:
    """Return the back end that emits a composite; CompileError where it was not given."""
    found = backends.get(composite.backend)
    if found is None:
        raise CompileError(
            f"{where_of(composite)} is for the back end {composite.backend!r}, which was not given: pass it as target="
        )
    return found


def _emit_float(context: KernelContext, writer: BodyWriter, view: DataflowView, binding: relax.VarBinding) -> None:
    var, value = binding.var, binding.value
    if not emit_nhwc(context.storage, writer, view, var, value):
        context.storage.put_source(var, writer.emit(var.name, replace_operands(value, context.storage.source)))


def _results(context: KernelContext, writer: BodyWriter, result: Expr) -> Expr:
    """Bring each returned value into the source's form, as an output of the dataflow block."""

    def output(expr: Expr) -> Expr:
        if isinstance(expr, relax.Tuple):
            return relax.Tuple([output(field) for field in expr.fields])
        if isinstance(expr, tvm.ir.GenericConst):  # an output that depends on no input
            return writer.emit("constant_result", expr, is_output=True)
        assert isinstance(expr, Var)
        return writer.emit(f"{expr.name}_result", context.storage.source(expr), is_output=True)

    return output(result)


_UNCOUNTED = ("tuple", "constant", "quantize", "dequantize", "astype", *movers("view", "transpose"))


_VIEWS = movers("view")


def _is_of_indices(value: Expr, var: Var) -> bool:
    """Return whether an op computes indices from indices: it is integer as it stands, and has nothing quantized about it."""
    if not isinstance(value, Call) or float_macs(value):
        return False
    read = {str(arg.ty.dtype) for arg in value.args if isinstance(getattr(arg, "ty", None), relax.TensorType)}
    return bool(read) and read <= {"int32", "int64"} and dtype_of(var) in ("int32", "int64", "bool")


def _float_record(view: DataflowView, state: PartitionState, var: Var, target: TargetDescription) -> OpRecord | None:
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
    )


def _composite_record(composite: Composite, state: PartitionState, var: Var, kernel: Kernel | None) -> OpRecord:
    op = composite.op
    # Only the quantize_info knows of integers that hoist_quantize.py and sink_dequantize.py made.
    described = composite.quantize_info.get("output")
    return OpRecord(
        op=op.op if isinstance(op, FloatOp) else composite.op_name,
        tensor=state.tensor_of(var.name if described is None else str(described["id"])),
        integer=not isinstance(op, FloatOp),
        kernel="" if kernel is None else kernel.name,
        isa="" if kernel is None else kernel.isa,
        reason=state.rejections.get(composite.core, "") if isinstance(op, FloatOp) else "",
        macs=op.macs,
        shape=static_shape(var) or (),
    )
