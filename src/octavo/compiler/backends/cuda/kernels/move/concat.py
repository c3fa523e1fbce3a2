"""Tensors joined along an axis, as many in one launch as the kernel takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...isa import Isa
from ...kernel import Argument, Kernel, Number
from ..language.axes import vector_length
from ..quantization.change import LOOKED_UP, THREADS, Change

MAX_PARTS = 4
"""Tensors of one launch."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Part:
    """One of the tensors, dense: `length` elements of each run of the result, from `first` on."""

    length: int
    first: int
    change: Change


def joins(parts: Sequence[Part]) -> bool:
    """Return whether the kernel computes every part's change."""
    return all(part.change.kind != LOOKED_UP for part in parts)


def concat(parts: Sequence[Part], outer: int, pitch: int, isa: Isa) -> Kernel:
    """Return the kernel of up to `MAX_PARTS` parts of a result [outer, pitch]; it takes four tensors, the last ones unread."""
    to = parts[0].change.to
    lengths = [part.length for part in parts]
    places = [*lengths, pitch, *(part.first for part in parts)]
    most = outer * max(lengths)
    count = vector_length(lengths[0], places, most, (to,), isa)
    parameters: dict[str, Number] = {"parts": len(parts), "outer": outer, "pitch": pitch}
    parameters |= {"threads": THREADS, "elements_of_thread": count}
    types = {"Y": to}
    for number in range(MAX_PARTS):
        part = parts[min(number, len(parts) - 1)]
        parameters |= {f"{name}_{number}": value for name, value in part.change.parameters.items()}
        parameters |= {f"length_{number}": part.length, f"first_{number}": part.first}
        types[f"X{number}"] = part.change.dtype
    return Kernel(
        name="concat",
        header="concat.cuh",
        function="concat",
        parameters=parameters,
        types=types,
        arguments=(
            *(Argument(name=f"x{number}", dtype=types[f"X{number}"]) for number in range(MAX_PARTS)),
            Argument(name="y", dtype=to, writes=True),
        ),
        grid=(-(-most // (count * THREADS)), len(parts), 1),
        block=(THREADS, 1, 1),
        isa=isa.name,
    )
