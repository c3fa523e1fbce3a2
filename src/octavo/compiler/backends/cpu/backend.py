"""The CPU as a back end: its description, the emitters of its composites, and their use for hardware that is only described."""

from __future__ import annotations

from tvm.relax import Var

from ....ir.composites.attributes import Composite
from ....target import CPU, TargetDescription
from ..protocol import Backend, Host
from .context import KernelContext
from .emitters import emitter_of


class CpuBackend(Backend):
    """Emits into the module that the CPU runs, kernel by kernel: it keeps layouts and integers as its own kernels read them."""

    description = CPU

    def emit(self, composite: Composite, host: Host, inputs: dict[str, Var], output: Var) -> None:
        """Write the kernel calls of one composite."""
        assert isinstance(host, KernelContext), "the CPU's kernels run in a module of the CPU"
        emitter_of(composite.op)(composite.op, host, inputs, output)


class Simulation(CpuBackend):
    """A description without code: the CPU's kernels compute its ops as it says, bit for bit."""

    has_own_code = False

    def __init__(self, description: TargetDescription) -> None:
        self.description = description
