"""Indices, masks and what only moves are computed where they are read: what follows from sizes and inputs is no chain of calls.

Before, each of them a kernel::

    step = arange(s); is_less = less(step, 0); behind = add(step, s); index = where(is_less, behind, step); y = take(table, index)

After, one::

    y[i, j] = table[i, j]

Where sizes are known, TVM folds such chains. An op is inlined that stores each element once and makes integers, conditions, or
copies of values: then no rounding depends on where it stands. What takes long is inlined where it is computed no more often than
before. A reader that is no such loop, a kernel of ours or a sum, has it in memory. Runs after TVM has folded constants, before it
fuses loops.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from math import prod
from typing import Any

import tvm
import tvm_ffi
from tvm.ir import Call, GlobalVar, TensorLoad
from tvm.relax import Expr, Var
from tvm.relax.utils import gen_call_tir_inputs
from tvm.tirx import (
    GE,
    GT,
    LE,
    LT,
    Add,
    BufferLoad,
    Cast,
    Div,
    FloorDiv,
    FloorMod,
    IntImm,
    Max,
    Min,
    Mul,
    PrimFunc,
    RShift,
    Select,
    Sub,
)

from ....ir.graph.dataflow import (
    BodyWriter,
    DataflowView,
    attrs_of,
    call_to,
    new_main,
    operand_vars,
    replace_operands,
    static_shape,
    view_of_main,
)
from ....ir.graph.kernel_attributes import VIEW_ATTR
from ....ir.graph.sizes import buffers_and_dimensions, is_dimension
from ....ir.untyped import relax, te, tirx
from ....runtime.size import is_surely
from .places import dimensions_of_call, dims, loads_in, only_block, simplified, terms, unfolded

_MOST = 96
"""Loads, choices and conversions of a value: chains of choices, each of which names its operand three times, grow fast."""
_LIGHT = 8


@dataclass(eq=False, kw_only=True, slots=True)
class _Loop:
    """An op as a loop: for each turn of `turns` it stores one `value`, which loads from the buffers of `read`."""

    var: Var
    name: str
    turns: list[Any]
    extents: list[Any]
    value: Any
    read: dict[Any, Expr] = field(default_factory=dict[Any, Expr])
    is_view: bool = False
    is_changed: bool = False
    pattern: int = 8

    def loads(self, operand: Var) -> list[Any]:
        """Return what it loads of an operand."""
        buffers = [buffer for buffer, expr in self.read.items() if expr.same_as(operand)]
        return [load for load in loads_in(self.value) if any(load.source.same_as(buffer) for buffer in buffers)]


def inline_indices(module: tvm.IRModule) -> tvm.IRModule:
    """Compute integers, conditions and moved values where they are read, and call no kernel for them."""
    view = view_of_main(module)
    loops: dict[Var, _Loop] = {}
    buffers: dict[int, Any] = {}
    for binding in view.bindings:
        loop = _loop_of(module, binding.var, binding.value, buffers)
        if loop is not None:
            loops[binding.var] = loop
    if not any(_is_exact(loop) for loop in loops.values()):
        return module
    kept = _inlined(view, loops)
    if not any(loop.is_changed for loop in kept.values()):
        return module
    return _with_kept(module, view, loops, kept)


# ------------------------------------------------------------------------------------------------------------ reading


def _loop_of(module: tvm.IRModule, var: Var, value: Expr, known_buffers: dict[int, Any]) -> _Loop | None:
    """Return an op as a loop over main's own sizes and operands; None where it is none, or several.

    Each operand has one of `known_buffers` in all loops, by its address.
    """
    call = call_to(value, "call_tir")
    if call is None or not isinstance(call.args[0], GlobalVar) or not isinstance(call.args[1], relax.Tuple):
        return None
    shape = static_shape(var)
    function: Any = module[call.args[0]]
    if shape is None or not isinstance(function, PrimFunc):
        return None
    inner = only_block(function)
    if inner is None:
        return None
    known: dict[int, Any] = {}
    operands = _bound(function, call, known)
    if operands is None:
        return None
    buffers: dict[int, tuple[Any, Expr]] = {}
    for buffer, operand in operands:
        if hash(operand) not in known_buffers:
            known_buffers[hash(operand)] = tirx.decl_buffer(dims(operand), str(buffer.ty.dtype))
        buffers[hash(buffer)] = known_buffers[hash(operand)], operand
    turns = [each.var for each in inner.iter_vars]

    is_view = len(operands) == 1 and prod(shape) == prod(static_shape(operands[0][1]) or (-1,)) and _is_reshape(function)

    def load(node: Any) -> Any:
        return BufferLoad(buffers[hash(node.source)][0], node.indices) if hash(node.source) in buffers else node

    stored = tvm_ffi.structural_map(inner.body.value, ((TensorLoad, load), (tirx.Var, lambda each: known.get(hash(each), each))))
    found = {hash(load.source) for load in loads_in(stored)}
    read = {buffer: operand for buffer, operand in buffers.values() if hash(buffer) in found}
    if len(read) < len(found):
        return None
    if is_view:
        [(buffer, operand)] = read.items()
        stored = BufferLoad(buffer, unfolded(operand, var, turns))
    return _Loop(
        var=var,
        name=str(call.args[0].name_hint),
        turns=turns,
        extents=dims(var),
        value=stored,
        read=read,
        is_view=is_view,
        pattern=int(attrs_of(function).get("op_pattern", 8)),
    )


def _bound(function: Any, call: Any, known: dict[int, Any]) -> list[tuple[Any, Expr]] | None:
    """Return the buffers that a function reads, with what a call gives for each; `known` are then its sizes, by variable."""
    given = list(call.args[1].fields)
    buffers, sizes = buffers_and_dimensions(function)
    tensors = [each for each in given if not is_dimension(each)]
    numbers = [each for each in given if is_dimension(each)]
    if len(buffers) != len(tensors) + 1 or len(sizes) != len(numbers) or len(call.args) > 2:
        return None
    known |= dimensions_of_call(function, call)
    return list(zip(buffers[:-1], tensors, strict=True))


def _is_exact(loop: _Loop) -> bool:
    """Return whether an op computes nothing that is rounded, and nothing that TVM can't simplify, as numbers without sign.

    Nor is what is shifted a place or a condition: it is arithmetic of fixed points, of which TVM fuses what it can.
    """
    found: list[Any] = []

    def seen(node: Any) -> None:
        is_choice = isinstance(node, Call) and isinstance(node.op, tvm.ir.Op) and str(node.op.name) == "prim.if_then_else"
        if "float" in str(node.ty.dtype) and not is_choice:
            found.append(node)

    def compared(node: Any) -> None:
        if str(node.a.ty.dtype) in ("uint32", "uint64"):
            found.append(node)

    tvm_ffi.structural_walk(loop.value, ((Add, Sub, Mul, Div, Min, Max, Call), seen))
    tvm_ffi.structural_walk(loop.value, ((Add, Sub, Mul, Div, Min, Max, LT, LE, GT, GE), compared))
    tvm_ffi.structural_walk(loop.value, (RShift, found.append))
    return not found


def _is_reshape(function: Any) -> bool:
    return VIEW_ATTR in attrs_of(function) or relax.analysis.has_reshape_pattern(function)


def _work(value: Any) -> int:
    """Return how many loads, choices and conversions a value takes."""
    found: list[Any] = []
    tvm_ffi.structural_walk(value, ((TensorLoad, Select, Call, Cast), found.append))
    return len(found)


def _is_light(loop: _Loop) -> bool:
    """Return whether an element takes no longer than to load it from memory.

    No division then, few operations, and a place that is looked up is that of a row. Floats are copied in the order in which
    they lie.
    """
    slow: list[Any] = []

    def note_division(node: Any) -> None:
        if not isinstance(node.b, IntImm):
            slow.append(node)

    tvm_ffi.structural_walk(loop.value, ((FloorDiv, FloorMod), note_division))
    inner = _innermost(loop)
    loads = loads_in(loop.value)
    looked_up = [each for load in loads for index in load.indices for each in loads_in(index)]
    is_by_row = inner is None or not any(_mentions(index, inner) for load in looked_up for index in load.indices)
    is_copy = "float" in str(loop.value.ty.dtype)
    is_in_order = inner is None or all(
        not load.indices or _is_step(load.indices[-1], inner) for load in loads if load not in looked_up
    )
    return not slow and is_by_row and (is_in_order or not is_copy) and _work(loop.value) <= _LIGHT


def _innermost(loop: _Loop) -> Any | None:
    """Return the turn of the innermost loop that has several; None where none has."""
    several = [turn for turn, extent in zip(loop.turns, loop.extents, strict=True) if not _is_one(extent)]
    return several[-1] if several else None


def _is_step(index: Any, turn: Any) -> bool:
    """Return whether an index goes up by one with a turn."""
    if isinstance(index, Sub):
        return _is_step(index.a, turn) and not _mentions(index.b, turn)
    return any(term.same_as(turn) for term in terms(index))


# ----------------------------------------------------------------------------------------------------------- inlining


def _inlined(view: DataflowView, loops: Mapping[Var, _Loop]) -> dict[Var, _Loop]:
    """Return the loops that remain, with those inlined that need not."""
    kept: dict[Var, _Loop] = {}
    in_memory: set[Var] = set(operand_vars(view.result))
    may_read: dict[Expr, dict[_Loop, None]] = {}

    def note(reader: _Loop) -> None:
        for expr in reader.read.values():
            may_read.setdefault(expr, {})[reader] = None

    for binding in reversed(view.bindings):
        var, loop = binding.var, loops.get(binding.var)
        readers = [each for each in may_read.pop(var, ()) if any(expr.same_as(var) for expr in each.read.values())]
        if loop is not None and _is_exact(loop) and var not in in_memory:
            for reader in readers if len(readers) == 1 or _is_light(loop) else ():
                _inline(loop, reader, view)
                note(reader)
            readers = [each for each in readers if any(expr.same_as(var) for expr in each.read.values())]
        if loop is None:
            in_memory.update(operand_vars(binding.value))
        elif readers or var in in_memory:
            kept[var] = loop
            note(loop)
            # What a loop is given and does not read (zeros of its shape) its function still takes.
            read = () if loop.is_view else loop.read.values()
            in_memory.update(each for each in operand_vars(binding.value) if not any(each.same_as(expr) for expr in read))
    return kept


def _inline(loop: _Loop, reader: _Loop, view: DataflowView) -> None:
    """Compute in `reader` what it loads of a loop's result, where that takes no longer."""
    if loop.is_view and all(not isinstance(expr, Var) or not _is_computed(view, expr) for expr in loop.read.values()):
        return  # another view of what is in memory costs nothing
    loads = reader.loads(loop.var)
    if not _is_light(loop) and not loop.is_view and not (_are_as_many(loop, reader) or _is_by_row(reader, loads)):
        return
    source = loads[0].source

    def value(node: Any) -> Any:
        if not node.source.same_as(source):
            return node
        places = {hash(turn): index for turn, index in zip(loop.turns, node.indices, strict=True)}
        return tvm_ffi.structural_map(loop.value, (tirx.Var, lambda each: places.get(hash(each), each)))

    made = simplified(tvm_ffi.structural_map(reader.value, (TensorLoad, value)), reader.turns, reader.extents)
    if _work(made) > _MOST:
        return
    reader.value, reader.is_changed = made, True
    found = {hash(load.source) for load in loads_in(made)}
    reader.read = {buffer: expr for buffer, expr in (reader.read | loop.read).items() if hash(buffer) in found}


