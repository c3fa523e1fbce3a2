"""From real numbers to integers and back, per tensor or along an axis."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ......numerics import PerAxis, QuantParams
from ...isa import Isa
from ...kernel import Argument, BoundKernel, Kernel, Number
from ..language.axes import elements_of_thread

TIES = {"half_even": 0, "half_up": 1, "half_away": 2}
"""The enumeration `Ties` of the header."""

_THREADS = 256


@dataclass(frozen=True, kw_only=True, slots=True)
class EdgeSpec:
    """A tensor whose real values and integers are converted; `shape` is that in memory, the axis of the scales counted there."""

    shape: tuple[int, ...]
    params: QuantParams
    axis: int | None

    @staticmethod
    def of(shape: tuple[int, ...], params: QuantParams, order: tuple[int, ...]) -> EdgeSpec:
        """Return the spec of a tensor of a shape in the source whose memory has its axes in this order."""
        axis = params.granularity.axis % len(shape) if isinstance(params.granularity, PerAxis) else None
        lying = tuple(shape[each] for each in order)
        return EdgeSpec(shape=lying, params=params, axis=None if axis is None else order.index(axis))

    @property
    def parameters(self) -> dict[str, Number]:
        """Members of the structure P."""
        first = int(np.ravel(self.params.zero_point)[0])
        common: dict[str, Number] = {"items": math.prod(self.shape), "threads": _THREADS, "zero_point": first}
        common["scale"] = float(np.ravel(self.params.scale)[0])
        if self.axis is None:
            return {**common, "channels": 1, "inner": 1}
        return {**common, "channels": self.shape[self.axis], "inner": math.prod(self.shape[self.axis + 1 :])}

    def kernel(self, name: str, dtypes: tuple[str, str], types: dict[str, str], more: dict[str, Number], isa: Isa) -> BoundKernel:
        """Return a kernel of this name from one dtype to another."""
        items = math.prod(self.shape)
        count = elements_of_thread([(items, (1, 1))], dtypes, isa, ends=True)
        kernel = Kernel(
            name=name,
            header="quantize.cuh",
            function=name,
            parameters={**self.parameters, "elements_of_thread": count, **more},
            types=types,
            arguments=(
                Argument(name="x", dtype=dtypes[0]),
                Argument(name="scales", dtype="float32"),
                Argument(name="zero_points", dtype="int32"),
                Argument(name="y", dtype=dtypes[1], writes=True),
            ),
            grid=(-(-items // (count * _THREADS)), 1, 1),
            block=(_THREADS, 1, 1),
            isa=isa.name,
        )
        return kernel, (np.atleast_1d(self.params.scale), np.atleast_1d(self.params.zero_point))


def quantize(spec: EdgeSpec, ties: str, bounds: tuple[int, int], isa: Isa) -> BoundKernel:
    """Return the kernel of a quantize that clamps to bounds in the integers of its result."""
    more: dict[str, Number] = {"ties": TIES[ties], "qmin": bounds[0], "qmax": bounds[1]}
    dtype = spec.params.dtype
    return spec.kernel("quantize", ("float32", dtype), {"Y": dtype}, more, isa)


def dequantize(spec: EdgeSpec, isa: Isa) -> BoundKernel:
    """Return the kernel of a dequantize."""
    dtype = spec.params.dtype
    return spec.kernel("dequantize", (dtype, "float32"), {"X": dtype}, {}, isa)
