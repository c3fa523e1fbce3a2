"""Program: the calls of a linked module as one native function over one block of memory.

TVM's virtual machine spends about 0.3 us on each call it makes, allocates as it runs and keeps a call's state in itself. A model
needs none of that: its calls are known, and the places of its tensors but for open sizes. Here they become one PrimFunc,
"octavo_main(sizes, inputs..., constants, workspace, outputs...)", that calls the kernels on pointers; `sizes`, int64, is there
where dimensions are open. A module that calls anything but PrimFuncs on tensors of known rank is left to the virtual machine.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import tvm
from tvm.ir import GenericConst, GlobalVar
from tvm.relax import Expr, TensorType, Tuple, TupleGetItem, TupleType, Var

from ...ir.graph.dataflow import DataflowView, call_to, dtype_of, static_shape
from ...ir.graph.kernel_attributes import IN_PLACE_ATTR, OPEN_ATTR
from ...ir.graph.nodes import call_of, tensor_buffer
from ...ir.graph.sizes import is_dimension, open_dimensions, size_of
from ...ir.untyped import tirx
from ...runtime.code import ENTRY, takes_table
from ...runtime.control_block import Layout
from ...runtime.description import fixed_dimension
from ...runtime.memory import Lifetime, align, place, place_in_slots
from ...runtime.size import Size, is_open, names_in
from ...runtime.tensors import values_of
from ...target.op_facts import movers
from .call_memory import KernelCall, Memory
from .constants import Constants
from .entry_sizes import EntrySizes
from .fixed_inputs import fixed_inputs, with_fixed
from .planned_calls import CallPlan, Operand, PlannedCall
from .pointer_kernels import NeedsMachine, PointerKernel, on_pointers
from .scratch import with_scratch
from .sharing import phases, shared_kernel
from .tir_passes import CALLS_ATTR, STACK_BYTES
from .worker_pool_code import BODY, WORKER_SYMBOLS, WorkerPoolCode

OWN_SYMBOLS = (ENTRY, *WORKER_SYMBOLS)
"""Functions that keep their names; kernels are named by their content."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Program:
    """A module of PrimFuncs with its entry, and what the entry is called with.

    Parameters
    ----------
    module
        The entry and the kernels it calls.
    constants
        All constants in one array of uint8, each at a multiple of 64 bytes.
    dimensions
        Names of the open dimensions, in the order in which the entry takes their sizes.
    workspace
        Bytes of the block that holds the intermediate tensors.
    outputs
        Shape and dtype of each result.
    control
        Control block of the worker pool that shares a call; None where one thread does it all.
    fixed
        Numbers of the inputs of which alone something is computed that the workspace keeps: where the dimension
        `fixed_dimension` of one is 1, it is there from the call before.
    """

    module: tvm.IRModule
    constants: npt.NDArray[np.uint8]
    dimensions: tuple[str, ...]
    workspace: int
    outputs: tuple[tuple[tuple[int, ...], str], ...]
    control: Layout | None = None
    fixed: tuple[int, ...] = ()


def call_plan(module: tvm.IRModule, *, on_stack: int) -> CallPlan | None:
    """Return a linked module's calls with all memory planned, or None where it needs the virtual machine.

    A kernel may have `on_stack` bytes of buffers on the stack.
    """
    try:
        return _Plan(DataflowView(module["main"])).call_plan(module, on_stack)
    except NeedsMachine:
        return None


def native_program(module: tvm.IRModule, *, tasks: int = 1) -> Program | None:
    """Return a linked module as a Program, or None where it needs the virtual machine.

    With more than one of them, `tasks` threads at most share the kernels that are one parallel loop; a call with a table of its
    inputs is not shared.
    """
    view = DataflowView(module["main"])
    try:
        return _Plan(view).program(module, tasks)
    except NeedsMachine:
        return None


