"""The lowering of one module: composites first, then a kernel call for each, with a record of what became of every op."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import InitVar, dataclass, field, replace

import tvm
from tvm import relax
from tvm.ir import Call
from tvm.relax import Expr, Var

from ....errors import CompileError
from ....ir.composites.attributes import HOST, Composite, read_composites
from ....ir.composites.float_ops import FloatConcatOp, ObserveOp
from ....ir.graph.dataflow import BodyWriter, DataflowView, attrs_of, dtype_of, operand_vars, replace_operands, write_function
from ....ir.graph.growing_states import GrowingState, growing_states
from ....ir.graph.lineage import announce
from ....ir.graph.model import MODEL_ATTR
from ....ir.graph.partition_state import PARTITION_ATTR, PartitionState, read_state
from ....ir.graph.sizes import sizes_of
from ....ir.graph.tracking import Announced
from ....ir.qdq.matchers.half_float import weight_obstacle
from ....numerics import INTEGER_RANGE
from ....numerics.floats.half import HalfDtype
from ....runtime.size import Size
from ....target import TargetDescription
from ....target.precision import Precision
from ..external import External
from ..op_records import OpRecord, composite_record, float_record
from ..protocol import Backend, where_of
from .backend import CpuBackend
from .compose import Composed, compose_tables
from .compose_attention import compose_attention
from .context import KernelContext, KernelTable, PlacedKernel
from .emit.half_float import emit_cast, emit_concat
from .float_layout import emit_nhwc
from .kernels import NO_SCHEDULES, Kernel, Schedules
from .storage import TO_NHWC, StorageLayout


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Lowered:
    """A module whose kernels are calls to external symbols, the kernels by symbol, and the records in graph order.

    `externals` are the functions that kernels call in the code of other back ends, by their keys; `announced` says which variable
    each tensor of the source became. `stored` says of each result that was asked for as kernels keep it whether it is in NHWC,
    where the source has NCHW. `states` are the results that are written with room for more rows,
    `extents` the sizes that must be at least 1, `counts` the elements of tensors, but for those that others surely surpass.
    """

    module: tvm.IRModule
    kernels: dict[str, PlacedKernel]
    records: tuple[OpRecord, ...]
    announced: Announced
    externals: dict[str, External] = field(default_factory=dict[str, External])
    stored: tuple[bool, ...] = ()
    states: tuple[GrowingState, ...] = ()
    extents: tuple[Size, ...] = ()
    counts: tuple[Size, ...] = ()

    @property
    def limits(self) -> tuple[tuple[Size, int], ...]:
        """Open sizes up to which kernels are exact, each with the most that it may be."""
        return tuple(dict.fromkeys(limit for kernel in self.kernels.values() for limit in kernel.limits))


def lower_composites(
    module: tvm.IRModule,
    target: TargetDescription,
    isas: tuple[str, ...],
    threads: int,
    precision: Precision | None = None,
    schedules: Schedules = NO_SCHEDULES,
    backends: Sequence[Backend] = (),
    stored_from: int | None = None,
) -> Lowered:
    """Lower each composite to kernel calls; elementwise ones in a chain become one table first (see compose.py).

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
    stored_from
        The results from this one on, of a tuple, are returned as kernels keep them (see `Lowered.stored`): to bring many tensors
        into the source's layout takes code for each shape. By default none.

    Raises
    ------
    CompileError
        The machine has no ISA that the target lists; a composite cannot be read, or is of none of the back ends.
    """
    isa = isa_for(target, isas)
    composites, view, state = read_composites(module), DataflowView(module["main"]), read_state(module)
    composed = compose_tables(view, composites).joined(compose_attention(view, composites, state, isa))
    lowering = _Lowering(
        view=view,
        composites=composites,
        composed=composed,
        state=state,
        target=target,
        isa=isa,
        backends=backends,
        half=None if precision is None else precision.dtype,
        stored_from=stored_from,
        table=KernelTable(),
    )
    states = growing_states(module["main"])
    with sizes_of(module["main"], {name for state in states for name in (state.capacity, state.in_place)}):
        main, context = lowering.main(threads, schedules)
    lowered = _with_others(main, module, composites)
    calls = lowering.calls()
    announced = _announced(calls, lowering.state, context.storage.first(), context.recorded)
    kernels = {symbol: placed.func for symbol, placed in lowering.table.placed.items()}
    announce("octavo.lower", lambda: lowered, kernels, announced)
    records = lowering.records
    if precision is not None:
        records = _with_precision(records, precision, lowering.state, calls)
    table = lowering.table
    return Lowered(
        module=lowered,
        kernels=table.placed,
        records=tuple(records),
        announced=announced,
        externals=table.externals,
        stored=tuple(lowering.stored),
        states=tuple(context.growing.values()),
    )


def isa_for(target: TargetDescription, isas: tuple[str, ...]) -> str:
    """Return the first instruction set of a machine, best first, that a target lists; CompileError where there is none."""
    isa = next((name for name in isas if not target.isas or name in target.isas), None)
    if isa is None:
        raise CompileError(f"target {target.name} has kernels for {', '.join(target.isas)}; the machine offers {', '.join(isas)}")
    return isa


def _with_others(lowered: tvm.IRModule, module: tvm.IRModule, composites: Collection[str]) -> tvm.IRModule:
    """Return the module of a lowered "main" with what else the source has: entry points, helpers, other generators' code."""
    for var, function in module.functions_items():
        if var.name_hint not in (*composites, "main"):
            lowered.update_func(var, function)
    return lowered.with_attrs(dict(module.attrs.items())) if module.attrs else lowered


