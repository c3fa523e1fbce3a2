"""Launch plans with their machine code as bytes. Reading them executes nothing, and needs neither TVM nor a GPU."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .kernel import Argument, Kernel
from .plan import Launch, LaunchPlan, Place

_MAGIC = b"OCTAVO-CUDA-0001"
_LENGTH = struct.Struct("<Q")
OutputShapes = tuple[tuple[tuple[int, ...], str], ...]
"""Shape and dtype of each result."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class StoredPlan:
    """What runs a module on one generation of GPUs; fields as `CudaCode` has them."""

    plan: LaunchPlan
    isa: str
    cubins: tuple[bytes, ...]
    outputs: OutputShapes


def packed(stored: StoredPlan) -> bytes:
    """Return a plan and its machine code as bytes, without the constants."""
    facts = {
        "isa": stored.isa,
        "outputs": stored.outputs,
        "plan": _plan_to_json(stored.plan),
        "cubins": list(map(len, stored.cubins)),
    }
    head = json.dumps(facts, separators=(",", ":")).encode()
    return b"".join([_MAGIC, _LENGTH.pack(len(head)), head, *stored.cubins])


def unpacked(data: bytes, constants: npt.NDArray[np.uint8]) -> StoredPlan:
    """Return what `packed` wrote, with its constants; ValueError where it is damaged or of another format."""
    start = len(_MAGIC) + _LENGTH.size
    if len(data) < start or data[: len(_MAGIC)] != _MAGIC:
        raise ValueError("it holds no code for CUDA of this version of Octavo; compile the model again")
    (length,) = _LENGTH.unpack_from(data, len(_MAGIC))
    head = json.loads(data[start : start + length])
    cubins: list[bytes] = []
    at = start + length
    for size in head["cubins"]:
        cubins.append(data[at : at + size])
        at += size
    outputs = tuple((tuple(shape), dtype) for shape, dtype in head["outputs"])
    return StoredPlan(plan=_plan_from_json(head["plan"], constants), isa=head["isa"], cubins=tuple(cubins), outputs=outputs)


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
