"""Nodes of a graph by TVM's own constructors, for where thousands are made or read.

TVM's Python classes import modules, look for kinds of arguments that a graph has none of and convert types, each time: a call
takes 24 us by its class and 2.4 by its constructor. Nothing is checked here: arguments are what the constructors take.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, lru_cache
from itertools import chain, repeat
from typing import Any

import numpy.typing as npt
import tvm
from tvm.ir import Type
from tvm.relax import Expr, Var

from ...runtime.mapped import shared_tensor
from ...runtime.size import dimension, names_in
from ..untyped import relax, tirx

_call: Any = tvm.get_global_func("ir.Call")
_variable: Any = tvm.get_global_func("ir.Var")
_dataflow_variable: Any = tvm.get_global_func("relax.DataflowVar")
_binding: Any = tvm.get_global_func("relax.VarBinding")
_item: Any = tvm.get_global_func("ffi.ArrayGetItem")
_size: Any = tvm.get_global_func("ffi.ArraySize")


def elements(array: Any) -> list[Any]:
    """Return the elements of a TVM array; to iterate over it takes three times as long."""
    return list(map(_item, repeat(array), range(_size(array))))


def call_of(op: Expr, args: Sequence[Expr], attrs: Any = None, ty_args: Any = ()) -> Any:
    """Return a call whose type is yet to be found."""
    return _call(_missing(), op, args, attrs, ty_args, None)


@cache
def _missing() -> Any:
    return Type.missing()


def variable(name: str, ty: Type, *, is_output: bool = True) -> Var:
    """Return a variable; one that is no output is a dataflow block's own."""
    return _variable(name, ty, None) if is_output else _dataflow_variable(name, ty, None)


def binding_of(var: Var, value: Expr) -> Any:
    """Return the binding of a value to a variable."""
    return _binding(var, value, None)


def function_of(params: Sequence[Any], body: Any, ret_type: Any = None, attrs: Any = None) -> Any:
    """Return a PrimFunc that nobody takes for a pure function.

    Whether it is one TVM's constructor looks for in all statements: that takes as long as to write them.
    """
    plain = tirx.PrimFunc(params, _nothing(), ret_type, attrs)
    ty = relax.FuncType(plain.ty.params, plain.ty.ret, purity=False)
    fields = {"params": plain.params, "body": body, "ret_type": plain.ret_type, "attrs": plain.attrs, "ty": ty, "span": None}
    return _object("tirx.PrimFunc", *chain.from_iterable(fields.items()))


_object: Any = tvm.get_global_func("ffi.MakeObjectFromPackedArgs")


@cache
def _nothing() -> Any:
    return tirx.Evaluate(0)


def with_body(function: Any, body: Any) -> Any:
    """Return a PrimFunc with these statements, of the type that it had."""
    fields = {name: getattr(function, name) for name in ("params", "ret_type", "attrs", "ty", "span")}
    return _object("tirx.PrimFunc", "body", body, *chain.from_iterable(fields.items()))


def tensor_buffer(name: str, shape: tuple[int, ...], dtype: str) -> Any:
    """Return the variable of a buffer, as `tirx.decl_buffer` declares it, that holds a tensor; sizes become expressions."""
    if names_in(shape):
        return tirx.decl_buffer([dimension(dim) for dim in shape], dtype, name=name)
    return _buffer_variable(name, _buffer_type(shape, dtype), None)


_buffer_variable: Any = tvm.get_global_func("tirx.BufferVar")


@lru_cache(maxsize=4096)
def _buffer_type(shape: tuple[int, ...], dtype: str) -> Any:
    return tirx.decl_buffer(shape, dtype).ty


_constant: Any = tvm.get_global_func("relax.MakeTensorConst")


def constant(array: npt.NDArray[Any]) -> Any:
    """Return the literal of an array, of the array's own dtype."""
    return _constant(shared_tensor(array), None, None)
