"""What of open sizes is copied where a condition holds, and filled elsewhere, is one kernel's work: it fills, and copies rows.

Before, of a padding::

    for row, column: y[row, column] = x[row - 1, column - 1] if 1 <= row <= height and 1 <= column <= width else 0

After::

    y = R.call_tir(cls.padded_rows, (x, ...))    # see kernels/move/padded_rows.py

TVM cuts loops so where sizes are known; of others each element asks. What is transposed has loops of its own for one turn of the
innermost: one token is one row. No arithmetic is touched.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi
from tvm.ir import Call, GlobalVar, TensorLoad
from tvm.relax import Expr
from tvm.tirx import GE, GT, LE, LT, And, For, IntImm, PrimFunc

from ....ir.graph.dataflow import BodyWriter, call_to, eliminate_dead_code, replace_operands, view_of_main, with_main
from ....ir.graph.kernel_attributes import KERNEL_ATTR
from ....ir.graph.sizes import buffers_and_dimensions, size_of
from ....ir.untyped import relax, s_tir, tirx
from .kernels import PaddedAxis, padded_rows
from .places import dimensions_of_call, loads_in, only_block


def copy_rows(module: tvm.IRModule) -> tvm.IRModule:
    """Return the module with the rows of its functions cut where they can be."""
    changed: dict[Any, Any] = {}
    paddings: dict[GlobalVar, _Padding] = {}
    for var, function in module.functions_items():
        if isinstance(function, PrimFunc):
            padding = _padding(function)
            made = None if padding is not None else _cut(function)
            if padding is not None:
                paddings[var] = padding
            if made is not None:
                changed[var] = made
    result = module.clone() if changed else module
    for var, function in changed.items():
        result.update_func(var, function)
    return eliminate_dead_code(_with_kernels(result, paddings)) if paddings else result


@dataclass(frozen=True, slots=True)
class _Padding:
    """What a function fills with a number, and copies within bounds of each axis; sizes are of its own variables."""

    function: Any
    axes: list[PaddedAxis]
    dtype: str
    fill: float

    def sizes(self, call: Any) -> dict[str, Any]:
        """Return the sizes that the kernel takes for one call, by their names."""
        known = dimensions_of_call(self.function, call)

        def of_call(expression: Any) -> Any:
            if isinstance(expression, int):
                return tirx.IntImm("int64", expression)
            return tvm_ffi.structural_map(expression, (tirx.Var, lambda var: known.get(hash(var), var)))

        named = {f"{name}.{number}": each for number, axis in enumerate(self.axes) for name, each in axis._asdict().items()}
        for number, name in enumerate(("source", "extent")):
            total: Any = tirx.IntImm("int64", 1)
            for axis in self.axes:
                total = total * getattr(axis, name)
            named[f"elements.{number}"] = total
        return {name: of_call(each) for name, each in named.items()}


def _with_kernels(module: tvm.IRModule, paddings: Mapping[GlobalVar, _Padding]) -> tvm.IRModule:
    """Return the module with calls of one kernel in place of those of paddings."""
    view, kernels = view_of_main(module), dict[Any, tuple[GlobalVar, Any]]()
    mapping: dict[int, Expr] = {}

    def padded(call: Any) -> Any:
        padding = paddings[call.args[0]]
        key = len(padding.axes), padding.dtype, padding.fill
        if key not in kernels:
            name = f"padded_rows_{len(kernels)}"
            func = padded_rows(*key).with_attr("global_symbol", name).with_attr(KERNEL_ATTR, "padded_rows")
            kernels[key] = GlobalVar(name), func
            relax.expr._update_type(kernels[key][0], func.ty)
        callee, func = kernels[key]
        sizes = padding.sizes(call)
        given = [sizes[str(each.name)] for each in buffers_and_dimensions(func)[1]]
        return relax.call_tir(callee, relax.Tuple([call.args[1].fields[0], *given]), out_ty=call.ty_args[0])

    def body(writer: BodyWriter) -> Expr:
        for binding in view.bindings:
            call = call_to(binding.value, "call_tir")
            value = padded(call) if call is not None and call.args[0] in paddings else binding.value
            value = replace_operands(value, lambda var: mapping.get(hash(var), var))
            mapping[hash(binding.var)] = writer.emit(binding.var.name, value, is_output=view.is_returned(binding.var))
        return replace_operands(view.result, lambda var: mapping.get(hash(var), var))

    result = with_main(module, body)
    for callee, func in kernels.values():
        result.update_func(callee, func)
    return result


def _padding(function: Any) -> _Padding | None:
    """Return what a function fills and copies; None where it does something else, or its rows are of known length."""
    block = only_block(function)
    if block is None or len(block.iter_vars) < 2 or len(buffers_and_dimensions(function)[0]) != 2:
        return None
    turns, extents = [each.var for each in block.iter_vars], [each.dom.extent for each in block.iter_vars]
    value = block.body.value
    if (
        isinstance(extents[-1], IntImm)
        or not isinstance(value, Call)
        or str(getattr(value.op, "name", "")) != "prim.if_then_else"
    ):
        return None
    condition, copied, fill = value.args
    if not isinstance(fill, (tirx.FloatImm, IntImm)) or not isinstance(copied, TensorLoad) or len(copied.indices) != len(turns):
        return None
    bounds: list[list[Any]] = [[] for _ in turns]
    for part in _parts(condition):
        of = [number for number, turn in enumerate(turns) if _mentions(part, turn)]
        if len(of) != 1:
            return None
        bounds[of[0]].append(part)
    axes: list[PaddedAxis] = []
    for turn, extent, parts, index, source in zip(turns, extents, bounds, copied.indices, copied.source.ty.shape, strict=True):
        ends, offset = _ends(parts, turn, extent), None if loads_in(index) else _offset(index, turn)
        if ends is None or offset is None or any(_mentions(offset, each) for each in turns):
            return None
        axes.append(PaddedAxis(extent, *ends, offset, source))
    if any(size_of(each) is None for axis in axes for each in axis):
        return None
    return _Padding(function, axes, str(fill.ty.dtype), fill.value)


def _cut(function: Any) -> Any | None:
    """Return a function with its rows cut; None where it moves none, or they are of known length."""
    block = only_block(function)
    if block is None or len(block.iter_vars) == 0:
        return None
    turns, extents = [each.var for each in block.iter_vars], [each.dom.extent for each in block.iter_vars]
    value = block.body.value
    if isinstance(extents[-1], IntImm) or not isinstance(value, TensorLoad):
        return None
    if len(value.indices) == 0 or _is_row(value, turns[-1]):
        return None
    return _with_body(function, _single_or_all(block.body, turns, extents))


def _with_body(function: Any, body: Any) -> Any:
    """Return a function that does this instead."""
    root = function.body.block
    made = s_tir.SBlock(root.iter_vars, root.reads, root.writes, root.name_hint, body)
    return function.with_body(s_tir.SBlockRealize([], tirx.const(True, "bool"), made))


def _single_or_all(stored: Any, turns: Sequence[Any], extents: Sequence[Any]) -> Any:
    """Return a copy's loops, and those without the innermost one where that has one turn: then the next is in vectors."""
    zero = tirx.IntImm("int64", 0)
    single = tvm_ffi.structural_map(stored, (tirx.Var, lambda var: zero if var.same_as(turns[-1]) else var))
    both: list[Any] = [single, For(turns[-1], zero, extents[-1], tirx.ForKind.SERIAL, stored)]
    for number, body in enumerate(both):
        for turn, extent in zip(reversed(turns[:-1]), reversed(extents[:-1]), strict=True):
            own = tirx.Var(turn.name, "int64")
            inner = tvm_ffi.structural_map(body, (tirx.Var, lambda var, turn=turn, own=own: own if var.same_as(turn) else var))
            body = For(own, zero, extent, tirx.ForKind.SERIAL, inner)
        both[number] = body
    return tirx.IfThenElse(extents[-1].equal(1), *both)


