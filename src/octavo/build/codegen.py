"""From a linked Relax module to machine code: TVM's VM passes and LLVM."""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.ir import GenericConst

from ..errors import CompileError
from ..graph.dataflow import DataflowView


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


def generate(module: tvm.IRModule, target: tvm.target.Target) -> Any:
    """Compile a linked module to a VM executable (tvm.relax.VMExecutable).

    Raises
    ------
    CompileError
        When TVM or LLVM fails; the message holds the last line of theirs.
    """
    try:
        with target:
            ready = vm_passes()(module)
            return relax.build(ready, target=target, relax_pipeline=None)
    except (RuntimeError, ValueError, TypeError, tvm.error.InternalError) as error:
        said = [line for line in str(error).strip().splitlines() if line and not line.startswith("#")]
        last = said[-1] if said else type(error).__name__
        raise CompileError(f"code generation for {target.attrs.get('mcpu', 'llvm')} failed: {last}") from error


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
