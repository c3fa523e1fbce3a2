"""Downcast: the tensors of a float32 module are kept in 16 bits, bfloat16 or float16. What computes reads and gives float32.

Before::

    a = R.nn.conv2d(x, w); b = R.nn.relu(a); y = R.nn.conv2d(b, v)

After::

    x_bfloat16 = R.astype(x, "bfloat16"); x_rounded = R.astype(x_bfloat16, "float32")
    a = R.nn.conv2d(x_rounded, w); b = R.nn.relu(a)
    b_bfloat16 = R.astype(b, "bfloat16"); b_rounded = R.astype(b_bfloat16, "float32"); y = R.nn.conv2d(b_rounded, v)

This form says what is computed; rules outline kernels in it that read and write 16 bits. A tensor stays float32 where one op that
works element by element alone reads it (both are one kernel, as far as there is one), where the model returns it, and where
the precision says so. Ops that only move values move the 16 bits. Weights are the rules' business.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm.ir import Call
from tvm.relax import Expr, Tuple, Var

from ...ir.graph.dataflow import BodyWriter, DataflowView, call_to, dtype_of, op_name, static_shape, view_of_main, with_main
from ...ir.identity import NameSupply
from ...ir.qdq.values import constant_value
from ...ir.untyped import relax
from ...target.op_facts import ELEMENTWISE, movers
from ...target.precision import Precision
from .context import PartitionContext

_MOVES = (*movers("view", "transpose", "reverse", "repeat"), "strided_slice", "concat")
"""Ops that move 16 bits; the others that move data pad with a number, or have indices or several results."""

_ELEMENTWISE = (*ELEMENTWISE, "nn.batch_norm")


def downcast(module: tvm.IRModule, context: PartitionContext) -> tvm.IRModule:
    """Keep the tensors of a float32 module in 16 bits, where a precision is asked for."""
    if context.precision is None:
        return module
    view, precision = view_of_main(module), context.precision
    narrowed = with_main(module, lambda writer: _Downcasting(view, writer, precision, context).body())
    return narrowed if context.half_names else module


class _Downcasting:
    """One walk down the function, which writes it anew; variables keep their names."""

    def __init__(self, view: DataflowView, writer: BodyWriter, precision: Precision, context: PartitionContext) -> None:
        self._view = view
        self._writer = writer
        self._dtype = precision.dtype
        self._kept = precision.kept
        self._context = context
        self._new: dict[Var, Var] = {}
        self._half: dict[Var, Var] = {}
        self._rounded: dict[Var, Var] = {}
        params = [param.name for param in view.function.params]
        self._names = NameSupply([*params, *(binding.var.name for binding in view.bindings)])

    def body(self) -> Expr:
        """Write every binding and return the result."""
        for param in self._view.function.params:
            self._new[param] = param
            self._narrow(param)
        for binding in self._view.bindings:
            var, value = binding.var, binding.value
            if isinstance(value, Var):  # another name
                self._new[var] = self._emit_source(var, self._wide(value))
                self._half |= {var: self._half[value]} if value in self._half else {}
                continue
            moved = self._move_in_half(value)
            if moved is None:
                self._new[var] = self._emit_source(var, self._substitute(value))
                self._narrow(var)
                continue
            self._half[var] = self._emit(var, self._dtype, moved)
            self._widen_early(var)
            if self._view.is_returned(var):
                self._new[var] = self._emit_source(var, relax.op.astype(self._half[var], "float32"))
        return self._results(self._view.result)

    def _results(self, expr: Expr) -> Expr:
        if isinstance(expr, Tuple):
            return relax.Tuple([self._results(part) for part in expr.fields])
        return self._new[expr] if isinstance(expr, Var) else expr

    def _emit_source(self, var: Var, value: Expr) -> Var:
        return self._writer.emit(var.name, value, is_output=not isinstance(var, relax.DataflowVar))

    def _emit(self, source: Var, what: str, value: Expr) -> Var:
        new = self._writer.emit(self._names.fresh(f"{source.name}_{what}"), value)
        self._context.sources[new.name] = self._context.sources.get(source.name, source.name)
        if dtype_of(new) == self._dtype:
            self._context.half_names.add(new.name)
        return new

    def _narrow(self, var: Var) -> None:
        """Keep a tensor in 16 bits where that is called for."""
        shape = static_shape(var)
        full = self._context.sources.get(var.name, var.name)
        if dtype_of(var) != "float32" or not shape or 0 in shape or full in self._kept or not self._view.users(var):
            return
        if constant_value(self._view, var) is None and not self._is_fused(var):
            self._half[var] = self._emit(var, self._dtype, relax.op.astype(self._new[var], self._dtype))
            self._widen_early(var)

    def _widen_early(self, var: Var) -> None:
        """Widen a tensor where it is made, not where it is read first: a rule that adds it looks for what was there before."""
        if any(op_name(self._view.definition(user)) not in _MOVES for user in self._view.users(var)):
            self._wide(var)

    def _is_fused(self, var: Var) -> bool:
        """Return whether an op that works element by element alone reads a tensor, and can be one kernel with what made it."""
        user = self._view.only_user(var)
        definition = self._view.definition(var)
        is_computed = isinstance(definition, Call | relax.TupleGetItem)  # an item: of a batch normalization, say
        if user is None or not is_computed or op_name(definition) in _MOVES:
            return False
        return call_to(self._view.definition(user), *_ELEMENTWISE) is not None

    def _move_in_half(self, value: Expr) -> Expr | None:
        """Return an op that only moves values, over the 16 bits of what it reads; None for any other."""
        call: Any = call_to(value, *_MOVES)
        if call is None:
            return None
        source: Any = self._view.definition(call.args[0]) if op_name(call) == "concat" else call.args[0]
        operands = list(source.fields) if isinstance(source, Tuple) else [source]
        halves = [self._half[operand] for operand in operands if isinstance(operand, Var) and operand in self._half]
        if len(halves) < len(operands):
            return None
        data = relax.Tuple(halves) if isinstance(source, Tuple) else halves[0]
        return Call(call.op, [data, *call.args[1:]], call.attrs, call.ty_args)

    def _substitute(self, expr: Any) -> Any:
        """Return what a value computes, over the rounded tensors."""
        if isinstance(expr, Var):
            return self._wide(expr)
        if isinstance(expr, Call):
            return Call(expr.op, [self._substitute(arg) for arg in expr.args], expr.attrs, expr.ty_args)
        if isinstance(expr, Tuple):
            return relax.Tuple([self._substitute(part) for part in expr.fields])
        if isinstance(expr, relax.TupleGetItem):
            return relax.TupleGetItem(self._substitute(expr.tuple_value), expr.index)
        return expr

    def _wide(self, var: Var) -> Var:
        half = self._half.get(var)
        if half is None:
            return self._new[var]
        if var not in self._rounded:
            self._rounded[var] = self._emit(var, "rounded", relax.op.astype(half, "float32"))
        return self._rounded[var]
