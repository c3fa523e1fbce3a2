"""Machine code for a GPU with the plan of its launches: run, saved, loaded and read. Loading executes nothing of it."""

from __future__ import annotations

import json
import struct
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import tvm

from ...errors import CompileError, ExecutableError
from .compiler import disassembled
from .driver import DriverRunner
from .emulator.runner import EmulatedRunner
from .kernel import Argument, Kernel
from .plan import Launch, LaunchPlan, Place

_MAGIC = b"OCTAVO-CUDA-0001"
_LENGTH = struct.Struct("<Q")
OutputShapes = tuple[tuple[tuple[int, ...], str], ...]


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
    emulated
        Whether calls run in the emulator, on the CPU, in place of a GPU.
    """

    plan: LaunchPlan
    isa: str
    cubins: tuple[bytes, ...]
    outputs: OutputShapes
    emulated: bool = False

    @property
    def constants(self) -> npt.NDArray[np.uint8]:
        """All constants, as the plan lays them out."""
        return self.plan.constants

    def emulation(self) -> CudaCode:
        """Return the same code, to run in the emulator."""
        return replace(self, emulated=True)

    def runner(self) -> Any:
        """Return what runs it; nothing is loaded before the first call."""
        if self.emulated:
            return EmulatedRunner(self.plan, self.outputs)
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
        head = json.dumps(
            {
                "isa": self.isa,
                "outputs": self.outputs,
                "plan": _plan_to_json(self.plan),
                "cubins": [len(each) for each in self.cubins],
            },
            separators=(",", ":"),
        ).encode()
        Path(path).write_bytes(b"".join([_MAGIC, _LENGTH.pack(len(head)), head, *self.cubins]))

    @staticmethod
    def loaded(data: bytes, constants: npt.NDArray[np.uint8]) -> CudaCode:
        """Return what `export` wrote, with its constants; ValueError where it is damaged or of another format."""
        start = len(_MAGIC) + _LENGTH.size
        if len(data) < start or data[: len(_MAGIC)] != _MAGIC:
            raise ValueError("it holds no code for CUDA of this version of Octavo; compile the model again")
        (length,) = _LENGTH.unpack_from(data, len(_MAGIC))
        head = json.loads(data[start : start + length])
        cubins, at = [], start + length
        for size in head["cubins"]:
            cubins.append(data[at : at + size])
            at += size
        outputs = tuple((tuple(shape), dtype) for shape, dtype in head["outputs"])
        return CudaCode(plan=_plan_from_json(head["plan"], constants), isa=head["isa"], cubins=tuple(cubins), outputs=outputs)


def _plan_to_json(plan: LaunchPlan) -> dict[str, Any]:
    kernels = {launch.kernel.symbol: asdict(launch.kernel) for launch in plan.launches}
    launches = [
        {"kernel": launch.kernel.symbol, "places": [[each.region, each.index, each.offset] for each in launch.places]}
        for launch in plan.launches
    ]
    sizes = {"workspace": plan.workspace, "input_sizes": plan.input_sizes, "output_sizes": plan.output_sizes}
    return {"kernels": kernels, "launches": launches, **sizes}


def _plan_from_json(data: Mapping[str, Any], constants: npt.NDArray[np.uint8]) -> LaunchPlan:
    kernels = {symbol: _kernel(fields) for symbol, fields in data["kernels"].items()}
    launches = tuple(
        Launch(kernel=kernels[each["kernel"]], places=tuple(Place(*place) for place in each["places"]))
        for each in data["launches"]
    )
    return LaunchPlan(
        launches=launches,
        constants=constants,
        workspace=data["workspace"],
        input_sizes=tuple(data["input_sizes"]),
        output_sizes=tuple(data["output_sizes"]),
    )


def _kernel(fields: Mapping[str, Any]) -> Kernel:
    arguments = tuple(Argument(**each) for each in fields["arguments"])
    own: dict[str, Any] = {**fields, "arguments": arguments, "grid": tuple(fields["grid"]), "block": tuple(fields["block"])}
    return Kernel(**own)