def _is_row(value: Any, turn: Any) -> bool:
    """Return whether a value is that of neighbours in the turns of the innermost loop."""
    if not isinstance(value, TensorLoad) or len(value.indices) == 0:
        return False
    *outer, last = value.indices
    is_step = _offset(last, turn) is not None
    return is_step and not any(loads_in(each) for each in value.indices) and not any(_mentions(each, turn) for each in outer)


def _offset(index: Any, turn: Any) -> Any | None:
    """Return how far an index is behind a turn; None where that depends on the turn."""
    rest = tvm.sym.Analyzer().simplify(index - turn)
    return None if _mentions(rest, turn) else rest


def _mentions(expression: Any, var: Any) -> bool:
    found: list[Any] = []
    tvm_ffi.structural_walk(expression, (tirx.Var, lambda each: found.append(each) if each.same_as(var) else None))
    return bool(found)


def _ends(parts: Sequence[Any], turn: Any, extent: Any) -> tuple[Any, Any] | None:
    """Return [first; last) of the turns for which all parts hold, none where last is less; None where that is not known."""
    first, last = tirx.IntImm("int64", 0), extent
    for each in parts:
        if not isinstance(each, (LT, LE, GT, GE)):
            return None
        less, more = (each.a, each.b) if isinstance(each, (LT, LE)) else (each.b, each.a)
        is_below = _mentions(less, turn)
        offset = _offset(less if is_below else more, turn)
        other = more if is_below else less
        if offset is None or _mentions(other, turn):
            return None
        is_equal = isinstance(each, (LE, GE))
        if is_below:
            last = tirx.min(last, other - offset + int(is_equal))
        else:
            first = tirx.max(first, other - offset + int(not is_equal))
    simplify: Any = tvm.sym.Analyzer().simplify
    return simplify(first), simplify(last)


def _parts(condition: Any) -> list[Any]:
    return [*_parts(condition.a), *_parts(condition.b)] if isinstance(condition, And) else [condition]
