"""Changes of parameters: what `device/change.cuh` is told, alone and within kernels that move."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ......ir.composites.base import QuantizedOutput, QuantizedTensor, ratio
from ......numerics import INTEGER_RANGE
from ......numerics.quantized.rescale import fixed_point_table
from ...isa import Isa
from ...kernel import Argument, BoundKernel, Kernel, Number
from ..language.axes import elements_of_thread

KEPT, SHIFTED, SCALED, LOOKED_UP = range(4)
"""The enumeration `ChangeKind` of the header."""

THREADS = 256


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Change:
    """What becomes of an integer of one tensor in another.

    Parameters
    ----------
    dtype, to
        Of the integers before and after.
    kind
        A number of the header.
    parameters
        Members of the structure P that `Change<P>` reads.
    table
        The result for each integer of `dtype`, least first; a single entry where none is looked up.
    """

    dtype: str
    to: str
    kind: int
    parameters: dict[str, Number]
    table: npt.NDArray[np.generic]

    @property
    def types(self) -> dict[str, str]:
        """Types that P holds for it."""
        return {"X": self.dtype, "Y": self.to}


def _change(dtype: str, to: str, kind: int, bounds: tuple[int, int, int, int], multiplier: float = 1.0) -> Change:
    names = ("change_from", "change_to", "change_low", "change_high")
    parameters: dict[str, Number] = {"change": kind, **dict(zip(names, bounds, strict=True)), "change_multiplier": multiplier}
    return Change(dtype=dtype, to=to, kind=kind, parameters=parameters, table=np.zeros(1, to if to != "bool" else np.uint8))


def kept(dtype: str) -> Change:
    """Return no change."""
    return _change(dtype, dtype, KEPT, (0, 0, 0, 0))


def looked_up(dtype: str, to: str, table: npt.NDArray[np.generic]) -> Change:
    """Return the change by a table with an entry for each integer of `dtype`, least first."""
    found = _change(dtype, to, LOOKED_UP, (0, 0, 0, 0))
    return Change(dtype=dtype, to=to, kind=LOOKED_UP, parameters=found.parameters, table=table)


def change_of(x: QuantizedTensor, y: QuantizedOutput) -> Change:
    """Return the change from an input's parameters to those of the result, its clamp included."""
    source, target = x.params, y.tensor.params
    multiplier = ratio(source, target)
    if y.fixed_point is not None and multiplier != 1.0:
        return looked_up(source.dtype, target.dtype, fixed_point_table(source, target, y.fixed_point, qmin=y.qmin, qmax=y.qmax))
    bounds = (int(source.zero_point), int(target.zero_point), y.qmin, y.qmax)
    if multiplier != 1.0:
        return _change(source.dtype, target.dtype, SCALED, bounds, multiplier)
    is_same = source.dtype == target.dtype and bounds[0] == bounds[1]
    if is_same and bounds[2:] == INTEGER_RANGE[target.dtype]:
        return kept(source.dtype)
    return _change(source.dtype, target.dtype, SHIFTED, bounds)


def change(size: int, how: Change, isa: Isa, *, name: str = "change") -> BoundKernel:
    """Return the kernel that changes so many integers."""
    count = elements_of_thread([(size, (1, 1))], (how.dtype, how.to), isa, ends=True)
    kernel = Kernel(
        name=name,
        header="change.cuh",
        function="change",
        parameters={"items": size, "threads": THREADS, "elements_of_thread": count, **how.parameters},
        types=how.types,
        arguments=(
            Argument(name="x", dtype=how.dtype),
            Argument(name="table", dtype=how.to),
            Argument(name="y", dtype=how.to, writes=True),
        ),
        grid=(-(-size // (count * THREADS)), 1, 1),
        block=(THREADS, 1, 1),
        isa=isa.name,
    )
    return kernel, (how.table,)
