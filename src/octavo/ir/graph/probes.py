"""Probes: calls in a function that read a tensor at run time and return it unchanged; inserting and removing them.

In a dataflow block readers read the call's result, so that no pass takes it for dead::

    y = R.nn.conv2d(x, w)
    y_observed = R.call_pure_packed("octavo.probe", y, R.str("k"))     # who read y reads y_observed

Elsewhere (the form that TVM's virtual machine takes, tensors filled by calls) it stands behind the call that fills the tensor::

    cls.kernel(x, w, alloc)
    R.call_packed("octavo.probe", alloc, R.str("k"))

At run time the call finds by its key the callback that was registered in this process. Knows nothing of what the tensors mean.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import tvm
from tvm.ir import Call
from tvm.relax import BlockBuilder, Expr, Var
from tvm_ffi import register_error

from ...errors import DataError, ExecutableError
from ..untyped import relax
from .dataflow import ALLOCATIONS, BOOKKEEPING, attrs_of, call_to, operand_vars, replace_operands

PROBE = "octavo.probe"
ProbeCallback = Callable[[npt.NDArray[Any]], None]
"""Called with a copy of each value, so that nothing it does reaches the computation."""

_CALLBACKS: dict[str, ProbeCallback] = {}
_NUMBERS = itertools.count()


def register_callback(label: str, callback: ProbeCallback) -> str:
    """Return the key by which a probe finds `callback` for as long as this process lives; the IR shows the label in it."""
    key = f"{label}@{os.getpid()}.{next(_NUMBERS)}"
    _CALLBACKS[key] = callback
    return key


def label_of(key: str) -> str:
    """Return the label that a key was made with."""
    return key.rpartition("@")[0]


def _run_probe(tensor: Any, key: str) -> Any:
    callback = _CALLBACKS.get(str(key))
    if callback is None:
        raise ExecutableError(
            "an observer of another process is in this executable; compile the module after octavo.unobserve(module)"
        )
    value = tensor.numpy()
    callback(np.array(value))
    # A copy: TVM's memory planner takes the tensor for dead here and gives its memory to others.
    return tvm.runtime.tensor(value)


tvm.register_global_func(PROBE, _run_probe, override=True)
for _error in (ExecutableError, DataError):  # or compiled code would turn them into RuntimeErrors
    register_error(_error.__name__, _error)


def read_probe(value: Expr) -> tuple[Expr, str] | None:
    """Return the tensor and the key of a probe, None if `value` is none."""
    if not isinstance(value, Call):
        return None
    packed = call_to(value, "call_pure_packed")
    callee: Any = packed.args[0] if packed is not None else value.op
    if str(getattr(callee, "global_symbol", "")) != PROBE:
        return None
    tensor, key = value.args[1:] if packed is not None else value.args
    return tensor, str(key.value)


class BlockWriter:
    """Receives the bindings of one block, keeping the names it is given."""

    def __init__(self, builder: BlockBuilder, *, is_dataflow: bool) -> None:
        self._builder = builder
        self.is_dataflow = is_dataflow
        self.bindings: list[Any] = []

    def emit(self, name: str, value: Expr, *, is_output: bool = False) -> Var:
        """Bind `value`; `is_output` lets code behind the block read it."""
        normal = self._builder.normalize(value)
        var = relax.DataflowVar(name, normal.ty) if self.is_dataflow and not is_output else relax.Var(name, normal.ty)
        self.bindings.append(relax.VarBinding(var, normal))
        return var

    def copy(self, binding: Any, mapping: Mapping[Var, Expr]) -> None:
        """Write a binding of the same variable again, with what it reads replaced."""
        value = replace_operands(binding.value, lambda var: mapping.get(var, var))
        if value.same_as(binding.value):
            self.bindings.append(binding)
        elif isinstance(binding, relax.MatchCast):
            self.bindings.append(relax.MatchCast(binding.var, value, binding.ty))
        else:
            self.bindings.append(relax.VarBinding(binding.var, self._builder.normalize(value)))


Insert = Callable[[BlockWriter, Var], Expr | None]
"""Emits what follows the binding of a variable; returns what its readers read instead, None for the variable itself."""


def insert_after_bindings(function: Any, insert: Insert) -> tuple[list[Any], dict[Var, Expr]]:
    """Return a function's blocks with bindings inserted behind its own, and what variables are read as from then on."""
    builder = BlockBuilder()
    mapping: dict[Var, Expr] = {}
    blocks: list[Any] = []

    def insert_behind(writer: BlockWriter, var: Var) -> None:
        instead = insert(writer, var)
        if instead is not None:
            mapping[var] = instead

    left = list(function.params)
    for block in list(function.body.blocks) or [relax.DataflowBlock([])]:
        is_dataflow = isinstance(block, relax.DataflowBlock)
        writer = BlockWriter(builder, is_dataflow=is_dataflow)
        for param in left:
            insert_behind(writer, param)
        left = []
        for binding in block.bindings:
            writer.copy(binding, mapping)
            insert_behind(writer, binding.var)
        blocks.append(relax.DataflowBlock(writer.bindings) if is_dataflow else relax.BindingBlock(writer.bindings))
    return [block for block in blocks if len(block.bindings)], mapping


