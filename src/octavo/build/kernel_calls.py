"""The calls of a linked module one by one: each on the tensors that it is given, with the constants that it is given.

For what looks at a model between its kernels, or changes a layer's constants while the rest runs: nothing is planned, shared or
timed. Kernels are those of a Program, from the same cache.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx as _tirx
from tvm.ir import Call, GenericConst, GlobalVar
from tvm.relax import Expr, Tuple, TupleGetItem, TupleType, Var

from ..graph.dataflow import DataflowView, call_to, dtype_of, elements, operand_vars, static_shape
from ..ops import movers
from .codegen import compile_calls
from .program import NeedsMachine, on_pointers
from .tir_passes import CALLS_ATTR

# TVM annotates its constructors more narrowly than what they take.
tirx: Any = _tirx
Value = Any
"""A tvm.runtime.Tensor, or a tuple of values."""

_AT_ONCE = 16
"""Kernels of one library: to link it takes as long as to compile two or three of them."""
_FIRST = 4
"""Of the library that is waited for."""


@dataclass(kw_only=True, slots=True, eq=False)
class KernelCall:
    """One binding of "main".

    Parameters
    ----------
    var
        What it binds.
    attrs
        Attributes of the kernel that it calls; none of what calls none.
    operands
        What it reads: variables, and constants, which may be exchanged for others of their shape and dtype.
    """

    var: Var
    operands: list[Any]
    attrs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    run: Callable[[Sequence[Value]], Value]


class KernelCalls:
    """ "main" of a linked module as a list of calls.

    Parameters
    ----------
    module
        As `link` leaves it; shapes are static.
    target
        What to compile for; None: the calls are looked at and never run.

    Raises
    ------
    NotImplementedError
        Something in "main" is neither a call of a kernel nor a view: TVM's virtual machine alone can run it.
    """

    def __init__(self, module: tvm.IRModule, target: tvm.target.Target | None) -> None:
        self._module = module
        self._entries: dict[GlobalVar, str] = {}
        view = DataflowView(module["main"])
        self.params: tuple[Var, ...] = tuple(view.function.params)
        self._libraries: dict[str, Future[Any]] = {}
        # Each variable is one object everywhere: tables of variables take others with the same address for it only after
        # comparing them, which takes longer than small kernels do.
        self._variables: dict[int, Var] = {hash(var): var for var in (*self.params, *(each.var for each in view.bindings))}
        self.results: tuple[Var, ...] = tuple(self._canonical(operand_vars(view.result)))
        try:
            self.calls: list[KernelCall] = [self._call(binding.var, binding.value) for binding in view.bindings]
        except NeedsMachine:
            raise NotImplementedError("the model has steps that only TVM's virtual machine can run") from None
        if target is not None:
            self._compile(target)
        last = {
            var: number for number, call in enumerate(self.calls) for var in (*call.operands, call.var) if isinstance(var, Var)
        }
        self.unread_after: list[list[Var]] = [[] for _ in self.calls]
        """By the number of a call the variables that nothing reads behind it."""
        for var, number in last.items():
            if var not in self.results:
                self.unread_after[number].append(var)

    def _call(self, var: Var, value: Expr) -> KernelCall:
        call = call_to(value, "call_tir")
        if call is not None:
            return self._kernel(var, call)
        moved = call_to(value, *movers("view"))
        if moved is not None:
            shape, dtype = _shape(var), dtype_of(var)
            operands = self._canonical([moved.args[0]])
            return KernelCall(var=var, operands=operands, run=lambda values: values[0]._create_view(shape, dtype))
        if isinstance(value, Tuple):
            return KernelCall(var=var, operands=self._canonical(elements(value.fields)), run=tuple)
        if isinstance(value, TupleGetItem):
            index = int(value.index)
            return KernelCall(var=var, operands=self._canonical([value.tuple_value]), run=lambda values: values[0][index])
        if isinstance(value, (Var, GenericConst)):
            return KernelCall(var=var, operands=self._canonical([value]), run=lambda values: values[0])
        raise NeedsMachine

    def _kernel(self, var: Var, call: Any) -> KernelCall:
        if len(call.args) != 2 or not isinstance(call.args[0], GlobalVar) or not isinstance(call.args[1], Tuple):
            raise NeedsMachine
        symbol = self._entries.setdefault(call.args[0], f"octavo_call_{len(self._entries)}")
        out = call.ty_args[0]
        types = [_allocation(ty) for ty in (out.fields if isinstance(out, TupleType) else [out])]
        is_tuple = isinstance(out, TupleType)
        functions: list[Any] = []

        def run(values: Sequence[Value]) -> Value:
            if not functions:  # its library may still be on its way until then
                functions.append(self._libraries[symbol].result()[symbol])
            results = tuple(tvm.runtime.empty(*each) for each in types)
            functions[0](*values, *results)
            return results if is_tuple else results[0]

        attrs: Any = self._module[call.args[0]].attrs
        operands = self._canonical(elements(call.args[1].fields))
        return KernelCall(var=var, operands=operands, attrs=dict(attrs.items()) if attrs else {}, run=run)

    def _canonical(self, operands: Sequence[Any]) -> list[Any]:
        """Return operands with the one object of each variable."""
        return [self._variables.get(hash(each), each) if isinstance(each, Var) else each for each in operands]

    def _compile(self, target: tvm.target.Target) -> None:
        """Compile the kernels in their order, a few at a time, and return with the first: the others come while those run."""
        entries = list(self._entries.items())
        beside = ThreadPoolExecutor(1)
        starts = [0, *range(_FIRST, len(entries), _AT_ONCE)]
        for start, end in itertools.pairwise([*starts, len(entries)]):
            some = dict(entries[start:end])
            library = beside.submit(compile_calls, self._callers(some), set(some.values()), target)
            self._libraries |= dict.fromkeys(some.values(), library)
        beside.shutdown(wait=False)
        for library in list(self._libraries.values())[:1]:
            library.result()

    def _callers(self, entries: Mapping[GlobalVar, str]) -> tvm.IRModule:
        """Return kernels on pointers, and for each a function of tensors that calls it."""
        functions: dict[GlobalVar, Any] = {}
        for kernel, symbol in entries.items():
            function: Any = self._module[kernel]
            # The prefix keeps a kernel that TVM calls "exp" from being taken for the C library's.
            name = f"octavo_{kernel.name_hint.removeprefix('octavo_')}"
            on_data = GlobalVar(name)
            functions[on_data] = on_pointers(function, name)
            buffers = [
                tirx.decl_buffer(buffer.ty.shape, str(buffer.ty.dtype), name=f"{buffer.name}_") for buffer in function.params
            ]
            body = tirx.Evaluate(Call(on_data, [tirx.buffer.buffer_data(buffer) for buffer in buffers]))
            functions[GlobalVar(symbol)] = tirx.PrimFunc(buffers, body).with_attrs({"global_symbol": symbol, CALLS_ATTR: True})
        return tvm.IRModule(functions)


def _shape(expr: Expr) -> tuple[int, ...]:
    shape = static_shape(expr)
    if shape is None:
        raise NeedsMachine
    return shape


def _allocation(ty: Any) -> tuple[Any, Any, Any]:
    """Return what allocates a tensor of a type; made once, for it takes longer than to allocate."""
    return tvm_ffi.Shape(_shape(Var("result", ty))), tvm_ffi.dtype(str(ty.dtype)), tvm.cpu()