@dataclass(kw_only=True, slots=True, eq=False)
class _Lowering:
    """One "main" on its way: what is read, and the kernels and records that come of it."""

    view: DataflowView
    composites: Mapping[str, Composite]
    composed: Composed
    state: PartitionState
    target: TargetDescription
    isa: str
    backends: InitVar[Sequence[Backend]]
    half: HalfDtype | None
    stored_from: int | None = None
    stored: list[bool] = field(default_factory=list[bool])
    table: KernelTable = field(default_factory=KernelTable)
    records: list[OpRecord] = field(default_factory=list[OpRecord])
    _emitters: dict[str, Backend] = field(init=False)

    def __post_init__(self, backends: Sequence[Backend]) -> None:
        self._emitters = {HOST: CpuBackend(), **{each.description.name: each for each in backends}}

    def main(self, threads: int, schedules: Schedules) -> tuple[tvm.IRModule, KernelContext]:
        """Return a module of "main" with kernel calls in place of composites, and the context that wrote them."""
        contexts: list[KernelContext] = []

        def body(writer: BodyWriter) -> Expr:
            context = KernelContext(writer, self.table, self.isa, threads, schedules, self.half)
            contexts.append(context)
            context.growing = self._growing()
            for binding in self.view.bindings:
                record = self._binding(context, binding)
                self.records.extend([] if record is None else [record])
            results = self._returned(context)
            if not context.kept:
                return results
            fields = list(results.fields) if isinstance(results, relax.Tuple) else [results]
            return relax.Tuple([*fields, *context.kept])

        builder = relax.BlockBuilder()
        function = self.view.function
        attrs = {key: value for key, value in attrs_of(function).items() if key not in (PARTITION_ATTR, MODEL_ATTR)}
        write_function(builder, "main", list(function.params), body, attrs)
        return builder.get(), contexts[0]

    def _growing(self) -> dict[Var, GrowingState]:
        """Return the results that extend an input, and how, which a kernel of Octavo's concatenates."""
        states, result = growing_states(self.view.function), self.view.result
        results = list(result.fields) if isinstance(result, relax.Tuple) else [result]
        found = [(results[state.output], state) for state in states]
        return {var: state for var, state in found if isinstance(var, Var) and self._concatenates(var, state)}

    def _concatenates(self, var: Var, state: GrowingState) -> bool:
        value = self.view.definition(var)
        composite = _composite(self.composites, value)
        past = self.view.function.params[state.input]
        is_plain = composite is not None and isinstance(composite.op, FloatConcatOp) and composite.op.line is None
        return is_plain and operand_vars(value)[0].same_as(past) and len(self.view.users(past)) == 1

    def _returned(self, context: KernelContext) -> Expr:
        """Return what "main" returns, as outputs of the dataflow block."""
        result = self.view.result
        if self.stored_from is None or not isinstance(result, relax.Tuple):
            return _results(context, result)
        own = [_results(context, each) for each in result.fields[: self.stored_from]]
        kept = [_kept(context, each) for each in result.fields[self.stored_from :]]
        self.stored = [is_nhwc for is_nhwc, _ in kept]
        return relax.Tuple([*own, *(value for _, value in kept)])

    def calls(self) -> dict[str, Composite]:
        """Return the composites by the names of the variables that their calls bind."""
        found = ((binding.var, _composite(self.composites, binding.value)) for binding in self.view.bindings)
        own = {var.name: composite for var, composite in found if composite is not None}
        return own | {var.name: composite for var, (composite, _) in self.composed.calls.items()}

    def _binding(self, context: KernelContext, binding: relax.VarBinding) -> OpRecord | None:
        """Write a binding; return its record, None of what is no op of the source."""
        var = binding.var
        own = _composite(self.composites, binding.value)
        if var in self.composed.fused:
            record = None if own is None else composite_record(own, self.state, var, None)
            return None if record is None else replace(record, kernel=self.composed.fused[var], isa=self.isa)
        if var in self.composed.calls:
            composite, operands = self.composed.calls[var]
        elif own is not None:
            composite, operands = own, operand_vars(binding.value)
        else:
            return self._float(context, binding)
        kernel = self._emit(context, var, composite, list(operands))
        if own is None or isinstance(own.op, ObserveOp) or var.name in self.state.cuts:
            return None
        return composite_record(own, self.state, var, kernel)

    def _float(self, context: KernelContext, binding: relax.VarBinding) -> OpRecord | None:
        """Write what no composite computes; return its record, None of what is no op of the source."""
        var, value, halves = binding.var, binding.value, self.state.half_names
        if emit_cast(context, self.view, var, value, halves):
            return None
        if not emit_concat(context, var, value, halves) and not emit_nhwc(context.storage, context.writer, self.view, var, value):
            context.storage.put_source(var, context.writer.emit(var.name, replace_operands(value, context.storage.source)))
        is_op = not isinstance(value, Var) and var.name not in self.state.cuts  # no other name of a value
        return float_record(self.view, self.state, var, self.target) if is_op else None

    def _emit(self, context: KernelContext, var: Var, composite: Composite, operands: list[Var]) -> Kernel | None:
        """Let a composite's back end write its calls; return the kernel that does its work."""
        backend = self._emitters.get(composite.backend)
        if backend is None:
            raise CompileError(
                f"{where_of(composite)} is for the back end {composite.backend!r}, which was not given: pass it as target="
            )
        return context.write(backend, composite, operands, var)


