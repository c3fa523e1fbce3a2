"""The lowering of one module: composites first, then a kernel call for each, with a record of what became of every op."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

import tvm
from tvm import relax
from tvm.ir import Call
from tvm.relax import Expr, Var

from ...composites.base import CompositeOp, FloatOp
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
from ...graph.probes import read_probe
from ...graph.rules import Partition, Region, Rejection
from ...graph.split import split_to_slices
from ...graph.tracking import Announced
from ...numerics import INTEGER_RANGE
from ...partition.carry_stride import Carried, carry_strides
from ...partition.macs import float_macs
from ...partition.partition import partition_quantized
from ...partition.precision import Downcast, downcast
from ...qdq.matchers.half_float import weight_obstacle
from ...qdq.tensor_ids import held_tensors
from ...target import TargetDescription
from ...target.precision import Precision
from .compose import compose_tables
from .context import KernelContext, KernelTable, PlacedKernel
from .emit import emitter_of
from .emit.half_float import emit_cast
from .emit.half_pool2d import emit_concat
from .float_layout import emit_nhwc
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
    """A module whose kernels are calls to external symbols, the kernels by symbol, and the records in graph order."""

    module: tvm.IRModule
    kernels: dict[str, PlacedKernel]
    records: tuple[OpRecord, ...]


def partition_module(module: tvm.IRModule, target: TargetDescription, ids: Collection[str] = ()) -> Partition:
    """Outline the integer regions of a module whose constants are bound; the result is what a vendor takes over.

    `ids` are the source model's TensorIds, by which quantize_info names tensors.
    """
    _check_main(module)
    return partition_quantized(module, target, ids)


def _check_main(module: tvm.IRModule) -> None:
    if "main" not in {var.name_hint for var in module.get_global_vars()}:
        raise CompileError("the module has no function main")


def lower(
    module: tvm.IRModule,
    target: TargetDescription,
    isas: tuple[str, ...],
    threads: int,
    ids: Collection[str] = (),
    precision: Precision | None = None,
    schedules: Schedules = NO_SCHEDULES,
) -> Lowered:
    """Lower a module (constants bound) to kernel calls.

    Parameters
    ----------
    isas
        Instruction sets of the machine, best first; the first that the target description lists is used.
    threads
        Chunks that large kernels are cut into; at least 1.
    ids
        TensorIds of the source model, by which kernels and records name tensors.
    precision
        What a float module is downcast to; None leaves it as it is.
    schedules
        Those that were measured to be best, by the kernels' keys; the other kernels choose their own.

    Raises
    ------
    CompileError
        The machine has no ISA that the target lists; `precision` for a module that is quantized.
    """
    isa = next((name for name in isas if name in target.isas), None)
    if isa is None:
        raise CompileError(f"target {target.name} has kernels for {', '.join(target.isas)}; the machine offers {', '.join(isas)}")
    _check_main(module)
    source = DataflowView(module["main"])
    carried = carry_strides(module)
    cast = _downcast(source, carried, precision)
    sources = {**carried.sources, **{new: carried.sources.get(old, old) for new, old in cast.sources.items()}}
    composed = compose_tables(
        partition_quantized(cast.module, target, ids, with_float=True, sources=sources, precision=precision)
    )
    parts = composed.parts
    if _is_float(source):
        parts = replace(parts, rejections=dict.fromkeys(parts.rejections, Rejection(reason=FLOAT_MODEL)))
    held = held_tensors(source, ids)
    parted = {part: held.get(whole, whole) for part, whole in sources.items()}
    main = parts.module["main"]
    view = DataflowView(main)
    table = KernelTable()
    records: list[OpRecord] = []
    written: dict[Var, tuple[StorageLayout, Expr]] = {}
    stated: set[tuple[str, Var]] = set()

    def body(writer: BodyWriter) -> Expr:
        context = KernelContext(writer, table, isa, threads, schedules)
        for binding in view.bindings:
            composite = _composite(parts, binding.value)
            if composite is None:
                if emit_cast(context, view, binding.var, binding.value, cast.halves):
                    continue
                if not emit_concat(context, binding.var, binding.value, cast.halves):
                    _emit_float(context, writer, view, binding)
                is_op = not isinstance(binding.value, Var) and binding.var.name not in carried.cuts  # no other name of a value
                tensor = parted.get(binding.var.name, binding.var.name)
                record = _float_record(view, parts, binding.var, target, tensor) if is_op else None
                records.extend([] if record is None else [record])
                continue
            name, region = composite
            if binding.var in composed.swallowed:
                tensor = _tensor_of(region, held | parted, binding.var)
                record = _composite_record(name, region, parts, binding.var, tensor, None)
                records.append(replace(record, kernel=TABLE, isa=isa))
                continue
            root = composed.inputs.get(binding.var)
            kernel = context.write(
                emitter_of(region.form), region, operand_vars(binding.value) if root is None else [root], binding.var
            )
            if isinstance(region.form, ObserveOp) or binding.var.name in carried.cuts:  # no op of the graph
                continue
            tensor = _tensor_of(region, held | parted, binding.var)
            records.append(_composite_record(name, region, parts, binding.var, tensor, kernel))
        results = _results(context, writer, view.result)
        written.update(context.storage.first())
        stated.update(context.stated)
        if not context.kept:
            return results
        fields = list(results.fields) if isinstance(results, relax.Tuple) else [results]
        return relax.Tuple([*fields, *context.kept])

    builder = relax.BlockBuilder()
    write_function(builder, "main", list(main.params), body, attrs_of(main))
    lowered = builder.get()
    for var, function in parts.module.functions_items():
        if isinstance(function, tvm.tirx.PrimFunc):
            lowered.update_func(var, function)
    announce(
        "octavo.lower",
        lambda: lowered,
        {symbol: placed.func for symbol, placed in table.placed.items()},
        _announced(parts, held, parted, written, stated),
    )
    told = records if precision is None else _told(records, precision, cast, parted, parts)
    return Lowered(module=lowered, kernels=table.placed, records=tuple(told))


def _announced(
    parts: Partition,
    held: Mapping[str, str],
    parted: Mapping[str, str],
    written: Mapping[Var, tuple[StorageLayout, Expr]],
    stated: Collection[tuple[str, Var]],
) -> Announced:
    """Say which variable each source tensor became: kernels hold integers, which can be compared with no float.

    A tensor of which only some pixels are computed (`parted`, by the variable of these) is held by nobody: a call swallows it.
    So is one whose integers are held by a variable that no kernel has `stated` to hold it.
    """
    holders: dict[str, str] = {}
    permutations: dict[str, tuple[int, ...]] = {}
    outputs = {region.output.name for region in parts.regions.values()}
    # A tensor's integers and its floats both bear its id: those that a composite gives first are what became of it.
    for var, (form, value) in sorted(written.items(), key=lambda item: item[0].name not in outputs):
        tensor = held.get(var.name, var.name)
        is_told = isinstance(value, Var) and ((tensor, value) in stated or _is_itself(var, tensor, form))
        if isinstance(value, Var) and is_told and tensor not in holders and var.name not in parted:
            holders[tensor] = value.name
            if form.is_nhwc:
                permutations[tensor] = TO_NHWC
    names = {var.name: value.name for var, (_, value) in written.items() if isinstance(value, Var)}
    fused_into: dict[str, str] = {}
    for region in parts.regions.values():
        info = region.attrs.get("quantize_info", {})
        constants = [str(entry["id"]) for role, entry in info.items() if role in ("weight", "bias")]
        made = [str(tensor) for tensor in region.attrs.get("tensor_ids", ())]
        made += [parted[region.output.name]] if region.output.name in parted else []
        around = names.get(region.output.name)
        if around is not None:
            fused_into |= {tensor: around for tensor in (*constants, *made) if tensor not in holders}
    return Announced(holders=holders, fused_into=fused_into, permutations=permutations)


def _is_itself(var: Var, tensor: str, form: StorageLayout) -> bool:
    """Return whether what is written for a variable is a tensor's own values: floats, or the integers that the source has."""
    return dtype_of(var) not in INTEGER_RANGE or (var.name == tensor and not form.is_relabelled)


