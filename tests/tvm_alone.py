"""Modules as TVM alone compiles them, without any stage of ours: the reference that others are compared with."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import tvm
from tvm import relax

from octavo.ir.graph.evaluate import unchecked, unoptimized

TARGET = tvm.target.Target({"kind": "llvm"})


def tvm_alone(module: tvm.IRModule, *, is_large: bool = False) -> Callable[..., list[np.ndarray]]:
    """Compile with TVM's default pipeline; the function returned takes the inputs and gives the outputs.

    LLVM optimizes what is large. Of a small network it is most of the time, for code that runs once.
    """
    with unchecked():
        executable = tvm.compile(module, target=TARGET if is_large else unoptimized(TARGET))
    machine = relax.VirtualMachine(executable, tvm.cpu())

    def run(*inputs: np.ndarray) -> list[np.ndarray]:
        result = machine["main"](*[tvm.runtime.tensor(np.asarray(value, order="C")) for value in inputs])
        return [result.numpy()] if isinstance(result, tvm.runtime.Tensor) else [item.numpy() for item in result]

    return run