def _announced(
    calls: Mapping[str, Composite],
    state: PartitionState,
    values: Mapping[Var, tuple[StorageLayout, Expr]],
    recorded: Collection[tuple[str, Var]],
) -> Announced:
    """Say which variable each source tensor became: kernels hold integers, which can be compared with no float.

    A tensor of which only some pixels are computed is held by nobody: a call fuses it. So is one whose integers are held by a
    variable that no kernel has `recorded` to hold it.
    """
    holders: dict[str, str] = {}
    permutations: dict[str, tuple[int, ...]] = {}
    # A tensor's integers and its floats both bear its id: those that a composite gives first are what became of it.
    for var, (layout, value) in sorted(values.items(), key=lambda item: item[0].name not in calls):
        tensor = state.tensors.get(var.name, var.name)
        is_known = isinstance(value, Var) and ((tensor, value) in recorded or _is_itself(var, tensor, layout))
        if isinstance(value, Var) and is_known and tensor not in holders and var.name not in state.pixels_of:
            holders[tensor] = value.name
            if layout.is_nhwc:
                permutations[tensor] = TO_NHWC
    names = {var.name: value.name for var, (_, value) in values.items() if isinstance(value, Var)}
    fused_into: dict[str, str] = {}
    for output, composite in calls.items():
        constants = [str(entry["id"]) for role, entry in composite.quantize_info.items() if role in ("weight", "bias")]
        made = [*composite.tensor_ids, *([state.pixels_of[output]] if output in state.pixels_of else [])]
        around = names.get(output)
        if around is not None:
            fused_into |= {tensor: around for tensor in (*constants, *made) if tensor not in holders}
    return Announced(holders=holders, fused_into=fused_into, permutations=permutations)


def _is_itself(var: Var, tensor: str, layout: StorageLayout) -> bool:
    """Return whether what is written for a variable is a tensor's own values: floats, or the integers that the source has."""
    return dtype_of(var) not in INTEGER_RANGE or (var.name == tensor and not layout.is_relabelled)


def _with_precision(
    records: list[OpRecord], precision: Precision, state: PartitionState, calls: Mapping[str, Composite]
) -> list[OpRecord]:
    """Say of each op of a downcast model in what its result is kept, and why in float32."""
    halves = {state.pixels_of[name] for name in state.half_names}
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


def _composite(composites: Mapping[str, Composite], value: Expr) -> Composite | None:
    """Return the composite that `value` calls, None where it calls none."""
    if not isinstance(value, Call) or not isinstance(value.op, tvm.ir.GlobalVar):
        return None
    return composites.get(value.op.name_hint)


def _kept(context: KernelContext, result: Expr) -> tuple[bool, Expr]:
    """Return a value as it was written, but for relabelled integers, and whether that is NHWC."""
    is_nhwc = isinstance(result, Var) and context.storage.is_first_nhwc(result)
    if not isinstance(result, Var) or not is_nhwc:
        return False, _results(context, result)
    value = context.storage.get(result, is_nhwc=True, is_relabelled=False)
    return True, context.writer.emit(f"{result.name}_result", value, is_output=True)


def _results(context: KernelContext, result: Expr) -> Expr:
    """Bring each returned value into the source's layout, as an output of the dataflow block."""
    writer = context.writer

    def output(expr: Expr) -> Expr:
        if isinstance(expr, relax.Tuple):
            return relax.Tuple([output(field) for field in expr.fields])
        if isinstance(expr, tvm.ir.GenericConst):  # an output that depends on no input
            return writer.emit("constant_result", expr, is_output=True)
        assert isinstance(expr, Var)
        found = context.storage.with_room(expr)
        return writer.emit(f"{expr.name}_result", context.storage.source(expr) if found is None else found[0], is_output=True)

    return output(result)
