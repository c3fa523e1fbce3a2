"""Machine code and how it is called: what code generation makes, and what is loaded from a file."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import tvm
from tvm.support import cc

from .control_block import Layout

ENTRY = "octavo_main"
MAX_INPUTS = 64
"""With more of them the entry takes one table of their addresses: LLVM's time grows with the square of a function's arguments,
and a network that is profiled has two for each tensor."""


def takes_table(inputs: int) -> bool:
    """Return whether the entry of a program of so many inputs takes, in their place, int64 (inputs,): where their data lie."""
    return inputs > MAX_INPUTS


@dataclass(frozen=True, kw_only=True)
class Code:
    """Machine code and what it is called with.

    Parameters
    ----------
    library
        A tvm.runtime.Module with the entry of a Program, or a tvm.relax.VMExecutable; None where it is for another architecture.
    image
        The bytes of the shared library that `library` was loaded from; None where LLVM compiled in memory.
    constants, workspace, outputs, control
        The Program's; None for the virtual machine. `control` is None, too, where a call is one thread's.
    """

    library: Any
    image: bytes | None = None
    constants: npt.NDArray[np.uint8] | None = None
    workspace: int | None = None
    outputs: tuple[tuple[tuple[int, ...], str], ...] | None = None
    control: Layout | None = None

    def export(self, path: str) -> None:
        """Write the code as a shared library. RuntimeError where there is none yet and no C compiler to link one."""
        if self.image is None:
            compiler = cc.get_cc()
            if compiler is None or shutil.which(compiler) is None:
                raise RuntimeError(
                    "there is no C compiler" if compiler is None else f"there is no {compiler}, which $CXX or $CC names"
                )
            self.library.export_library(path)
        else:
            Path(path).write_bytes(self.image)

    def assembly(self, target: tvm.target.Target) -> str | None:
        """Return the machine code as assembly text; None for a loaded library."""
        root = getattr(self.library, "mod", self.library)
        return next((str(module.inspect_source("asm")) for module in [root, *root.imports] if module.kind == "llvm"), None)
