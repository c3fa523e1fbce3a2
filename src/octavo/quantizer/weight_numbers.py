"""What planning computes of whole weights, known from plan to plan: most plans differ in other things. It changes no result.

Of each weight what was found last is kept, and integers of 8 bits are the largest of it: it must not hold a weight itself.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from ..ir.identity import TensorId
from ..numerics import QuantParams, quantize

FoundT = TypeVar("FoundT")
_Floats = npt.NDArray[np.float32]


@dataclass(slots=True, eq=False)
class _Known:
    """What was found last of one array, by what it is, beside what decided it."""

    value: weakref.ref[_Floats]
    found: dict[str, tuple[object, Any]] = field(default_factory=dict[str, "tuple[object, Any]"])


@dataclass(slots=True, eq=False)
class WeightNumbers:
    """Finds scales, integers and their sums of the weights of one model, however its channels are divided."""

    _known: dict[TensorId, _Known] = field(default_factory=dict[TensorId, _Known])

    def find(self, name: TensorId, value: _Floats, what: str, decided_by: object, find: Callable[[], FoundT]) -> FoundT:
        """Return what was found of the same array for the same, else what is found now."""
        known = self._known.get(name)
        if known is None or known.value() is not value:
            known = self._known[name] = _Known(weakref.ref(value))
        if what not in known.found or known.found[what][0] != decided_by:
            known.found.pop(what, None)  # not kept while its successor is made
            known.found[what] = decided_by, find()
        return known.found[what][1]

    def integers(self, name: TensorId, value: _Floats, params: QuantParams) -> npt.NDArray[Any]:
        """Return the integers of a weight."""
        return self.find(name, value, "integers", params, lambda: quantize(value, params))

    def magnitudes(self, name: TensorId, value: _Floats, params: QuantParams, axis: int) -> npt.NDArray[np.int64]:
        """Return the sums of |integers| of each channel, along an axis of a weight."""

        def find() -> npt.NDArray[np.int64]:
            integers = self.integers(name, value, params)
            others = tuple(index for index in range(integers.ndim) if index != axis % integers.ndim)
            return np.abs(integers, dtype=np.int32).sum(axis=others, dtype=np.int64)

        return self.find(name, value, "magnitudes", (params, axis), find)
