"""CUDA as a device: its name, its description, and its way from a partitioned module to code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
import tvm

from ..protocol import DeviceBackend
from ..tunable import Schedules
from .code import CudaCode
from .compiler import compile_kernels
from .description import CUDA
from .driver import LoadedModule, gpu_running, isa_for, this_gpu
from .driver_clock import DriverClock
from .isa import Isa, isa_of
from .kernels.matmuls.gemm import Tiling, tiling_of
from .lowering import CudaLowered, lower_module


class CudaBackend(DeviceBackend):
    """Compiles whole modules for one generation of GPUs."""

    description = CUDA

    def __init__(self, isa: Isa, chip: str | None = None) -> None:
        self._isa = isa
        self.name = self.isa = isa.name
        self.chip = chip

    def lower(self, module: tvm.IRModule, schedules: Schedules = MappingProxyType({})) -> CudaLowered:
        """Lower a partitioned module whose constants are bound; see `lower_module`."""
        return lower_module(module, self.description, self._isa, schedules)

    def code(self, lowered: CudaLowered) -> CudaCode:
        """Compile the kernels of a lowered module; no GPU is needed."""
        compiled = compile_kernels(lowered.plan.kernels, self._isa)
        return CudaCode(plan=lowered.plan, isa=self.isa, cubins=tuple(each.cubin for each in compiled), outputs=lowered.outputs)

    def check_present(self) -> None:
        """Raise TargetError unless this machine has a GPU of this generation, or one that runs its code."""
        gpu_running(self._isa, instead="; run it where there is one, or on the CPU")

    def present(self) -> CudaBackend:
        """Return the back end for this machine's GPU; TargetError where none runs code for the ISA."""
        gpu = gpu_running(self._isa, ": kernels are measured on a GPU that runs them")
        return CudaBackend(self._isa, gpu.name)

    def clock(self, lowered: CudaLowered, inputs: Sequence[npt.NDArray[Any]]) -> DriverClock:
        """Load a lowered module onto this machine's GPU, to be timed."""
        cubins = [each.cubin for each in compile_kernels(lowered.plan.kernels, self._isa)]
        return DriverClock(LoadedModule(lowered.plan, cubins, self.isa), lowered.keys, inputs)

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
    if name != "cuda":
        return CudaBackend(isa_of(name))
    gpu = this_gpu()
    return CudaBackend(isa_for(gpu.capability), gpu.name)


def schedule_of(values: Mapping[str, object]) -> Tiling:
    """Return the tiling of these fields, which a file of tunings has; ValueError says what is wrong with them."""
    return tiling_of(values)
