"""From a linked Relax module to machine code: one native function where shapes are static, TVM's virtual machine elsewhere."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import tvm
import tvm_ffi
from tvm import relax
from tvm import tirx as _tirx
from tvm.ir import Call, GenericConst

from ..errors import CompileError
from ..graph.dataflow import DataflowView
from .program import ENTRY, Program, native_program

# TVM annotates its constructors more narrowly than what they take.
tirx: Any = _tirx

_STACK = 1 << 14
"""Bytes of buffers of its own that a kernel may have on the stack."""

_NEED_WRAPPING = (
    "tirx.tvm_call_packed",
    "tirx.tvm_call_cpacked",
    "tirx.tvm_stack_alloca",
    "tirx.tvm_stack_make_array",
    "tirx.tvm_stack_make_shape",
)
"""Builtins that LowerTVMBuiltin must rewrite."""

_NEVER_INLINE = "-inline-instr-cost:int=1000000"
"""Kernels stay calls: TVM marks the buffers of a function as different memory by their variables, and one kernel's output is the
next one's input. Inlined side by side, LLVM would take a store for dead that the next kernel reads."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Code:
    """Machine code and what it is called with.

    Parameters
    ----------
    library
        A tvm.runtime.Module with the entry of a Program, or a tvm.relax.VMExecutable.
    constants, workspace, outputs
        The Program's; None for the virtual machine.
    """

    library: Any
    constants: npt.NDArray[np.uint8] | None = None
    workspace: int | None = None
    outputs: tuple[tuple[tuple[int, ...], str], ...] | None = None


def vm_passes() -> tvm.transform.Pass:
    """Return the passes from a Relax module of call_tir to the VM's form, with memory planned once.

    TVM's default pipeline has the same passes with operator patterns and fusion before them; those ran already, before kernels of
    plain loops entered.
    """
    return tvm.transform.Sequential(
        [
            relax.transform.ToNonDataflow(),
            relax.transform.RemovePurityChecking(),
            relax.transform.CallTIRRewrite(),
            relax.transform.StaticPlanBlockMemory(),
            relax.transform.LowerAllocTensor(),
            relax.transform.KillAfterLastUse(),
            relax.transform.LowerRuntimeBuiltin(),
            relax.transform.ComputePrimValue(),
            relax.transform.VMShapeLower(),
            relax.transform.AttachGlobalSymbol(),
        ]
    )


def generate(module: tvm.IRModule, target: tvm.target.Target) -> Code:
    """Compile a linked module.

    Raises
    ------
    CompileError
        When TVM or LLVM fails; the message holds the last line of theirs.
    """
    program = native_program(module)
    try:
        with target:
            if program is None:
                library = relax.build(vm_passes()(module), target=target, relax_pipeline=None)
                return Code(library=library)
            return Code(
                library=_native(program, target),
                constants=program.constants,
                workspace=program.workspace,
                outputs=program.outputs,
            )
    except (RuntimeError, ValueError, TypeError, tvm.error.InternalError) as error:
        said = [line for line in str(error).strip().splitlines() if line and not line.startswith("#")]
        last = said[-1] if said else type(error).__name__
        raise CompileError(f"code generation for {target.attrs.get('mcpu', 'llvm')} failed: {last}") from error


def _native(program: Program, target: tvm.target.Target) -> Any:
    """Compile a Program. The steps are those of tvm.tirx.build, for functions of which all but one take plain pointers."""
    module = tirx.transform.BindTarget(target.with_host(target))(program.module)
    lower, finalize, _ = tirx.get_default_tir_pipeline(target)
    lowered = dict(lower(module).functions.items())
    light = {name: function for name, function in lowered.items() if name.name_hint != ENTRY and _is_light(function)}
    others = {
        name: function if name.name_hint == ENTRY else _with_device(function)
        for name, function in lowered.items()
        if name not in light
    }
    finished = dict(finalize()(tvm.IRModule(others)).functions.items())
    finished.update(tirx.transform.LowerIntrin()(tvm.IRModule(light)).functions.items())
    config = json.loads(str(target))
    config["cl-opt"] = [*config.get("cl-opt", []), _NEVER_INLINE]
    return tvm.get_global_func("target.build.llvm")(tvm.IRModule(finished), tvm.target.Target(config))


def _is_light(function: Any) -> bool:
    """Return whether a kernel can do without LowerTVMBuiltin, which takes its buffers from the heap.

    On the stack LLVM keeps them in registers as far as they go.
    """
    sizes: list[int] = []
    builtins: list[Call] = []

    def allocated(node: Any) -> None:
        size = -(-int(tvm.DataType(str(node.buffer.ty.dtype)).bits) // 8)
        for dim in node.buffer.ty.shape:
            size *= int(dim) if isinstance(dim, _tirx.IntImm) else _STACK + 1
        sizes.append(size)

    def called(node: Any) -> None:
        if getattr(node.op, "name", "") in _NEED_WRAPPING:
            builtins.append(node)

    tvm_ffi.structural_walk(function.body, ((_tirx.AllocBuffer, allocated), (Call, called)))
    return not builtins and sum(sizes) <= _STACK


def _with_device(function: Any) -> Any:
    """Say where the buffers of a kernel's own lie: TVM's checking wrapper would, which the kernels don't have."""
    body = function.body
    for key, value in (("device_id", 0), ("device_type", tvm.cpu().dlpack_device_type())):
        body = tirx.AttrStmt("default", key, tirx.IntImm("int32", value), body)
    return function.with_body(body)


def constant_bytes(module: tvm.IRModule) -> int:
    """Count the bytes of the constants that "main" reads: packed weights, biases, multipliers."""
    total = 0
    for binding in DataflowView(module["main"]).bindings:
        for constant in _constants(binding.value):
            array = constant.value.numpy()
            total += int(np.prod(array.shape)) * array.itemsize
    return total


def _constants(expr: Any) -> list[GenericConst]:
    if isinstance(expr, GenericConst):
        return [expr]
    if isinstance(expr, tvm.ir.Call):
        return [constant for arg in expr.args for constant in _constants(arg)]
    if isinstance(expr, relax.Tuple):
        return [constant for field in expr.fields for constant in _constants(field)]
    return []
