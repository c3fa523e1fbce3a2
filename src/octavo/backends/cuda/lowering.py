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

from ...composites.attributes import Composite, read_composites
from ...errors import CompileError
from ...graph.dataflow import DataflowView, dtype_of, op_name, operand_vars
from ...graph.partition_state import PartitionState, read_state
from ...ops import movers
from ...target import TargetDescription
from ..op_records import OpRecord, composite_record, float_record
from ..protocol import where_of
from ..tunable import Schedules, Tunable
from .emission import Emission, Value
from .emit import emitter_of
from .float_ops import emit_float_ops, static_shape_of
from .isa import Isa
from .kernel import BYTES
from .kernels.copy import copy
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
        records=tuple(lowering.records),
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
        self.records: list[OpRecord] = []
        for number, param in enumerate(self._view.function.params):
            shape, dtype = static_shape_of(param), dtype_of(param)
            buffer = Buffer(int(np.prod(shape, dtype=np.int64)) * _width(param, dtype), "input", number)
            self._inputs.append(buffer)
            self._values[param] = Value(buffer=buffer, shape=shape, dtype=dtype)

    def run(self) -> list[Value]:
        """Write the launches of every binding; return the results, as the source has them."""
        for group in self._groups():
            composite = self._composite(group[0].value)
            if composite is not None:
                self._call(group[0], composite)
            elif self._is_other(group[0]):
                self._other(group[0])
            else:
                self._float(group)
        result = self._view.result
        fields = list(result.fields) if isinstance(result, relax.Tuple) else [result]
        return [self._emission.lying(self._value(each), is_nhwc=False) for each in fields]

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
        var, before = binding.var, len(self._emission.steps)
        emit = emitter_of(composite.op)
        if emit is None:
            raise CompileError(f"{where_of(composite)}: target {self._target.name} has no kernel for it")
        read = operand_vars(binding.value)
        inputs = {name: self._values[each] for name, each in zip(composite.inputs, read, strict=True)}
        self._values[var] = emit(composite.op, self._emission, inputs)
        launched = [kernel for kernel, _ in self._emission.steps[before:]]
        if var.name not in self._state.cuts:
            kernel = launched[-1] if launched else None
            self.records.append(composite_record(composite, self._state, var, kernel))

    def _groups(self) -> list[list[relax.VarBinding]]:
        """Return the bindings in their order, float ops that stand together in one group, each other binding in its own."""
        groups: list[list[relax.VarBinding]] = []
        for binding in self._view.bindings:
            is_float = self._composite(binding.value) is None and not self._is_other(binding)
            if is_float and groups and self._composite(groups[-1][0].value) is None and not self._is_other(groups[-1][0]):
                groups[-1].append(binding)
            else:
                groups.append([binding])
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
                self.records.append(replace(record, kernel=kernels))

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


def _width(var: Var, dtype: str) -> int:
    if dtype not in BYTES:
        raise CompileError(f"{var.name}: kernels for CUDA hold no {dtype}: expected one of {', '.join(BYTES)}")
    return BYTES[dtype]
