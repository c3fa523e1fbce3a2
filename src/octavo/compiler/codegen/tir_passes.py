"""From PrimFuncs to an LLVM module: TVM's passes below TIR. Knows no graph, no files and no caches.

Three lists of passes, by what a function is made of. What TVM legalised consists of s_tir blocks and takes its default pipeline.
Octavo's kernels are plain loops over flat buffers whose loads, stores and local accumulators are final: of that pipeline they
need a third, and the rest (compaction of buffers, virtual threads, GPU memory scopes, hoisting) costs more than LLVM does. What
only calls kernels needs hardly any.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import tvm
import tvm_ffi
from tvm.ir import Call, StringImm
from tvm.s_tir import SBlock
from tvm.tirx import AllocBuffer, Bind, DeclBuffer, IfThenElse, IntImm, Var

from ...ir.graph.evaluate import at_level
from ...ir.graph.kernel_attributes import KERNEL_ATTR, LLVM_ATTR, OPEN_ATTR, SCALAR_LOOPS_ATTR
from ...ir.graph.nodes import with_body
from ...ir.untyped import s_tir, tirx
from ...runtime.llvm_host import has_features

PLAIN_CALL = 1
"""TVM's CallingConv::kCPackedFunc: a function that gets no checking wrapper around it; its callers pass plain pointers."""

CALLS_ATTR = "octavo.calls"
"""Attribute of a function that calls others, computes next to nothing itself and consists of no s_tir blocks."""

_FOR_BUFFERS = ("s_tir.CompactBufferAllocation",)
"""Of TVM's default pipeline, what does nothing for functions without buffers of their own, but looks at all that they index."""

_FOR_CONDITIONS = ("s_tir.HoistIfThenElse",)
"""What does nothing without conditional statements but to simplify, as is done once more behind it."""

STACK_BYTES = 1 << 14
"""Bytes of buffers of its own that a kernel may have on the stack."""

KERNEL_LEVEL = 2
"""LLVM's optimization of kernels. They come unrolled and in vectors: -O3 unrolls them again, which takes up to half as long again
to compile, and no network runs faster for it."""

_WITHOUT_LOOP_VECTORS = 1
"""The most that LLVM optimizes without its loop vectorizer. An option turns that off, too ("cl-opt"), and in all of the process:
whatever other threads compile meanwhile stays scalar as well."""

_KEPT = "disable_lower_builtin"
"""TVM's annotation (tir::transform::kDisableLowerTVMBuiltin) of what LowerTVMBuiltin must leave as it is."""

_NEED_WRAPPING = (
    "tirx.tvm_call_packed",
    "tirx.tvm_call_cpacked",
    "tirx.tvm_stack_alloca",
    "tirx.tvm_stack_make_array",
    "tirx.tvm_stack_make_shape",
)
"""Builtins that LowerTVMBuiltin must rewrite."""

_AS_IT_IS = "octavo_as_it_is"
"""Stands, while TVM's passes run, for a function that returns its argument and that they know nothing about."""

HALF_CONVERSIONS = ("__truncsfhf2", "__extendhfsf2")
_NO_HALF_CONVERSIONS = "".join(f"@{name} = common hidden global i8 0\n" for name in HALF_CONVERSIONS)
"""TVM gives each module two functions that convert half floats, weak ones, which LLVM optimizes and writes though nothing calls
them: most of the time that a small kernel takes to compile. A common symbol takes a weak one's place when LLVM links modules, and
any number of objects may have it."""

Functions = Mapping[str, tvm.tirx.PrimFunc]


def kernel_passes(is_open: bool) -> tvm.transform.Pass:
    """Return the passes for kernels of plain loops over flat buffers, up to functions of TVM's calling convention.

    Parameters
    ----------
    is_open
        Whether one of them has open sizes.
    """
    return tvm.transform.Sequential(
        [
            tirx.transform.BF16ComputeLegalize(),
            tirx.transform.VectorizeLoop(),
            # Without it every local accumulator becomes its own array on the stack, and LLVM keeps none in registers.
            tirx.transform.StorageRewrite(),
            tirx.transform.UnrollLoop(),
            # Where LLVM optimizes nothing, what takes longer than to write the unsimplified code doesn't pay either.
            *([tirx.transform.StmtSimplify()] if KERNEL_LEVEL else []),
            s_tir.transform.RewriteUnsafeSelect(),
            # It takes a tenth of the time to compile. LLVM finds what it finds among numbers, not among products of open sizes (a
            # U-Net is a fifth slower without it); what LLVM does not optimize is run too seldom for this to pay.
            *([tirx.transform.CommonSubexprElim()] if is_open and KERNEL_LEVEL else []),
            tirx.transform.MakePackedAPI(),
            tirx.transform.BF16StorageLegalize(),
        ]
    )


def call_passes() -> tvm.transform.Pass:
    """Return the passes for functions that only call others, up to TVM's calling convention."""
    return tvm.transform.Sequential(
        [
            tirx.transform.FlattenBuffer(),
            tirx.transform.StmtSimplify(),
            tirx.transform.MakePackedAPI(),
            tirx.transform.BF16StorageLegalize(),
        ]
    )