def _downcast(source: DataflowView, carried: Carried, precision: Precision | None) -> Downcast:
    """Downcast a module whose strides were carried up, as far as `precision` asks for it."""
    if precision is None:
        return Downcast(module=carried.module)
    if not _is_float(source):
        raise CompileError(f"precision {precision.dtype!r} is for float models, and this one is quantized; compile it without")
    strided = {part: precision.kept[whole] for part, whole in carried.sources.items() if whole in precision.kept}
    return downcast(split_to_slices(carried.module), precision.dtype, {**precision.kept, **strided})


def _told(
    records: list[OpRecord], precision: Precision, cast: Downcast, parted: Mapping[str, str], parts: Partition
) -> list[OpRecord]:
    """Say of each op of a downcast model in what its result is kept, and why in float32."""
    halves = {parted[name] for name in cast.halves}
    weights = {
        parted.get(region.output.name, region.output.name): weight_obstacle(region.form, precision.dtype)
        for region in parts.regions.values()
    }

    def told(record: OpRecord) -> OpRecord:
        dtype = precision.dtype if record.tensor in halves else ""
        return replace(record, dtype=dtype, reason=precision.kept.get(record.tensor) or weights.get(record.tensor, ""))

    return [told(record) for record in records]


TABLE = "lookup"
"""Kernel of an op that a table of several ops stands for."""


