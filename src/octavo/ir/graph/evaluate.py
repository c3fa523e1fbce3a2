"""Computing numbered values: what a value is for given inputs, whichever module it came from.

Values are kept, so what several modules share is computed once. Builds with TVM's plain lowering; never timed, never saved.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy.typing as npt
import tvm
from tvm.ir import Call
from tvm.relax import BlockBuilder, Expr, Var

from ...runtime.tensors import array_of, tensor_from
from ..untyped import relax
from .bool_comparisons import compared_as_integers
from .dataflow import BodyWriter, attrs_of, call_to, write_function
from .integer_division import guarded_divisions
from .kernel_attributes import EXTERNAL_ATTR
from .value_numbers import Node, ValueNumbers

Array = npt.NDArray[Any]

FAILURES = (RuntimeError, ValueError, TypeError, AttributeError, KeyError, tvm.error.InternalError)
"""What TVM raises where it cannot build or run something."""


@dataclass(slots=True, eq=False)
class Evaluator:
    """Values by number.

    Parameters
    ----------
    numbers
        The numbers whose values are asked for.
    inputs
        The value of each input, by its key.
    target
        What to build for.
    externals
        Modules of object code that is called by symbol, as in a module's attribute "external_mods".
    """

    numbers: ValueNumbers
    inputs: dict[Any, Array]
    target: tvm.target.Target
    externals: tuple[Any, ...] = ()
    values: dict[int, Array] = field(default_factory=dict[int, Array])
    failed: dict[int, str] = field(default_factory=dict[int, str])

    def get(self, wanted: Iterable[int]) -> dict[int, Array]:
        """Return the values of those numbers that are tensors and can be computed."""
        asked = list(dict.fromkeys(wanted))
        order = self._missing(asked)
        if order:
            try:
                self._run(order)
            except FAILURES as error:
                self._bisect(order, error)
        return {number: self.values[number] for number in asked if number in self.values}

    def _bisect(self, order: list[int], error: Exception) -> None:
        """Compute one by one what could not be built together, and note what fails."""
        if len(order) == 1:
            self.failed[order[0]] = (str(error).strip().splitlines() or [type(error).__name__])[-1]
            return
        half = len(order) // 2
        for part in (order[:half], order[half:]):
            ready = [number for number in part if not self._blocked(number)]
            if not ready:
                continue
            try:
                self._run(ready)
            except FAILURES as inner:
                self._bisect(ready, inner)

    def _blocked(self, number: int) -> bool:
        if any(operand in self.failed for operand in self._leaves(number)):
            self.failed[number] = "it reads what cannot be computed"
            return True
        return False

    def _leaves(self, number: int) -> list[int]:
        """Return the numbers that computing this one reads directly, through tuples."""
        found: list[int] = []
        for operand in self.numbers.nodes[number].operands:
            node = self.numbers.nodes[operand]
            found.extend(self._leaves(operand) if node.kind == "tuple" else [operand])
        return found

    def _missing(self, wanted: list[int]) -> list[int]:
        """Return what has to be computed for `wanted`, operands first; fill in constants and inputs."""
        order: list[int] = []
        seen: set[int] = set()
        stack = [(number, False) for number in reversed(wanted)]
        while stack:
            number, is_done = stack.pop()
            if is_done:
                order.append(number)
                continue
            if number in seen or number in self.values or number in self.failed:
                continue
            seen.add(number)
            node = self.numbers.nodes[number]
            if node.kind == "constant":
                self.values[number] = array_of(node.payload)
            elif node.kind == "input":
                if node.payload in self.inputs:
                    self.values[number] = self.inputs[node.payload]
                else:
                    self.failed[number] = "an input of which nothing is known"
            elif node.kind == "opaque":
                self.failed[number] = "nothing says how it is computed"
            else:
                stack.append((number, True))
                stack.extend((operand, False) for operand in node.operands)
        return [number for number in order if not self._blocked(number)]

    def _run(self, order: list[int]) -> None:
        writer = _Writing(self.numbers, set(order), self.values)
        module, results = writer.module(order)
        if self.externals and _calls_externals(module):
            module = module.with_attr("external_mods", list(self.externals))
        given = run_once(module, [self.values[number] for number in writer.read], self.target)
        self.values.update(zip(results, given, strict=True))


def external_modules(module: tvm.IRModule) -> tuple[Any, ...]:
    """Return the modules of object code that a module's functions call by symbol."""
    return tuple(module.attrs["external_mods"]) if module.attrs and "external_mods" in module.attrs else ()


def _calls_externals(module: tvm.IRModule) -> bool:
    """Return whether a function calls object code; to link it takes its time."""
    if any(EXTERNAL_ATTR in attrs_of(function) for function in module.functions.values()):
        return True
    bindings = (binding for block in module["main"].body.blocks for binding in block.bindings)
    return any(call_to(binding.value, "call_dps_packed") is not None for binding in bindings)


def run_once(module: tvm.IRModule, arrays: Iterable[Array], target: tvm.target.Target) -> list[Array]:
    """Build a module whose "main" returns a tuple of tensors, and run it on these arrays; raises one of FAILURES if TVM can't."""
    machine = build_unoptimized(module, target)
    return [array_of(value) for value in machine["main"](*map(tensor_from, arrays))]