def _is_computed(view: DataflowView, var: Var) -> bool:
    return call_to(view.definition(var), "call_tir") is not None


def _are_as_many(loop: _Loop, reader: _Loop) -> bool:
    """Return whether a reader has no more elements than what it reads."""
    sizes = [static_shape(each.var) or () for each in (loop, reader)]
    return is_surely(prod(sizes[0]), prod(sizes[1]))


def _is_by_row(reader: _Loop, loads: Sequence[Any]) -> bool:
    """Return whether loads are of one place for all turns of the innermost loop that has several."""
    inner = _innermost(reader)
    return inner is not None and not any(_mentions(index, inner) for load in loads for index in load.indices)


def _is_one(extent: Any) -> bool:
    return isinstance(extent, IntImm) and int(extent) == 1


def _mentions(expression: Any, var: Any) -> bool:
    found: list[Any] = []
    tvm_ffi.structural_walk(expression, (tirx.Var, lambda each: found.append(each) if each.same_as(var) else None))
    return bool(found)


# ------------------------------------------------------------------------------------------------------------ writing


def _with_kept(module: tvm.IRModule, view: DataflowView, loops: Mapping[Var, _Loop], kept: Mapping[Var, _Loop]) -> tvm.IRModule:
    """Return the module of the loops that remain."""
    functions: dict[GlobalVar, Any] = dict(module.functions.items())
    names = {str(var.name_hint) for var in functions}
    main = module["main"]

    def body(writer: BodyWriter) -> Expr:
        mapping: dict[Var, Expr] = {}
        for binding in view.bindings:
            loop = kept.get(binding.var)
            if loop is None and binding.var in loops:
                continue
            value = replace_operands(binding.value, lambda var: mapping.get(var, var))
            if loop is not None and loop.is_changed:
                function, operands, ty = _function(loop, writer, mapping)
                name = next(each for each in _names(loop.name) if each not in names)
                names.add(name)
                callee = GlobalVar(name)
                relax.expr._update_type(callee, function.ty)
                functions[callee] = function
                value = relax.call_tir(callee, operands, ty)
            mapping[binding.var] = writer.emit(binding.var.name, value, is_output=view.is_returned(binding.var))
        return replace_operands(view.result, lambda var: mapping.get(var, var))

    made = new_main(list(main.params), body, attrs_of(main))
    place = module.get_global_var("main")
    return tvm.IRModule({**functions, place: made}, attrs=module.attrs)


