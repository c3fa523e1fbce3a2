"""CallPlan: what a module calls, in which order and on which memory, as data. Plans nothing: `program.call_plan` does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import tvm

Region = Literal["input", "constants", "workspace", "output"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Operand:
    """An operand of a planned call: `offset` bytes into a region, of inputs and outputs the one numbered `index`.

    The offset may be a Size.
    """

    region: Region
    index: int
    offset: int


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedCall:
    """One call of a kernel, by its name in the module; of none, a copy of so many `bytes` from the first operand to the second.

    The first `reads` operands are only read. Behind them the kernel takes `sizes`, of the integer types `dtypes`.
    """

    kernel: str | None
    operands: tuple[Operand, ...]
    reads: int = 1
    bytes: int = 0
    sizes: tuple[int, ...] = ()
    dtypes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class CallPlan:
    """The calls of a module one after the other, for whoever writes them down in another language than TIR.

    Parameters
    ----------
    module
        The kernels, on pointers. None takes memory of its own: what it needs beside its tensors is in the workspace.
    calls
        In their order.
    constants, workspace
        As a Program has them; where dimensions are open, the workspace is a Size of theirs.
    """

    module: tvm.IRModule
    calls: tuple[PlannedCall, ...]
    constants: npt.NDArray[np.uint8]
    workspace: int
