"""A launch plan: a module as launches of kernels on planned memory. Data alone: a GPU runs it, and so does the emulator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from ....runtime.memory import Lifetime, align, place
from .kernel import Kernel

ALIGNMENT = 256
"""Bytes: what cuMemAlloc gives, and the widest copy needs no more than 16."""

Region = Literal["input", "constant", "workspace", "output"]


@dataclass(frozen=True, slots=True, eq=False)
class Buffer:
    """Memory of one tensor, before it has a place; its identity is what counts. `values` are those of a constant."""

    size: int
    region: Region = "workspace"
    index: int = 0
    values: npt.NDArray[Any] | None = None


@dataclass(frozen=True, slots=True)
class Place:
    """A place in the memory of a call: bytes into the constants or the workspace, or an input or output by its number."""

    region: Region
    index: int
    offset: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Launch:
    """One launch: a kernel, and where its arguments lie."""

    kernel: Kernel
    places: tuple[Place, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class LaunchPlan:
    """What a call does.

    Parameters
    ----------
    launches
        In their order; each begins when the one before it has ended.
    constants
        All constants, each at a multiple of `ALIGNMENT`: they stay on the GPU.
    workspace
        Bytes of the block that intermediate tensors share.
    input_sizes, output_sizes
        In bytes.
    """

    launches: tuple[Launch, ...]
    constants: npt.NDArray[np.uint8]
    workspace: int
    input_sizes: tuple[int, ...]
    output_sizes: tuple[int, ...]

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """Of all launches, in their order."""
        return tuple(launch.kernel for launch in self.launches)


Step = tuple[Kernel, tuple[Buffer, ...]]
"""A launch whose buffers have no place yet."""


def planned(steps: Sequence[Step], inputs: Sequence[Buffer], outputs: Sequence[Buffer]) -> LaunchPlan:
    """Give every buffer its place: intermediate tensors that are not alive together share memory."""
    constants, places = _constants(steps)
    uses: dict[Buffer, list[int]] = {}
    for number, (_, buffers) in enumerate(steps):
        for buffer in buffers:
            if buffer.region == "workspace":
                uses.setdefault(buffer, []).append(number)
    lifetimes = [Lifetime(size=buffer.size, first=min(at), last=max(at)) for buffer, at in uses.items()]
    offsets, workspace = place(lifetimes, ALIGNMENT)
    places |= {buffer: Place("workspace", 0, offset) for buffer, offset in zip(uses, offsets, strict=True)}
    launches = tuple(
        Launch(
            kernel=kernel, places=tuple(places[each] if each in places else Place(each.region, each.index, 0) for each in buffers)
        )
        for kernel, buffers in steps
    )
    return LaunchPlan(
        launches=launches,
        constants=constants,
        workspace=workspace,
        input_sizes=tuple(each.size for each in inputs),
        output_sizes=tuple(each.size for each in outputs),
    )


def _constants(steps: Sequence[Step]) -> tuple[npt.NDArray[np.uint8], dict[Buffer, Place]]:
    """Return all constants one behind the other, equal ones once, and where each lies."""
    parts: list[bytes] = []
    known: dict[bytes, int] = {}
    places: dict[Buffer, Place] = {}
    end = 0
    for _, buffers in steps:
        for buffer in buffers:
            if buffer.values is None or buffer in places:
                continue
            data = np.ascontiguousarray(buffer.values).tobytes()
            if data not in known:
                known[data] = end
                padded = data.ljust(align(len(data), ALIGNMENT), b"\0")
                parts.append(padded)
                end += len(padded)
            places[buffer] = Place("constant", 0, known[data])
    return np.frombuffer(b"".join(parts), np.uint8), places