def _names(name: str) -> Iterator[str]:
    yield f"{name}_of_indices"
    yield from (f"{name}_of_indices{number}" for number in count(1))


def _function(loop: _Loop, writer: BodyWriter, mapping: Mapping[Var, Expr]) -> tuple[Any, Any, Any]:
    """Return a loop as a PrimFunc, the operands of its call and the type of the result."""
    buffers = list(loop.read)
    operands = [mapping.get(expr, expr) if isinstance(expr, Var) else expr for expr in loop.read.values()]
    own = {hash(each) for each in (*loop.turns, *buffers)}
    found: dict[int, Any] = {}

    def note(each: Any) -> None:
        if hash(each) not in own:
            found[hash(each)] = each

    for expression in (loop.value, *loop.extents):
        tvm_ffi.structural_walk(expression, (tirx.Var, note))

    def computed(tensors: list[Any], sizes: list[Any]) -> Any:
        given = {hash(buffer): tensor for buffer, tensor in zip(buffers, tensors, strict=True)}
        known = dict(zip(found, sizes, strict=True))

        def mapped(value: Any, places: Mapping[int, Any]) -> Any:
            return tvm_ffi.structural_map(
                value,
                (
                    (TensorLoad, lambda node: given[hash(node.source)](*node.indices)),
                    (tirx.Var, lambda each: places.get(hash(each), each)),
                ),
            )

        extents = [mapped(extent, known) for extent in loop.extents]

        def element(*index: Any) -> Any:
            return mapped(loop.value, known | {hash(turn): each for turn, each in zip(loop.turns, index, strict=True)})

        return te.compute(extents, element, name=loop.name)

    attributes = {"op_pattern": max(loop.pattern, 2)}
    return gen_call_tir_inputs(computed, operands, list(found.values()), primfunc_attrs=attributes)
