"""Machine code for a GPU with the plan of its launches: run, saved, loaded and read. Loading executes nothing of it."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import tvm

from ....errors import CompileError, ExecutableError
from .compiler import disassembled
from .driver_runner import DriverRunner
from .plan import LaunchPlan
from .plan_file import OutputShapes, StoredPlan, packed, unpacked


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class CudaCode:
    """A module for one generation of GPUs.

    Parameters
    ----------
    plan
        Its launches, memory and constants.
    isa
        "cuda.sm_80" ...
    cubins
        The machine code of all kernels, in any order.
    outputs
        Shape and dtype of each result.
    """

    plan: LaunchPlan
    isa: str
    cubins: tuple[bytes, ...]
    outputs: OutputShapes

    @property
    def constants(self) -> npt.NDArray[np.uint8]:
        """All constants, as the plan lays them out."""
        return self.plan.constants

    def runner(self) -> Any:
        """Return what runs it; nothing is loaded before the first call."""
        return DriverRunner(self.plan, self.cubins, self.outputs, self.isa)

    def assembly(self, target: tvm.target.Target) -> str | None:
        """Return the machine code of the kernels as nvdisasm prints it; ExecutableError where that is not installed."""
        try:
            with tempfile.TemporaryDirectory() as folder:
                return "".join(disassembled(cubin, Path(folder)) for cubin in self.cubins)
        except CompileError as error:
            raise ExecutableError(str(error)) from error

    def export(self, path: str) -> None:
        """Write plan and machine code as one file."""
        stored = StoredPlan(plan=self.plan, isa=self.isa, cubins=self.cubins, outputs=self.outputs)
        Path(path).write_bytes(packed(stored))

    @staticmethod
    def loaded(data: bytes, constants: npt.NDArray[np.uint8]) -> CudaCode:
        """Return what `export` wrote, with its constants; ValueError where it is damaged or of another format."""
        stored = unpacked(data, constants)
        return CudaCode(plan=stored.plan, isa=stored.isa, cubins=stored.cubins, outputs=stored.outputs)