def insert_probes(function: Any, keys: Mapping[Var, str]) -> Any:
    """Return a function with a probe of each variable in `keys`, in the form that its block needs."""
    behind: dict[Var, list[Var]] = {}
    for var in keys:
        behind.setdefault(_filled_by(function, var), []).append(var)

    def insert(writer: BlockWriter, bound: Var) -> Expr | None:
        instead: Expr | None = None
        for var in behind.get(bound, ()):
            key = tvm.ir.expr.StringImm(keys[var])
            if writer.is_dataflow:
                call = relax.call_pure_packed(PROBE, var, key, ty_args=var.ty)
                instead = writer.emit(f"{var.name}_observed", call, is_output=not isinstance(var, relax.DataflowVar))
            else:
                writer.emit("_", Call(relax.ExternFunc(PROBE), [var, key], None, [relax.TupleType([])]))
        return instead

    blocks, mapping = insert_after_bindings(function, insert)
    return with_body(function, blocks, replace_operands(function.body.body, lambda var: mapping.get(var, var)))


def remove_probes(function: Any, labels: Collection[str] | None = None) -> Any:
    """Return a function without the probes of these labels (all by default): the very function where it has none."""
    builder = BlockBuilder()
    mapping: dict[Var, Expr] = {}
    blocks: list[Any] = []
    for block in function.body.blocks:
        is_dataflow = isinstance(block, relax.DataflowBlock)
        writer = BlockWriter(builder, is_dataflow=is_dataflow)
        for binding in block.bindings:
            probe = read_probe(binding.value)
            if probe is not None and (labels is None or label_of(probe[1]) in labels):
                tensor = probe[0]
                mapping[binding.var] = mapping.get(tensor, tensor) if isinstance(tensor, Var) else tensor
            else:
                writer.copy(binding, mapping)
        if writer.bindings:
            blocks.append(relax.DataflowBlock(writer.bindings) if is_dataflow else relax.BindingBlock(writer.bindings))
    if not mapping:
        return function
    return with_body(function, blocks, replace_operands(function.body.body, lambda var: mapping.get(var, var)))


def with_body(function: Any, blocks: list[Any], result: Expr, params: Sequence[Var] | None = None) -> Any:
    """Return a function of the same attributes with another body, and with other parameters where they are given."""
    body = BlockBuilder().normalize(relax.SeqExpr(blocks, result))
    new = relax.Function(list(function.params if params is None else params), body, body.ty, function.is_pure)
    for key, value in attrs_of(function).items():
        new = new.with_attr(key, value)
    return new


def _filled_by(function: Any, var: Var) -> Var:
    """Return the variable behind whose binding `var` holds its value: its own, or of the call that fills what was allocated."""
    allocated = False
    for block in function.body.blocks:
        for binding in block.bindings:
            name = str(getattr(getattr(binding.value, "op", None), "name", ""))
            if binding.var.same_as(var):
                if name not in ALLOCATIONS:
                    return var
                allocated = True
            elif allocated and name not in BOOKKEEPING and any(read.same_as(var) for read in operand_vars(binding.value)):
                return binding.var
    return var