def llvm_module(functions: Functions, target: tvm.target.Target) -> Any:
    """Compile functions to one LLVM module (tvm.runtime.Module): optimised IR, which emits objects or runs in place.

    The same input gives the same code whatever TVM PassContext the caller has entered: machine code is cached by its input.

    Parameters
    ----------
    functions
        By symbol. Those that carry the attribute KERNEL_ATTR must be plain loops, those with CALLS_ATTR what it says; those whose
        calling convention is PLAIN_CALL take plain pointers, and return 0 at their end; the others take TVM's packed arguments.
        None checks what it is given.
    """
    kernels = {symbol: function for symbol, function in functions.items() if KERNEL_ATTR in function.attrs}
    callers = {symbol: function for symbol, function in functions.items() if CALLS_ATTR in function.attrs}
    others = {symbol: function for symbol, function in functions.items() if symbol not in kernels and symbol not in callers}
    with tvm.transform.PassContext(opt_level=2, disabled_pass=_unneeded(others.values())), target:
        default, _, _ = tirx.get_default_tir_pipeline(target)
        lowered: dict[Any, Any] = {}
        of_kernels = kernel_passes(any(OPEN_ATTR in function.attrs for function in kernels.values()))
        for passes, some in ((of_kernels, kernels), (call_passes(), callers), (default, others)):
            if some:
                hidden = {symbol: with_hidden_values(function) for symbol, function in some.items()}
                module = _bound(hidden, target)
                if some is kernels and not all(map(_is_flat, some.values())):
                    module = tirx.transform.FlattenBuffer()(module)
                lowered.update(passes(module).functions.items())
        plain = {symbol for symbol, function in functions.items() if function.attrs.get("calling_conv") == PLAIN_CALL}
        # To optimize what runs once a call and calls the rest costs more than it will ever save.
        level = 0 if len(callers) == len(functions) else KERNEL_LEVEL
        if any(SCALAR_LOOPS_ATTR in function.attrs or _repeats(function) for function in lowered.values()):
            level = min(level, _WITHOUT_LOOP_VECTORS)
        placeholders = _NO_HALF_CONVERSIONS if has_placeholders(target) else ""
        return tvm.get_global_func("target.build.llvm")(_finished(lowered, plain, placeholders), at_level(target, level))


def has_placeholders(target: tvm.target.Target) -> bool:
    """Return whether in code for a target HALF_CONVERSIONS are no functions: with instructions for them LLVM calls none."""
    return is_linux_x86(target) and has_features(("f16c",), target)


def is_linux_x86(target: tvm.target.Target) -> bool:
    """Return whether code for a target is for Linux on x86-64, as this machine's own is where the target names no other."""
    triple = str(target.attrs.get("mtriple") or tvm.target.codegen.llvm_get_system_triple())
    return triple.startswith("x86_64") and "linux" in triple


def _bound(functions: Functions, target: tvm.target.Target) -> tvm.IRModule:
    named: Any = {symbol: function.with_attr("global_symbol", symbol) for symbol, function in functions.items()}
    return tirx.transform.BindTarget(target.with_host(target))(tvm.IRModule(named))


def _finished(lowered: dict[Any, Any], plain: set[str], text: str) -> tvm.IRModule:
    """Replace what LLVM doesn't know; `plain` functions take pointers, the others TVM's packed arguments.

    LLVM is to read the module's `text`, and what kernels bring along: it links both into what the functions become.
    """
    light = {var: function for var, function in lowered.items() if var.name_hint in plain and _is_light(function)}
    heavy = {
        var: _with_device(function) if var.name_hint in plain else function
        for var, function in lowered.items()
        if var not in light
    }
    heavy = {var: _with_registers(function) for var, function in heavy.items()}
    # The checks of an entry's arguments are most of its machine code; who calls it has checked them, or made them.
    unchecked = tirx.transform.SkipAssert()(tvm.IRModule(heavy))
    wrapped = dict(tirx.transform.LowerTVMBuiltin()(unchecked).functions.items())
    complete: dict[Any, Any] = {}
    for number, (var, function) in enumerate({**light, **wrapped}.items()):
        body = function.body
        if var.name_hint in plain:
            # Only here: LowerTVMBuiltin puts the release of a kernel's buffers last, and behind a return it would never run.
            body = tirx.SeqStmt([body, tirx.Return(tirx.IntImm("int32", 0))])
        # Only here, too: the passes look for a parallel loop no more.
        texts = (text if number == 0 else "", str(function.attrs.get(LLVM_ATTR, "")))
        for each in filter(None, texts):
            body = tirx.AttrStmt(tirx.IntImm("int32", 0), "pragma_import_llvm", StringImm(each), body)
        complete[var] = function if body is function.body else with_body(function, body)
    final = tirx.transform.LowerIntrin()(tvm.IRModule(complete))
    return tvm.IRModule({var: as_given(function) for var, function in final.functions.items()})