class _Plan:
    """Reads "main" once: its calls in order, and which memory each operand is."""

    def __init__(self, view: DataflowView) -> None:
        self._params = list(view.function.params)
        self._has_table = takes_table(len(self._params))
        self._constants_at = len(self._params)
        self._workspace_at = self._constants_at + 1
        self._calls: list[KernelCall] = []
        self._values: dict[Var, Memory | list[Memory]] = {
            param: Memory(size=_bytes(param), argument=index) for index, param in enumerate(self._params)
        }
        self._constants = Constants()
        self._constant_memory: dict[tuple[int, int], tuple[Memory, int]] = {}
        self._results: list[Expr] = []
        self._dimensions: dict[str, Any] = dict(open_dimensions(view.function))
        self._starts: dict[int, Any] = {}
        self._read: dict[int, int | Size | None] = {}
        self._sizes = EntrySizes(())
        self._kernels: dict[GlobalVar, PointerKernel] = {}
        for binding in view.bindings:
            self._values[binding.var] = self._value(binding.value)
        self._return(view.result)
        placed = self._constants.placed()
        self._blob = placed.blob
        for memory, number in self._constant_memory.values():
            memory.offset = placed.offsets[number]
        # Sizes that no input has: for how many rows there is room in a result.
        known = names_in(size for call in self._calls for size in call.sizes) if self._dimensions else frozenset[str]()
        self._dimensions |= dict.fromkeys(known - self._dimensions.keys())
        self._fixed = tuple(fixed_inputs(view.function, self._results))

    # ------------------------------------------------------------------------------------------------------- reading

    def _value(self, value: Expr) -> Memory | list[Memory]:
        call = call_to(value, "call_tir")
        if call is not None:
            return self._kernel_call(call)
        moved = call_to(value, *movers("view"))
        if moved is not None:  # a view of the same bytes
            return self._memory(moved.args[0])
        if isinstance(value, Tuple):
            return [self._memory(item) for item in value.fields]
        if isinstance(value, TupleGetItem):
            fields = self._values.get(value.tuple_value) if isinstance(value.tuple_value, Var) else None
            if not isinstance(fields, list):
                raise NeedsMachine
            return fields[int(value.index)]
        if isinstance(value, Var) and isinstance(self._values.get(value), list):
            return self._values[value]
        return self._memory(value)

    def _kernel_call(self, call: Any) -> Memory | list[Memory]:
        if not isinstance(call.args[0], GlobalVar) or not isinstance(call.args[1], Tuple):
            raise NeedsMachine
        number = len(self._calls)
        given = list(call.args[1].fields)
        operands = [self._memory(operand) for operand in given if not is_dimension(operand)]
        sizes = [self._size(each) for each in given if is_dimension(each)]
        if None in sizes:
            raise NeedsMachine
        for memory in operands:
            memory.last = max(memory.last, number)
        out = call.ty_args[0]
        results = [Memory(size=_bytes(Var("result", ty)), first=number, last=number) for ty in _fields(out)]
        made = KernelCall(
            callee=call.args[0],
            operands=(*operands, *results),
            results=len(results),
            shapes=tuple(
                _shape(each)
                for each in (*(each for each in given if not is_dimension(each)), *(Var("result", ty) for ty in _fields(out)))
            ),
            sizes=tuple(each for each in sizes if each is not None),
        )
        self._calls.append(made)
        return results if isinstance(out, TupleType) else results[0]

    def _size(self, expression: Any) -> int | Size | None:
        """Return a size; calls share the expressions of equal ones, which take long to read."""
        address = hash(expression)
        if address not in self._read:
            self._read[address] = size_of(expression)
        return self._read[address]

    def _memory(self, expr: Expr) -> Memory:
        if isinstance(expr, GenericConst):
            return self._constant(expr)
        memory = self._values.get(expr) if isinstance(expr, Var) else None
        if not isinstance(memory, Memory):
            raise NeedsMachine
        return memory

    def _constant(self, constant: GenericConst) -> Memory:
        if not isinstance(constant.ty, TensorType):
            raise NeedsMachine
        array = values_of(constant.value)
        place = int(constant.value.data_ptr()), array.nbytes
        if place in self._constant_memory:
            return self._constant_memory[place][0]
        memory = Memory(size=array.nbytes, argument=self._constants_at)
        self._constant_memory[place] = memory, self._constants.add(array)
        return memory

    def _return(self, result: Expr) -> None:
        """Let kernels write results where the caller wants them; what isn't a kernel's own to give is copied there."""
        self._results = list(result.fields) if isinstance(result, Tuple) else [result]
        for index, expr in enumerate(self._results):
            argument = self._workspace_at + 1 + index
            size = _bytes(expr)
            memory = self._memory(expr)
            if memory.argument is None:
                memory.argument = argument
                continue
            memory.last = max(memory.last, len(self._calls))
            copy = Memory(size=size, argument=argument)
            self._calls.append(KernelCall(callee=None, operands=(memory, copy), bytes=size))

    # ------------------------------------------------------------------------------------------------------- writing

    def program(self, module: tvm.IRModule, tasks: int) -> Program:
        """Place the intermediate tensors, with kernels' own buffers of open sizes, and write the entry.

        A kernel of open sizes has large buffers for blocks of many rows. To take one from the heap and give it back is a tenth of
        the time of a layer that is called with one row.
        """
        self._calls = with_fixed(self._calls, [self._values[param] for param in self._params], self._fixed)
        left_out = {call.unless for call in self._calls if call.unless}
        self._dimensions |= dict.fromkeys(left_out)
        on_stack = STACK_BYTES if self._dimensions and tasks == 1 else math.inf
        made, chunks = self._on_pointers(module, on_stack, 1 if self._has_table else tasks)
        kernels = {callee: GlobalVar(_own_name(callee)) for callee in made}
        functions = {kernels[callee]: function for callee, function in made.items()}
        workspace = self._place()
        buffers = self._buffers(workspace)
        control = None
        if chunks:
            control, shared_functions = self._pool(tasks, kernels, chunks, buffers)
            functions |= shared_functions
        else:
            functions[GlobalVar(ENTRY)] = self._entry(kernels, buffers)
        outputs = tuple((_shape(result), dtype_of(result)) for result in self._results)
        return Program(
            module=tvm.IRModule(functions),
            constants=self._blob,
            dimensions=tuple(sorted(self._dimensions)),
            workspace=workspace,
            outputs=outputs,
            control=control,
            fixed=tuple(number for number in self._fixed if fixed_dimension(number) in left_out),
        )

    def call_plan(self, module: tvm.IRModule, on_stack: int) -> CallPlan:
        """Place the intermediate tensors and the kernels' own buffers, and return the calls."""
        made, _ = self._on_pointers(module, on_stack)
        workspace = self._place()
        kernels = tvm.IRModule({GlobalVar(_own_name(callee)): function for callee, function in made.items()})
        planned = tuple(self._planned(call) for call in self._calls)
        return CallPlan(module=kernels, calls=planned, constants=self._blob, workspace=workspace)

    def _on_pointers(
        self, module: tvm.IRModule, on_stack: float, tasks: int = 1
    ) -> tuple[dict[GlobalVar, Any], dict[GlobalVar, int]]:
        """Return the kernels on pointers, and the chunks of those that are shared; calls get memory for kernels' own buffers."""
        functions: dict[GlobalVar, Any] = {}
        chunks: dict[GlobalVar, int] = {}
        scratch: dict[GlobalVar, list[int | Size]] = {}
        for callee in dict.fromkeys(call.callee for call in self._calls if call.callee is not None):
            shared = shared_kernel(module[callee]) if tasks > 1 else None
            made = self._kernels[callee] = on_pointers(module[callee], _own_name(callee), shared)
            functions[callee], scratch[callee] = with_scratch(made.function, on_stack) if shared is None else (made.function, [])
            if shared is not None:
                chunks[callee] = shared.chunks
        self._calls = [self._with_own(number, call, scratch) for number, call in enumerate(self._calls)]
        self._write_over(module)
        return functions, chunks

    def _with_own(self, number: int, call: KernelCall, scratch: Mapping[GlobalVar, Sequence[int | Size]]) -> KernelCall:
        """Return a call with memory for the kernel's own buffers."""
        if call.callee is None or not scratch[call.callee]:
            return call
        given = self._kernels[call.callee].named(self._sizes_of(call))
        sizes = [size.substitute(given) if isinstance(size, Size) else size for size in scratch[call.callee]]
        own = [Memory(size=size, first=number, last=number) for size in sizes]
        return replace(call, operands=(*call.operands, *own), results=call.results + len(own))

    def _planned(self, call: KernelCall) -> PlannedCall:
        operands = tuple(self._operand(memory) for memory in call.operands)
        if call.callee is None:
            return PlannedCall(kernel=None, operands=operands, bytes=call.bytes)
        kernel = self._kernels[call.callee]
        return PlannedCall(
            kernel=_own_name(call.callee),
            operands=operands,
            reads=len(operands) - call.results,
            sizes=self._sizes_of(call),
            dtypes=kernel.dtypes,
        )

    def _sizes_of(self, call: KernelCall) -> tuple[int, ...]:
        assert call.callee is not None, "a copy takes no sizes"
        return self._kernels[call.callee].sizes_of(call.sizes, call.shapes)

    def _operand(self, memory: Memory) -> Operand:
        argument, offset, _ = memory.place
        if argument < self._constants_at:
            return Operand(region="input", index=argument, offset=offset)
        if argument <= self._workspace_at:
            is_workspace = argument == self._workspace_at
            start = self._starts.get(offset, offset) if is_workspace else offset
            return Operand(region="workspace" if is_workspace else "constants", index=0, offset=start)
        return Operand(region="output", index=argument - self._workspace_at - 1, offset=offset)

    def _write_over(self, module: tvm.IRModule) -> None:
        """Let kernels write a result over their first operand where they can and nothing reads it later."""
        for number, call in enumerate(self._calls):
            if call.callee is None or IN_PLACE_ATTR not in module[call.callee].attrs:
                continue
            source, result = call.operands[0].root, call.operands[-call.results]
            is_own = source.argument is None and result.argument is None
            if is_own and source.size == result.size and source.last == number and call.operands.count(call.operands[0]) == 1:
                result.over, source.kept = source, result.kept
                source.first, source.last = min(source.first, result.first), result.last

    def _place(self) -> int:
        intermediates: list[Memory] = []
        for call in self._calls:
            roots = [memory.root for memory in call.operands]
            intermediates += [memory for memory in roots if memory.argument is None and memory not in intermediates]
        lifetimes = [Lifetime(size=memory.size, first=memory.first, last=memory.last) for memory in intermediates]
        if self._dimensions:
            return self._place_open(intermediates, lifetimes)
        offsets, size = place(lifetimes)
        for memory, offset in zip(intermediates, offsets, strict=True):
            memory.argument, memory.offset = self._workspace_at, offset
        return size

    def _place_open(self, intermediates: Sequence[Memory], lifetimes: Sequence[Lifetime]) -> int:
        """Place tensors of open sizes in slots: where those begin, the entry computes. An offset is the number of a slot."""
        slots, sizes = place_in_slots(lifetimes)
        # What is kept lies first: where it begins depends on no other size.
        kept = {slot for memory, slot in zip(intermediates, slots, strict=True) if memory.kept}
        order = sorted(range(len(sizes)), key=lambda slot: slot not in kept)
        for memory, slot in zip(intermediates, slots, strict=True):
            memory.argument, memory.offset, memory.size = self._workspace_at, order.index(slot), 1
        total = 0
        for number, slot in enumerate(order):
            self._starts[number] = total
            total = total + align(sizes[slot])
        return total

    def _buffers(self, workspace: int) -> list[Any]:
        """Return the entry's arguments."""
        inputs = [tirx.decl_buffer((len(self._params),), "int64", name="inputs")]
        if not self._has_table:
            inputs = [_argument(f"input{index}", param) for index, param in enumerate(self._params)]
        sizes = [tirx.decl_buffer((len(self._dimensions),), "int64", name="sizes")] if self._dimensions else []
        workspace = 1 if self._dimensions else max(workspace, 1)
        return [
            *sizes,
            *inputs,
            tirx.decl_buffer((self._blob.size,), "uint8", name="constants"),
            tirx.decl_buffer((workspace,), "uint8", name="workspace"),
            *(_argument(f"output{index}", expr) for index, expr in enumerate(self._results)),
        ]

    def _size_statements(self, buffers: list[Any]) -> list[Any]:
        """Return the statements that compute the sizes that calls take, and where the slots of the workspace begin."""
        if not self._dimensions:
            return []
        self._sizes = EntrySizes(self._dimensions)
        taken = [size for call in self._calls for size in (self._sizes_of(call) if call.callee is not None else (call.bytes,))]
        return self._sizes.statements(buffers[0], self._starts, taken)

    def _call(self, call: KernelCall, kernels: dict[GlobalVar, GlobalVar], buffers: list[Any], *chunks: Any) -> Any:
        """Return the statement of one call; a shared kernel takes the first and last of its chunks."""
        if call.unless:
            is_there = self._sizes.number(Size.named(call.unless), "int64")
            return tirx.IfThenElse(is_there == 0, self._call(replace(call, unless=""), kernels, buffers, *chunks), None)

        def pointer(memory: Memory) -> Any:
            argument, offset, _ = memory.place
            if argument < self._constants_at and self._has_table:
                return tirx.reinterpret("handle", buffers[1 if self._dimensions else 0][argument])
            buffer = buffers[argument - self._constants_at - 2 - len(self._results)]
            if argument in (self._constants_at, self._workspace_at):
                is_slot = argument == self._workspace_at and bool(self._starts)
                return tirx.address_of(buffer[self._starts[offset] if is_slot else offset])
            return tirx.buffer.buffer_data(buffer)

        pointers = [pointer(memory) for memory in call.operands]
        if call.callee is None:
            size = self._sizes.number(call.bytes, "int64")
            return tirx.Evaluate(tirx.call_extern("handle", "memcpy", pointers[1], pointers[0], size))
        kernel = self._kernels[call.callee]
        sizes = [self._sizes.number(size, dtype) for size, dtype in zip(self._sizes_of(call), kernel.dtypes, strict=True)]
        return tirx.Evaluate(call_of(kernels[call.callee], [*pointers, *sizes, *chunks]))

    def _entry(self, kernels: dict[GlobalVar, GlobalVar], buffers: list[Any]) -> Any:
        statements = self._size_statements(buffers)
        statements += [self._call(call, kernels, buffers) for call in self._calls]
        body = tirx.SeqStmt(statements) if len(statements) != 1 else statements[0]
        entry = tirx.PrimFunc(buffers, body).with_attrs({"global_symbol": ENTRY, CALLS_ATTR: True})
        return self._with_sizes(entry)

    def _with_sizes(self, function: Any) -> Any:
        """Mark a function that computes sizes: TVM's passes would write what each is made of wherever it is read."""
        return function.with_attr(OPEN_ATTR, 1) if self._dimensions else function

    def _pool(
        self, tasks: int, kernels: dict[GlobalVar, GlobalVar], chunks: dict[GlobalVar, int], buffers: list[Any]
    ) -> tuple[Layout, dict[GlobalVar, Any]]:
        """Return the worker pool's control layout, and the entry with what else the workers run."""
        accesses = [call.access(shared=call.callee in chunks) for call in self._calls]
        parts = phases(accesses)
        code = WorkerPoolCode(buffers, tasks, sum(len(units) for units in parts))
        statements = self._size_statements(buffers)
        waits: list[Any] = []
        for units in parts:
            statements += waits
            for unit in units:
                calls = [self._calls[index] for index in unit]
                callee = calls[0].callee
                count = chunks.get(callee, 0) if callee is not None else 0

                def work(first: Any, last: Any, calls: Sequence[KernelCall] = calls, shared: bool = count > 0) -> Any:
                    bounds = (first, last) if shared else ()
                    made = [self._call(call, kernels, buffers, *bounds) for call in calls]
                    return tirx.SeqStmt(made) if len(made) > 1 else made[0]

                statements.append(code.unit(max(count, 1), work))
            waits = [code.wait(number) for number in range(code.units - len(units), code.units)]
        statements += [code.alone(wait) for wait in waits]
        functions = code.functions(statements)
        functions[BODY] = self._with_sizes(functions[BODY])
        functions[ENTRY] = code.entry(ENTRY, self._workspace_at + 1 + bool(self._dimensions))
        return code.layout, {GlobalVar(symbol): function for symbol, function in functions.items()}


def _own_name(kernel: GlobalVar) -> str:
    """Return a kernel's name with a prefix: what TVM calls "exp" is not to be taken for the C library's."""
    return f"octavo_{kernel.name_hint.removeprefix('octavo_')}"


def _fields(ty: Any) -> Sequence[Any]:
    return list(ty.fields) if isinstance(ty, TupleType) else [ty]


def _argument(name: str, expr: Expr) -> Any:
    """Return the buffer of an input or output of the entry; an open size is what the tensor has: who calls has checked it."""
    shape = tuple(tirx.Var(f"{name}_{axis}", "int64") if is_open(dim) else dim for axis, dim in enumerate(_shape(expr)))
    return tensor_buffer(name, shape, dtype_of(expr))


def _shape(expr: Expr) -> tuple[int, ...]:
    shape = static_shape(expr)
    if shape is None:
        raise NeedsMachine
    return shape


def _bytes(expr: Expr) -> int:
    shape = _shape(expr)
    return math.prod(shape) * -(-int(tvm.DataType(dtype_of(expr)).bits) // 8)