def build_unoptimized(module: tvm.IRModule, target: tvm.target.Target) -> Any:
    """Return a virtual machine of a module, by TVM's plain lowering and without a pass that changes what is computed."""
    target = unoptimized(target)
    with unchecked(), target:
        executable = relax.build(_lowered(module), target=target, relax_pipeline=None)
    return relax.VirtualMachine(executable, tvm.cpu())


def unchecked() -> tvm.transform.PassContext:
    """Return a context in which TVM's functions don't check their arguments, for callers that give them the right ones.

    The checks are most of the code of a small function.
    """
    return tvm.transform.PassContext(opt_level=3, config={"tirx.disable_assert": True})


def unoptimized(target: tvm.target.Target) -> tvm.target.Target:
    """Return a target whose code is made fastest: it runs once, so optimizing costs more than it saves."""
    return at_level(target, 0)


def at_level(target: tvm.target.Target, level: int) -> tvm.target.Target:
    """Return a target for which LLVM optimizes as at -O0 to -O3; another target than LLVM's stays as it is."""
    config = {key: value for key, value in dict(target.export()).items() if key != "tag"}
    return tvm.target.Target({**config, "opt-level": level}) if config.get("kind") == "llvm" else target


def _lowered(module: tvm.IRModule) -> tvm.IRModule:
    transform = relax.transform
    passes = [
        transform.LegalizeOps(),
        guarded_divisions(),
        compared_as_integers(),
        transform.ToNonDataflow(),
        transform.RemovePurityChecking(),
        transform.CallTIRRewrite(),
        transform.LowerAllocTensor(),
        transform.KillAfterLastUse(),
        transform.LowerRuntimeBuiltin(),
        transform.ComputePrimValue(),
        transform.VMShapeLower(),
        transform.AttachGlobalSymbol(),
    ]
    return tvm.transform.Sequential(passes)(module)


class _Writing:
    """Writes one function that computes a list of numbers; what it reads from outside becomes its parameters."""

    def __init__(self, numbers: ValueNumbers, computed: set[int], values: Mapping[int, Array]) -> None:
        self._numbers = numbers
        self._computed = computed
        self._values = values
        self._emitted: dict[int, Expr] = {}
        self._kernels: dict[Any, tvm.ir.GlobalVar] = {}
        self.read: list[int] = []

    def module(self, order: list[int]) -> tuple[tvm.IRModule, list[int]]:
        """Return the module and the numbers of what "main" returns, in order."""
        outside = dict.fromkeys(operand for number in order for operand in self._leaves(number) if operand not in self._computed)
        self.read = list(outside)
        params: list[Var] = []
        for number in self.read:
            array = self._values[number]
            param = relax.Var(f"v{number}", relax.TensorType(array.shape, str(array.dtype)))
            self._emitted[number] = param
            params.append(param)
        results = [number for number in order if isinstance(self._numbers.nodes[number].ty, relax.TensorType)]
        builder = BlockBuilder()

        def body(writer: BodyWriter) -> Expr:
            for number in order:
                is_output = number in results
                self._emitted[number] = writer.emit(f"v{number}", self._expression(builder, number), is_output=is_output)
            return relax.Tuple([self._emitted[number] for number in results])

        write_function(builder, "main", params, body)
        return builder.get(), results

    def _leaves(self, number: int) -> list[int]:
        found: list[int] = []
        for operand in self._numbers.nodes[number].operands:
            node = self._numbers.nodes[operand]
            found.extend(self._leaves(operand) if node.kind == "tuple" and operand not in self._computed else [operand])
        return found

    def _operand(self, number: int) -> Expr:
        node = self._numbers.nodes[number]
        if node.kind == "tuple":
            return relax.Tuple([self._operand(operand) for operand in node.operands])
        return self._emitted[number]

    def _expression(self, builder: BlockBuilder, number: int) -> Expr:
        node = self._numbers.nodes[number]
        operands = [self._operand(operand) for operand in node.operands]
        if node.kind == "tuple":
            return relax.Tuple(operands)
        if node.kind == "item":
            return relax.TupleGetItem(operands[0], node.payload)
        if node.kind == "kernel":
            return self._kernel_call(builder, node, operands)
        return node.payload(operands)

    def _kernel_call(self, builder: BlockBuilder, node: Node, operands: list[Expr]) -> Expr:
        function, literals = node.payload
        if function not in self._kernels:
            symbol = f"kernel_{len(self._kernels)}"
            self._kernels[function] = builder.add_func(function.with_attr("global_symbol", symbol), symbol)
        types = list(node.ty.fields) if isinstance(node.ty, relax.TupleType) else [node.ty]
        args: list[Any] = [self._kernels[function], relax.Tuple(operands), *literals]
        out = types[0] if len(types) == 1 else relax.TupleType(types)
        return Call(_CALL_TIR, args, None, [out])


_CALL_TIR: Any = tvm.ir.Op.get("relax.call_tir")
