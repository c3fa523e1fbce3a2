"""Sums of products that stay float are rounded in one way, whether sizes are known or open.

Before, in a function that TVM fused::

    for i: p[i] = a[i] * b[i]
    for i: q[i] = c[i] * d[i]
    for i: y[i] = p[i] - q[i]

After::

    for i: y[i] = fma(a[i], b[i], -(c[i] * d[i]))

LLVM makes one instruction of a product and a sum where it sees both. It sees them in loops that are short enough to be written
out and joined, so the bits of a result would depend on which sizes are known. Here loops are joined first, and each sum of a
product is one operation, of two products with the first one. A product that two loops still share is kept from the sums of the
other one. A processor without such an instruction rounds products and sums one by one, and its functions stay as they are.
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm.ir import TensorLoad
from tvm.tirx import Add, BufferStore, IntImm, Mul, PrimFunc, Sub

from ....ir.untyped import s_tir, tirx
from ....runtime.llvm_host import has_features, triple_of

_NANS = {"float32": ("int32", 0x7FC00000), "float64": ("int64", 0x7FF8000000000000)}
"""The type of the bits of NaN, and its bits, by the types of which LLVM fuses products and sums."""


def settle_rounding(module: tvm.IRModule) -> tvm.IRModule:
    """Join the loops of float functions, and make each sum of a product one operation, for the target of the context."""
    target = tvm.target.Target.current(allow_none=True)
    if target is not None and not _has_fused_sums(target):
        return module
    changed: dict[Any, Any] = {}
    for var, function in module.functions_items():
        if isinstance(function, PrimFunc) and (_has_loops(function) or _has_products(function)):
            changed[var] = _settled(function)
    result = module.clone() if changed else module
    for var, function in changed.items():
        result.update_func(var, function)
    return result


def _has_fused_sums(target: tvm.target.Target) -> bool:
    """Return whether a processor multiplies and adds in one instruction."""
    if str(target.kind.name) != "llvm":
        return True
    architecture = triple_of(target).split("-")[0]
    if architecture in ("x86_64", "i686"):
        return has_features(("fma",), target)
    return not architecture.startswith("wasm")


def _has_loops(function: Any) -> bool:
    """Return whether something stays in memory between loops."""
    block = getattr(function.body, "block", None)
    return block is not None and len(block.alloc_buffers) > 0


def _has_products(function: Any) -> bool:
    """Return whether a product of floats may meet a sum."""
    found: set[type] = set()

    def seen(node: Any) -> None:
        if str(node.ty.dtype) in _NANS:
            found.add(type(node))

    tvm_ffi.structural_walk(function.body, [((Mul, Add, Sub), seen)])
    return Mul in found and len(found) > 1


def _settled(function: Any) -> Any:
    joined = _joined(function)
    body = tvm_ffi.structural_map(joined.body, [(Add, _sum), (Sub, _difference)])
    shared = _shared(joined)
    if shared:
        body = tvm_ffi.structural_map(body, (BufferStore, lambda node: _rounded_alone(node, shared)))
    return joined.with_body(body)


# ------------------------------------------------------------------------------------------------------------ one loop


def _joined(function: Any) -> Any:
    """Compute in the loop that reads it what another loop over the same elements computes, where it is read once."""
    schedule: Any = s_tir.Schedule(function)
    try:
        blocks = schedule.get_child_blocks(schedule.get_sblock("root"))
    except s_tir.ScheduleError:  # other loops than TVM's legalization makes
        return function
    for block in blocks:
        consumers = schedule.get_consumers(block)
        if len(consumers) == 1 and _is_read_in_step(schedule.get(block), schedule.get(consumers[0])):
            try:
                schedule.compute_inline(block)
            except s_tir.ScheduleError:  # a result, or a loop that has several
                continue
    return schedule.mod["main"]


def _is_read_in_step(producer: Any, consumer: Any) -> bool:
    """Return whether a block reads what another one stores once, each element in one turn of its own."""
    stored = producer.body
    if not isinstance(stored, BufferStore):
        return False
    loads: list[Any] = []

    def loaded(node: Any) -> None:
        if node.source.same_as(stored.buffer):
            loads.append(node)

    tvm_ffi.structural_walk(consumer.body, (TensorLoad, loaded))
    if len(loads) != 1:
        return False
    turns = [each.var for each in consumer.iter_vars if not _is_one(each.dom.extent)]
    indices = [index for index in loads[0].indices if not isinstance(index, IntImm)]
    return all(any(index.same_as(turn) for index in indices) for turn in turns) and all(
        any(index.same_as(each.var) for each in consumer.iter_vars) for index in indices
    )


def _is_one(extent: Any) -> bool:
    return isinstance(extent, IntImm) and int(extent) == 1


# ----------------------------------------------------------------------------------------------------------- rounding


def _sum(node: Any) -> Any:
    if isinstance(node.a, Mul):
        return _fused(node, node.a.a, node.a.b, node.b)
    return _fused(node, node.b.a, node.b.b, node.a) if isinstance(node.b, Mul) else node


def _difference(node: Any) -> Any:
    if isinstance(node.a, Mul):
        return _fused(node, node.a.a, node.a.b, -node.b)
    if not isinstance(node.b, Mul):
        return node
    one: Any = node.b.a
    return _fused(node, -one, node.b.b, node.a)


def _fused(node: Any, one: Any, other: Any, addend: Any) -> Any:
    dtype = str(node.ty.dtype)
    return tirx.call_llvm_pure_intrin(dtype, "llvm.fma", one, other, addend) if dtype in _NANS else node


def _shared(function: Any) -> list[Any]:
    """Return the buffers that the function both writes and reads."""
    stored: list[Any] = []
    loaded: list[Any] = []
    tvm_ffi.structural_walk(
        function.body,
        ((BufferStore, lambda node: stored.append(node.buffer)), (TensorLoad, lambda node: loaded.append(node.source))),
    )
    return [buffer for buffer in stored if any(buffer.same_as(each) for each in loaded)]


def _rounded_alone(node: Any, shared: list[Any]) -> Any:
    """Let a product that is stored for another loop pass a choice, through which LLVM sees none: of one NaN another."""
    dtype = str(node.value.ty.dtype)
    if not isinstance(node.value, Mul) or dtype not in _NANS or not any(node.buffer.same_as(each) for each in shared):
        return node
    kind, bits = _NANS[dtype]
    is_other = tirx.reinterpret(kind, node.value) == tirx.IntImm(kind, bits + 1)
    value = tirx.Select(is_other, tirx.reinterpret(dtype, tirx.IntImm(kind, bits)), node.value)
    return BufferStore(node.buffer, value, node.indices)
