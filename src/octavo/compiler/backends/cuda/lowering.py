"""The lowering of one module: a launch for each composite, with a record of what became of every op."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np
import tvm
from tvm import relax
from tvm.ir import Call, GenericConst
from tvm.relax import Expr, Var

from ....errors import CompileError
from ....ir.composites.attributes import Composite, read_composites
from ....ir.graph.dataflow import DataflowView, dtype_of, op_name
from ....ir.graph.partition_state import PartitionState, read_state
from ....target import TargetDescription
from ....target.op_facts import movers
from ..op_records import OpRecord, composite_record, float_record
from ..protocol import where_of
from ..tunable import Schedules, Tunable
from .emission import Emission, ResultType, Value
from .emit import PRODUCTS, emitter_of
from .emit.tail import followed, followers_of
from .float_ops import emit_float_ops, static_shape_of, width_of
from .fusion import Chain, Link, chains_of, transposed_of
from .isa import Isa
from .kernels.move.copy import copy
from .plan import Buffer, LaunchPlan, planned


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class CudaLowered:
    """A module as launches, and the records of its ops in graph order.

    `outputs` are shape and dtype of each result, `tunables` what can be chosen of its kernels, by key, `calls` how many calls of
    each key there are, and `keys` those of the launches, "" where nothing can be chosen.
    """

    plan: LaunchPlan
    outputs: tuple[tuple[tuple[int, ...], str], ...]
    records: tuple[OpRecord, ...]
    tunables: Mapping[str, Tunable]
    calls: Mapping[str, int]
    keys: tuple[str, ...]


def lower_module(
    module: tvm.IRModule, target: TargetDescription, isa: Isa, schedules: Schedules = MappingProxyType({})
) -> CudaLowered:
    """Lower a partitioned module whose constants are bound; products take the tilings in `schedules` that bear their keys.

    Raises
    ------
    CompileError
        A symbolic shape, or an op that no kernel computes.
    TuningError
        A schedule that no kernel can take.
    """
    emission = Emission(isa=isa, schedules=schedules)
    lowering = _Lowering(module, target, emission)
    outputs = lowering.run()
    shapes = tuple((each.shape, each.dtype) for each in outputs)
    plan = lowering.plan(outputs)
    return CudaLowered(
        plan=plan,
        outputs=shapes,
        records=lowering.records,
        tunables=emission.choice.tunables,
        calls=emission.choice.calls,
        keys=tuple(emission.keys.get(number, "") for number in range(len(plan.launches))),
    )


class _Lowering:
    """One "main" on its way: what is read, where each variable lies, and the records that come of it."""

    def __init__(self, module: tvm.IRModule, target: TargetDescription, emission: Emission) -> None:
        self._view = DataflowView(module["main"])
        self._composites: Mapping[str, Composite] = read_composites(module)
        self._state: PartitionState = read_state(module)
        self._target = target
        self._emission = emission
        self._values: dict[Var, Value] = {}
        self._inputs: list[Buffer] = []
        self._chains = chains_of(self._view, self._composite)
        self._transposed = transposed_of(self._view, self._composite)
        self._delayed = {link.binding.var for each in self._transposed.values() for link in each.links}
        self._records: list[tuple[int, OpRecord]] = []
        for number, param in enumerate(self._view.function.params):
            shape, dtype = static_shape_of(param), dtype_of(param)
            buffer = Buffer(int(np.prod(shape, dtype=np.int64)) * width_of(param, dtype), "input", number)
            self._inputs.append(buffer)
            self._values[param] = Value(buffer=buffer, shape=shape, dtype=dtype)

    def run(self) -> list[Value]:
        """Write the launches of every binding; return the results, as the source has them."""
        for group in self._groups():
            composite = self._composite(group[0].value)
            chain = self._chains.get(group[0].var)
            if group[0].var in self._delayed:
                continue
            if chain is not None:
                if group[0].var.same_as(chain[-1].binding.var):
                    self._chain(chain)
            elif composite is not None:
                self._call(group[0], composite)
            elif self._is_other(group[0]):
                self._other(group[0])
            else:
                self._float(group)
        result = self._view.result
        fields = list(result.fields) if isinstance(result, relax.Tuple) else [result]
        return [self._emission.lying(self._value(each), is_nhwc=False) for each in fields]

    @property
    def records(self) -> tuple[OpRecord, ...]:
        """What became of each op, in graph order."""
        return tuple(record for _, record in sorted(self._records, key=lambda item: item[0]))

    def plan(self, outputs: list[Value]) -> LaunchPlan:
        """Return the launches with all memory planned; each result is written where the caller reads it."""
        results: dict[Buffer, Buffer] = {}
        own: list[Buffer] = []
        for number, value in enumerate(outputs):
            buffer = Buffer(value.buffer.size, "output", number)
            own.append(buffer)
            if value.buffer.region == "workspace" and value.buffer not in results:
                results[value.buffer] = buffer
            else:  # an input, a constant, or one result under two names
                self._emission.steps.append((copy(value.buffer.size, self._emission.isa), (value.buffer, buffer)))
        steps = [(kernel, tuple(results.get(each, each) for each in buffers)) for kernel, buffers in self._emission.steps]
        return planned(steps, self._inputs, own)

    def _composite(self, value: Expr) -> Composite | None:
        if not isinstance(value, Call) or not isinstance(value.op, tvm.ir.GlobalVar):
            return None
        return self._composites.get(value.op.name_hint)

    def _value(self, expr: Expr) -> Value:
        """Return where an expression lies: a variable that was written, or a constant."""
        if isinstance(expr, GenericConst):
            return self._emission.given(expr.value.numpy())
        assert isinstance(expr, Var)
        return self._values[expr]

    def _call(self, binding: relax.VarBinding, composite: Composite) -> None:
        """Let a composite's emitter write its launches."""
        before = len(self._emission.steps)
        emit = emitter_of(composite.op, ResultType(static_shape_of(binding.var), dtype_of(binding.var)))
        if emit is None:
            raise CompileError(f"{where_of(composite)}: target {self._target.name} has no kernel for it")
        link = Link(binding, composite)
        self._values[binding.var] = emit(composite.op, self._emission, self._operands(link))
        self._record(link, before)

    def _operands(self, link: Link) -> dict[str, Value]:
        """Return where the tensors lie that an op reads, by the names that it calls them."""
        return {name: self._operand(each) for name, each in link.operands.items()}

    def _operand(self, var: Var) -> Value:
        """Return where a tensor lies, or what it is a transposition of where its one reader takes that."""
        moved = self._transposed.get(var)
        if moved is None:
            return self._values[var]
        source = self._values[moved.source]
        if source.is_nhwc:
            del self._transposed[var]
            for link in moved.links:
                self._call(link.binding, link.composite)
            return self._values[var]
        return replace(source, shape=static_shape_of(var), axes=moved.axes)

    def _record(self, link: Link, before: int) -> None:
        """Note that the last launch behind so many does an op's work."""
        launched = [kernel for kernel, _ in self._emission.steps[before:]]
        var, kernel = link.binding.var, launched[-1] if launched else None
        for operand in link.operands.values():
            for move in self._transposed[operand].links if operand in self._transposed else ():
                self._record(move, before)
        if var.name not in self._state.cuts:
            self._records.append((self._view.place_of(var), composite_record(link.composite, self._state, var, kernel)))

    def _chain(self, chain: Chain) -> None:
        """Let a product's emitter write its launches with as many of the ops that follow as its kernel computes."""
        op, before = chain[0].composite.op, len(self._emission.steps)
        followers, count = followers_of(op), 1
        assert followers is not None, "a chain begins with a product"
        for link in chain[1:]:
            more = followed(followers, link.composite, link.read, self._operands(link), self._emission)
            if more is None:
                break
            followers, count = more, count + 1
        result = PRODUCTS[type(op)](op, self._emission, self._operands(chain[0]), followers)
        self._values[chain[count - 1].binding.var] = result
        for link in chain[:count]:
            self._record(link, before)
        for link in chain[count:]:
            self._call(link.binding, link.composite)

    def _groups(self) -> list[list[relax.VarBinding]]:
        """Return the bindings in their order, float ops that stand together in one group, each other binding in its own.

        Fields of tuples stand with the op that gives the tuple.
        """
        groups: list[list[relax.VarBinding]] = []
        home: dict[Expr, list[relax.VarBinding]] = {}
        for binding in self._view.bindings:
            value = binding.value
            if isinstance(value, relax.TupleGetItem) and value.tuple_value in home:
                home[value.tuple_value].append(binding)
                continue
            is_float = self._composite(binding.value) is None and not self._is_other(binding)
            if is_float and groups and self._composite(groups[-1][0].value) is None and not self._is_other(groups[-1][0]):
                groups[-1].append(binding)
            else:
                groups.append([binding])
            home[binding.var] = groups[-1]
        return groups

    def _float(self, group: list[relax.VarBinding]) -> None:
        """Let TVM compile float ops that stand together."""
        members = {binding.var for binding in group}
        results = [each for each in members if self._is_read_behind(each, members)]
        order = [binding.var for binding in group if binding.var in results]
        before = len(self._emission.steps)
        self._values |= emit_float_ops(group, order, self._values, self._emission)
        kernels = ", ".join(dict.fromkeys(kernel.name for kernel, _ in self._emission.steps[before:]))
        for binding in group:
            record = float_record(self._view, self._state, binding.var, self._target)
            if record is not None and binding.var.name not in self._state.cuts:
                self._records.append((self._view.place_of(binding.var), replace(record, kernel=kernels)))

    def _is_read_behind(self, var: Var, members: set[Var]) -> bool:
        return self._view.is_returned(var) or any(user not in members for user in self._view.users(var))

    @staticmethod
    def _is_other(binding: relax.VarBinding) -> bool:
        """Return whether a binding computes nothing: another name, or another shape of the same memory."""
        return isinstance(binding.value, (Var, GenericConst)) or op_name(binding.value) in _VIEWS

    def _other(self, binding: relax.VarBinding) -> None:
        """Take a binding that computes nothing."""
        var, value = binding.var, binding.value
        if isinstance(value, (Var, GenericConst)):
            self._values[var] = self._value(value)
            return
        assert isinstance(value, Call)
        x = self._emission.lying(self._value(value.args[0]), is_nhwc=False)
        self._values[var] = replace(x, shape=static_shape_of(var))


_VIEWS = movers("view")
