"""What one op asks of one tensor, and what several ask together: the scheme that is all of it, or why there is none.

It knows no graph and no range.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import combinations

import numpy as np

from ...numerics import INTEGER_RANGE
from ...target.tensor_support import TensorSupport
from ..ranges import QuantScheme

_MADE = (("uint8", "asymmetric"), ("int8", "asymmetric"), ("int8", "symmetric"), ("int16", "symmetric"))
"""The integers that quantize makes, and with which schemes; of one dtype the better one first."""
_FIELDS = ("scale", "zero_point", "dtypes", "schemes", "granularity", "power_of_two")
LARGEST_SCALE = 2.0**60
"""Fixed scales within its reciprocal and it: products of two of them are normal float32 numbers, and so are their ratios."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Demand:
    """What one op asks of one tensor; what is None it leaves open.

    Parameters
    ----------
    who
        The op, as reasons name it: "nn.conv2d y".
    dtypes, schemes, granularity
        What is allowed, the best first.
    power_of_two
        Whether the scale must be one.
    narrow
        Whether the least integer of the dtype must not be used.
    scale, zero_point
        The only ones allowed.
    """

    who: str = field(compare=False)
    dtypes: tuple[str, ...] | None = None
    schemes: tuple[str, ...] | None = None
    granularity: tuple[str, ...] | None = None
    power_of_two: bool = False
    narrow: bool = False
    scale: float | None = None
    zero_point: int | None = None

    @staticmethod
    def of(who: str, tensor: TensorSupport, *, narrow: bool = False) -> Demand:
        """Return what a description says of a tensor of an op."""
        fields = {name: getattr(tensor, name) for name in ("dtypes", "schemes", "granularity", "scale", "zero_point")}
        return Demand(who=who, power_of_two=tensor.scales == "power_of_two", narrow=narrow, **fields)

    def only(self, fields: Iterable[str]) -> Demand:
        """Return the demand less what it says of other fields."""
        return Demand(who=self.who, **{name: getattr(self, name) for name in fields})

    def describe(self, fields: Iterable[str]) -> str:
        """Say what is asked of some fields."""
        words = {
            "scale": None if self.scale is None else f"scale {self.scale:.9g}",
            "zero_point": None if self.zero_point is None else f"zero point {self.zero_point}",
            "dtypes": None if self.dtypes is None else " or ".join(self.dtypes),
            "schemes": None if self.schemes is None else " or ".join(self.schemes),
            "granularity": None if self.granularity is None else " or ".join(self.granularity),
            "power_of_two": "a scale that is a power of two" if self.power_of_two else None,
        }
        return ", ".join(word for name in fields if (word := words[name]) is not None)


@dataclass(frozen=True, kw_only=True, slots=True)
class Demands:
    """What all ops ask of one tensor, or of tensors that share their parameters; in the order in which they came."""

    entries: tuple[Demand, ...] = ()

    def and_also(self, *more: Demand) -> Demands:
        """Return these demands and more; one that says what another has said is left out."""
        return Demands(entries=tuple(dict.fromkeys((*self.entries, *more))))

    def schemes(self) -> Mapping[str, QuantScheme]:
        """Return by dtype what the integers can be, the dtypes in the order of the first that prefers one."""
        return _schemes(self.entries)

    def restricts_width(self) -> str:
        """Return who leaves only one width, as reasons name it."""
        alone = (entry.who for entry in self.entries if len(set(map(width_of, _schemes((entry,))))) == 1)
        return next(alone, "its ops together")

    def conflict(self, tensor: str) -> str | None:
        """Return why nothing satisfies all: which ops ask for what, as few of them as say it; None where something does."""
        if self.schemes():
            return None
        for count in (1, 2, len(self.entries)):
            for chosen in combinations(self.entries, count):
                for fields in _fewest_fields():
                    if not _schemes(tuple(entry.only(fields) for entry in chosen)):
                        return _said(tensor, chosen, fields)
        raise AssertionError("the last try is all demands with all fields")


def width_of(dtype: str) -> int:
    """Return how many bits a dtype of activations has."""
    return QuantScheme(dtype=dtype).num_bits


def _fewest_fields() -> Iterable[tuple[str, ...]]:
    for count in range(1, len(_FIELDS) + 1):
        yield from combinations(_FIELDS, count)


def _said(tensor: str, chosen: Sequence[Demand], fields: tuple[str, ...]) -> str:
    asked = [(entry.who, words) for entry in chosen if (words := entry.describe(fields))]
    if len(asked) == 1:
        [(who, words)] = asked
        return f"{who} needs {words} for {tensor}; quantize makes uint8, int8 and symmetric int16, one scale per tensor"
    return f"{tensor} cannot be all that its ops need: " + ", ".join(f"{who} {words}" for who, words in asked)


@lru_cache(maxsize=4096)
def _schemes(entries: tuple[Demand, ...]) -> Mapping[str, QuantScheme]:
    """Return by dtype what satisfies all demands; empty where nothing does."""
    scales = {np.float32(entry.scale): entry.scale for entry in entries if entry.scale is not None}
    zero_points = {entry.zero_point for entry in entries if entry.zero_point is not None}
    power_of_two = any(entry.power_of_two for entry in entries)
    if len(scales) > 1 or len(zero_points) > 1 or not all("per_tensor" in (e.granularity or ("per_tensor",)) for e in entries):
        return {}
    scale, zero_point = next(iter(scales.values()), None), next(iter(zero_points), None)
    if scale is not None and not (
        1 / LARGEST_SCALE <= scale <= LARGEST_SCALE and (not power_of_two or np.frexp(scale)[0] == 0.5)
    ):
        return {}
    found: dict[str, QuantScheme] = {}
    for dtype, scheme in _MADE:
        qmin, qmax = INTEGER_RANGE[dtype]
        if zero_point is not None and not (qmin <= zero_point <= qmax and (scheme == "asymmetric" or zero_point == 0)):
            continue
        if dtype in found or not all(_allows(entry, dtype, scheme) for entry in entries):
            continue
        found[dtype] = QuantScheme(
            dtype=dtype,
            symmetric=scheme == "symmetric",
            narrow=any(entry.narrow for entry in entries),
            power_of_two=power_of_two,
            scale=scale,
            zero_point=zero_point,
        )
    requested = next((entry.dtypes for entry in entries if entry.dtypes), ())
    return {dtype: found[dtype] for dtype in (*requested, *found) if dtype in found}


def _allows(entry: Demand, dtype: str, scheme: str) -> bool:
    return (entry.dtypes is None or dtype in entry.dtypes) and (entry.schemes is None or scheme in entry.schemes)
