"""What a target asks of one tensor of an op, beyond what it asks of all: as data."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

from ..errors import TargetError, brief
from .vocabulary import ACTIVATION_DTYPES, GRANULARITIES, SCALES, SCHEMES, WEIGHT_DTYPES, check_name, check_names, from_fields

DTYPES = tuple(dict.fromkeys((*ACTIVATION_DTYPES, *WEIGHT_DTYPES, "int32")))


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorSupport:
    """What one tensor may be; what is None is as its op says.

    Parameters
    ----------
    dtypes
        Allowed, best first.
    schemes, granularity
        "symmetric", "asymmetric"; "per_tensor", "per_axis".
    scales
        "any" or "power_of_two".
    scale, zero_point
        The only scale, a positive number, and the only zero point that the hardware has for it: 1/256 and -128 of a softmax.

    Raises
    ------
    TargetError
        A field holds what it does not allow.
    """

    dtypes: tuple[str, ...] | None = None
    schemes: tuple[str, ...] | None = None
    granularity: tuple[str, ...] | None = None
    scales: str | None = None
    scale: float | None = None
    zero_point: int | None = None

    def __post_init__(self) -> None:
        """Check the fields that are given."""
        for name, allowed in (("dtypes", DTYPES), ("schemes", SCHEMES), ("granularity", GRANULARITIES)):
            if getattr(self, name) is not None:
                check_names(name, getattr(self, name), allowed, minimum=1)
        if self.scales is not None:
            check_name("scales", self.scales, SCALES)
        # NumPy's numbers are welcome: parameters are computed with it.
        scale: object = self.scale
        if scale is not None:
            if isinstance(scale, bool) or not isinstance(scale, Real) or not (math.isfinite(scale) and scale > 0):
                raise TargetError(f"scale: expected a positive number, got {brief(scale)}")
            object.__setattr__(self, "scale", float(scale))
        zero_point: object = self.zero_point
        if zero_point is not None:
            if isinstance(zero_point, bool) or not isinstance(zero_point, Integral):
                raise TargetError(f"zero_point: expected a whole number, got {brief(zero_point)}")
            object.__setattr__(self, "zero_point", int(zero_point))
        if self.scale is not None and self.scales == "power_of_two" and math.frexp(self.scale)[0] != 0.5:
            raise TargetError(f"scale: expected a power of two, as scales says, got {self.scale}")

    @property
    def given(self) -> dict[str, Any]:
        """The fields that are not None."""
        return {name: value for name in TensorSupport.__slots__ if (value := getattr(self, name)) is not None}

    def to_json(self) -> dict[str, Any]:
        """Return plain values that `from_json` reads back."""
        return {
            name: list(value) if isinstance(value := getattr(self, name), tuple) else value for name in TensorSupport.__slots__
        }

    @staticmethod
    def from_json(where: str, data: Any) -> TensorSupport:
        """Read an object; TargetError names `where` and the field."""
        return from_fields(TensorSupport, where, data)
