"""CUDA as a device: its name, its description, and its way from a partitioned module to code."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import tvm

from ..protocol import DeviceBackend
from .code import CudaCode
from .compiler import compile_kernels
from .description import CUDA
from .driver import check_present, present_isa
from .isa import Isa, isa_of
from .lowering import CudaLowered, lower_module


class CudaBackend(DeviceBackend):
    """Compiles whole modules for one generation of GPUs."""

    description = CUDA

    def __init__(self, isa: Isa) -> None:
        self._isa = isa
        self.name = self.isa = isa.name

    def lower(self, module: tvm.IRModule) -> CudaLowered:
        """Lower a partitioned module whose constants are bound; see `lower_module`."""
        return lower_module(module, self.description, self._isa)

    def code(self, lowered: CudaLowered) -> CudaCode:
        """Compile the kernels of a lowered module; no GPU is needed."""
        compiled = compile_kernels(lowered.plan.kernels, self._isa)
        return CudaCode(plan=lowered.plan, isa=self.isa, cubins=tuple(each.cubin for each in compiled), outputs=lowered.outputs)

    def check_present(self) -> None:
        """Raise TargetError unless this machine has a GPU of this generation, or one that runs its code."""
        check_present(self._isa)

    def loaded(self, data: bytes, constants: npt.NDArray[np.uint8]) -> CudaCode:
        """Return what `CudaCode.export` wrote."""
        return CudaCode.loaded(data, constants)


def backend_of(name: str) -> CudaBackend:
    """Return the back end for "cuda", which is this machine's GPU, or for an ISA by name ("cuda.sm_80").

    Raises
    ------
    TargetError
        An unknown ISA; "cuda" on a machine without a GPU.
    """
    return CudaBackend(present_isa() if name == "cuda" else isa_of(name))