def _unneeded(functions: Iterable[Any]) -> list[str]:
    """Return the passes of the default pipeline that none of the functions needs."""
    buffers: list[Any] = []
    conditions: list[Any] = []
    in_block = SBlock, lambda node: buffers.extend(node.alloc_buffers)
    for function in functions:
        tvm_ffi.structural_walk(function.body, ((AllocBuffer, buffers.append), in_block, (IfThenElse, conditions.append)))
    return [*(() if buffers else _FOR_BUFFERS), *(() if conditions else _FOR_CONDITIONS)]


def _is_flat(function: Any) -> bool:
    """Return whether FlattenBuffer has nothing to do for a kernel: it writes each index anew, to find that it stays as it is.

    Of a buffer of booleans it makes one of bytes.
    """
    declared: list[Any] = []
    tvm_ffi.structural_walk(function.body, (((AllocBuffer, DeclBuffer), lambda node: declared.append(node.buffer.ty)),))
    buffers = (*(param.ty for param in function.params if hasattr(param.ty, "shape")), *declared)
    return all(len(each.shape) == 1 and not each.strides and str(each.dtype) != "bool" for each in buffers)


def with_hidden_values(function: Any) -> Any:
    """Hide from TVM's passes what the integers that a kernel of open sizes binds are made of.

    Their simplifier puts the value of a variable in wherever the variable is read, and the values of those in turn: with numbers
    little is left of that, with products and quotients of sizes it takes seconds for one convolution.
    """
    if OPEN_ATTR not in function.attrs:
        return function

    def hidden(node: Any) -> Any:
        value, dtype = node.value, str(node.value.ty.dtype)
        if dtype not in ("int32", "int64") or isinstance(value, (IntImm, Var)):
            return node
        return Bind(node.var, tirx.call_extern(dtype, _AS_IT_IS, value))

    return with_body(function, tvm_ffi.structural_map(function.body, (Bind, hidden)))


def as_given(function: Any) -> Any:
    """Undo `with_hidden_values`: LLVM is to see the values."""
    if OPEN_ATTR not in function.attrs:
        return function

    def shown(node: Any) -> Any:
        is_hidden = getattr(node.op, "name", "") == "tirx.call_extern" and str(node.args[0].value) == _AS_IT_IS
        return node.args[1] if is_hidden else node

    return with_body(function, tvm_ffi.structural_map(function.body, (Call, shown)))


def _repeats(function: Any) -> bool:
    """Return whether a loop reads places again and again, by its variable's remainder of a power of two, as a tile does.

    LLVM's loop vectorizer takes such a remainder for a narrow counter that never wraps: of (18, 16, 5) tiled from (3, 4, 5), in
    rows of 4, it wrote every other four rows wrong.
    """
    loops: set[int] = set()
    rests: set[int] = set()

    def remainder(node: Any) -> None:
        if isinstance(node.b, IntImm) and int(node.b) > 1 and int(node.b) & (int(node.b) - 1) == 0:
            rests.add(hash(node.a))

    walks = ((tirx.For, lambda node: loops.add(hash(node.loop_var))), (tirx.FloorMod, remainder), (tirx.Mod, remainder))
    tvm_ffi.structural_walk(function.body, walks)
    return not loops.isdisjoint(rests)


def _is_light(function: Any) -> bool:
    """Return whether a kernel can do without LowerTVMBuiltin, which takes its buffers from the heap.

    On the stack LLVM keeps them in registers as far as they go.
    """
    sizes: list[int] = []
    builtins: list[Call] = []

    def allocated(node: Any) -> None:
        size = -(-int(tvm.DataType(str(node.buffer.ty.dtype)).bits) // 8)
        for dim in node.buffer.ty.shape:
            size *= int(dim) if isinstance(dim, IntImm) else STACK_BYTES + 1
        sizes.append(size)

    def called(node: Any) -> None:
        if getattr(node.op, "name", "") in _NEED_WRAPPING:
            builtins.append(node)

    tvm_ffi.structural_walk(function.body, ((AllocBuffer, allocated), (Call, called)))
    return not builtins and sum(sizes) <= STACK_BYTES


def _with_registers(function: Any) -> Any:
    """Keep accumulators ("local" buffers) where LLVM finds registers for them: LowerTVMBuiltin would take them from the heap."""
    if KERNEL_ATTR not in function.attrs and CALLS_ATTR not in function.attrs:
        return function

    def kept(node: Any) -> Any:
        if str(node.buffer.ty.storage_scope) != "local":
            return node
        return AllocBuffer(node.buffer, {**node.annotations, _KEPT: tirx.IntImm("bool", 1)})

    return with_body(function, tvm_ffi.structural_map(function.body, (AllocBuffer, kept)))


def _with_device(function: Any) -> Any:
    """Set the device of a kernel's own buffers: TVM's checking wrapper would, which the kernels don't have."""
    body = function.body
    for key, value in (("device_id", 0), ("device_type", tvm.cpu().dlpack_device_type())):
        body = tirx.AttrStmt("default", key, tirx.IntImm("int32", value), body)
    return with_body(function, body)
