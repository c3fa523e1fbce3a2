"""The calls of a linked module one by one: each on the tensors that it is given, with the constants that it is given.

For what looks at a model between its kernels, or changes a layer's constants while the rest runs: nothing is planned, shared or
timed. Kernels are those of a Program, from the same cache.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi
from tvm.ir import GenericConst, GlobalVar
from tvm.relax import Expr, Tuple, TupleGetItem, TupleType, Var

from ...ir.graph.dataflow import DataflowView, call_to, dtype_of, static_shape
from ...ir.graph.nodes import elements
from ...ir.graph.sizes import buffers_and_dimensions, is_dimension, size_of
from ...ir.untyped import tirx
from ...runtime.shapes import evaluated
from ...runtime.size import names_in
from ...runtime.tensors import empty_tensor
from ...target.op_facts import movers
from .generate import compile_calls
from .objects import Compilable, EarlyObjects
from .pointer_kernels import NeedsMachine, PointerKernel, on_pointers
from .tir_passes import CALLS_ATTR

Value = Any
"""A tvm.runtime.Tensor, or a tuple of values."""

_AT_ONCE = 16
"""Kernels of one library: to link it takes as long as to compile two or three of them."""
_FIRST = 4
"""Of the library that is waited for."""


class _KernelLibraries:
    """Kernels on their way to machine code, a few in each library, in the order in which they are added.

    LLVM compiles outside Python's lock, while others are being added.
    """

    def __init__(self, target: tvm.target.Target) -> None:
        self._target = target
        self._objects = EarlyObjects(target)
        self._entries: dict[str, str] = {}
        self.kernels: dict[str, PointerKernel] = {}
        self._waiting: list[Compilable] = []
        self._callers: dict[str, Any] = {}
        self._libraries: list[Future[Any]] = []
        self._number: dict[str, int] = {}
        self._beside = ThreadPoolExecutor(1)

    def add(self, name: str, function: tvm.tirx.PrimFunc) -> None:
        """Compile a kernel soon, unless that is so of one with its name."""
        if name in self._entries:
            return
        entry = self._entries[name] = f"octavo_call_{len(self._entries)}"
        # The prefix keeps a kernel that TVM calls "exp" from being taken for the C library's.
        own = f"octavo_{name.removeprefix('octavo_')}"
        made = self.kernels[name] = on_pointers(function, own)
        kernel = self._objects.start(own, made.function)
        self._waiting.append(kernel)
        self._callers[entry] = _caller(made, buffers_and_dimensions(function)[0], kernel.symbol, entry)
        self._number[name] = len(self._libraries)
        if len(self._waiting) == (_AT_ONCE if self._libraries else _FIRST):
            self._start()

    def finish(self) -> None:
        """Compile what is still waiting for others, and return with the first library: the rest comes while that runs."""
        if self._waiting:
            self._start()
        self._objects.finish()
        self._beside.shutdown(wait=False)
        for library in self._libraries[:1]:
            library.result()

    def function(self, name: str) -> Callable[..., None]:
        """Return what calls a kernel on tensors, once its library is there."""
        return self._libraries[self._number[name]].result()[self._entries[name]]

    def _start(self) -> None:
        self._libraries.append(self._beside.submit(compile_calls, self._callers, self._waiting, self._target, self._objects))
        self._callers, self._waiting = {}, []


def _caller(kernel: PointerKernel, tensors: Sequence[Any], symbol: str, entry: str) -> tvm.tirx.PrimFunc:
    """Return a function of tensors and sizes that calls a kernel, by its symbol, on pointers to their data."""
    buffers = [tirx.decl_buffer(_declared(buffer.ty.shape), str(buffer.ty.dtype), name=f"{buffer.name}_") for buffer in tensors]
    sizes = [tirx.Var(f"size{number}", dtype) for number, dtype in enumerate(kernel.dtypes)]
    body = tirx.Evaluate(tirx.call_extern("int32", symbol, *(tirx.buffer.buffer_data(buffer) for buffer in buffers), *sizes))
    return tirx.PrimFunc([*buffers, *sizes], body).with_attrs({"global_symbol": entry, CALLS_ATTR: True})


def _declared(shape: Any) -> list[Any]:
    """Return a shape for an argument: an open size is what the tensor has."""
    return [dim if isinstance(dim, tirx.IntImm) else tirx.Var(f"dim{axis}", "int64") for axis, dim in enumerate(shape)]


@dataclass(kw_only=True, slots=True, eq=False)
class KernelCall:
    """One binding of "main".

    Parameters
    ----------
    var
        What it binds.
    operands
        What it reads: variables, and constants, which may be exchanged for others of their shape and dtype.
    run
        What it gives of values for the operands, and of the sizes that open dimensions have, by their names.
    """

    var: Var
    operands: list[Any]
    run: Callable[[Sequence[Value], Mapping[str, int]], Value]


class KernelCalls:
    """ "main" of a linked module as a list of calls.

    Parameters
    ----------
    module
        As `link` leaves it.
    target
        What to compile for; None: the calls are looked at and never run.

    Raises
    ------
    NotImplementedError
        Something in "main" is neither a call of a kernel nor a view: TVM's virtual machine alone can run it.
    """

    def __init__(self, module: tvm.IRModule, target: tvm.target.Target | None) -> None:
        self._module = module
        view = DataflowView(module["main"])
        self.params: tuple[Var, ...] = tuple(view.function.params)
        self._libraries = None if target is None else _KernelLibraries(target)
        # Each variable is one object everywhere: tables of variables take others with the same address for it only after
        # comparing them, which takes longer than small kernels do.
        self._variables: dict[int, Var] = {hash(var): var for var in (*self.params, *(each.var for each in view.bindings))}
        fields = elements(view.result.fields) if isinstance(view.result, Tuple) else [view.result]
        known = {place: Var(f"result{place}", field.ty) for place, field in enumerate(fields) if isinstance(field, GenericConst)}
        # What is computed of constants alone is one by now.
        self.results: tuple[Var, ...] = tuple(self._canonical([known.get(place, field) for place, field in enumerate(fields)]))
        bound = [(self._variables[hash(binding.var)], binding.value) for binding in view.bindings]
        try:
            self.calls: list[KernelCall] = [
                self._call(var, value) for var, value in (*bound, *((var, fields[place]) for place, var in known.items()))
            ]
        except NeedsMachine:
            raise NotImplementedError("the model has steps that only TVM's virtual machine can run") from None
        if self._libraries is not None:
            self._libraries.finish()

    def _call(self, var: Var, value: Expr) -> KernelCall:
        call = call_to(value, "call_tir")
        if call is not None:
            return self._kernel(var, call)
        moved = call_to(value, *movers("view"))
        if moved is not None:
            shape, dtype = _shape(var), dtype_of(var)
            operands = self._canonical([moved.args[0]])

            def view(values: Sequence[Value], sizes: Mapping[str, int]) -> Value:
                return values[0]._create_view(evaluated(shape, sizes), dtype)

            return KernelCall(var=var, operands=operands, run=view)
        if isinstance(value, Tuple):
            return KernelCall(var=var, operands=self._canonical(elements(value.fields)), run=lambda values, _: tuple(values))
        if isinstance(value, TupleGetItem):
            index = int(value.index)
            return KernelCall(var=var, operands=self._canonical([value.tuple_value]), run=lambda values, _: values[0][index])
        if isinstance(value, (Var, GenericConst)):
            return KernelCall(var=var, operands=self._canonical([value]), run=lambda values, _: values[0])
        raise NeedsMachine

    def _kernel(self, var: Var, call: Any) -> KernelCall:
        if not isinstance(call.args[0], GlobalVar) or not isinstance(call.args[1], Tuple):
            raise NeedsMachine
        name, libraries = call.args[0].name_hint, self._libraries
        if libraries is not None:
            libraries.add(name, self._module[call.args[0]])
        takes_sizes = libraries is not None and bool(libraries.kernels[name].dtypes)
        out = call.ty_args[0]
        allocations = [_allocation(ty) for ty in (out.fields if isinstance(out, TupleType) else [out])]
        is_tuple = isinstance(out, TupleType)
        functions: list[Any] = []
        operands = self._canonical(elements(call.args[1].fields))
        given = [size_of(each) for each in operands if is_dimension(each)]
        if None in given:
            raise NeedsMachine

        def run(values: Sequence[Value], sizes: Mapping[str, int]) -> Value:
            if not functions:  # its library may still be on its way until then
                assert libraries is not None, "without a target nothing runs"
                functions.append(libraries.function(name))
            results = [allocate(sizes) for allocate in allocations]
            if takes_sizes:
                assert libraries is not None, "without a target nothing runs"
                tensors = (*values, *results)
                implied = (tensors[number].shape[axis] for number, axis in libraries.kernels[name].implied)
                functions[0](*tensors, *evaluated(given, sizes), *implied)
            else:
                functions[0](*values, *results)
            return tuple(results) if is_tuple else results[0]

        return KernelCall(var=var, operands=[each for each in operands if not is_dimension(each)], run=run)

    def _canonical(self, operands: Sequence[Any]) -> list[Any]:
        """Return operands with the one object of each variable."""
        return [self._variables.get(hash(each), each) if isinstance(each, Var) else each for each in operands]


def _shape(expr: Expr) -> tuple[int, ...]:
    shape = static_shape(expr)
    if shape is None:
        raise NeedsMachine
    return shape


def _allocation(ty: Any) -> Callable[[Mapping[str, int]], Any]:
    """Return what allocates a tensor of a type; its parts are made once, for that takes longer than to allocate."""
    shape, dtype = _shape(Var("result", ty)), str(ty.dtype)
    if names_in(shape):
        return lambda sizes: empty_tensor(evaluated(shape, sizes), dtype)
    fixed = tvm_ffi.Shape(shape)
    return lambda _: empty_tensor(fixed, dtype)