FLOAT_MODEL = "the model is float; this op can be integer once the model is profiled and quantized"
"""Reason of an op that has integer kernels, in a model that nothing quantized."""


def _is_float(view: DataflowView) -> bool:
    """Return whether nothing in a module is quantized."""
    values = [*view.function.params, *(binding.var for binding in view.bindings)]
    if any(dtype_of(value) in ("int8", "uint8", "int16", "uint16") for value in values):
        return False
    return not any(op_name(binding.value) in ("quantize", "dequantize") for binding in view.bindings)


def _composite(parts: Partition, value: Expr) -> tuple[str, Region] | None:
    """Return the composite's name and region if `value` calls one that the partition made."""
    if not isinstance(value, Call) or not isinstance(value.op, tvm.ir.GlobalVar):
        return None
    region = parts.regions.get(value.op.name_hint)
    return None if region is None else (str(parts.module[value.op].attrs["Composite"]), region)


def _tensor_of(region: Region, held: dict[str, str], var: Var) -> str:
    """Return the id of what a composite gives; only its quantize_info knows of integers that hoist.py and sink.py made."""
    described = region.attrs.get("quantize_info", {}).get("output")
    name = var.name if described is None else str(described["id"])
    return held.get(name, name)


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


_UNCOUNTED = ("tuple", "constant", "quantize", "dequantize", "reshape", "permute_dims", "expand_dims", "squeeze", "astype")


_VIEWS = ("reshape", "expand_dims", "squeeze")


def _is_of_places(value: Expr, var: Var) -> bool:
    """Return whether an op computes indices from indices: it is integer as it stands, and has nothing quantized about it."""
    if not isinstance(value, Call) or float_macs(value):
        return False
    read = {str(arg.ty.dtype) for arg in value.args if isinstance(getattr(arg, "ty", None), relax.TensorType)}
    return bool(read) and read <= {"int32", "int64"} and dtype_of(var) in ("int32", "int64", "bool")


def _float_record(view: DataflowView, parts: Partition, var: Var, target: TargetDescription, tensor: str) -> OpRecord | None:
    value = view.definition(var)
    name = op_name(value)
    if read_probe(value) is not None:  # an observer of a user's
        return None
    if _is_of_places(value, var):
        return None
    rejection = parts.rejections.get(var.name)
    if rejection is None and (name in _UNCOUNTED or not isinstance(value, Call)):
        return None
    if name in _VIEWS and isinstance(value, Call) and call_to(view.definition(value.args[0]), "dequantize") is None:
        return None  # floats under another shape: nothing is computed, and nothing could be in integers
    reason = rejection.reason if rejection is not None else f"target {target.name} has no integer kernel for {name}"
    return OpRecord(
        op=name,
        tensor=tensor,
        integer=False,
        kernel="",
        isa="tvm",
        reason=reason,
        macs=float_macs(value),
        shape=static_shape(var) or (),
    )


def _composite_record(composite: str, region: Region, parts: Partition, var: Var, tensor: str, kernel: Kernel | None) -> OpRecord:
    form: CompositeOp = region.form
    is_float = isinstance(form, FloatOp)
    rejection = parts.rejections.get(region.core.name) if is_float else None
    return OpRecord(
        op=form.op if is_float else composite.removeprefix("octavo."),
        tensor=tensor,
        integer=not is_float,
        kernel="" if kernel is None else kernel.name,
        isa="" if kernel is None else kernel.isa,
        reason="" if rejection is None else rejection.reason,
        macs=form.macs,
        shape=static_shape(var) or (),
    )
