"""Finding source tensors among the new values of a module by what they are on the probe. Claims nothing that does not agree."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ..identity import TensorId
from ..identity.relation import SAME, Relation, agree, find_relation, is_telling, largest_difference
from ..identity.tensor_state import Evidence
from .evaluate import Evaluator
from .value_numbers import ValueNumbers

Array = npt.NDArray[Any]

# Largest difference as a share of the largest magnitude, by mantissa bits of the coarsest float on the way: float32 sums of a
# deep network in another order; float16; bfloat16.
_TOLERANCE = {23: 5e-4, 10: 3e-2, 7: 0.2}
# Where two values may differ by more than this, factors fit the difference and prove nothing.
_FACTORS_TOLERANCE = 1e-3
# Two differences as shares of the largest magnitude are the same if both are rounding, or one is not this much smaller.
_ROUNDING = 1e-6
_CLEARLY = 8.0


@dataclass(frozen=True, slots=True, eq=False)
class Link:
    """Where a tensor was last found: the number of the value, how it relates to the source's, and how that is known."""

    number: int
    relation: Relation = SAME
    evidence: Evidence = "structure"


@dataclass(frozen=True, slots=True)
class Spot:
    """A value that was not there before: a variable by its index in the order of execution, or a constant (index None)."""

    number: int
    name: str
    is_inner: bool
    index: int | None


def tolerance_of(numbers: ValueNumbers, *values: int) -> float:
    """Return how far two values may differ that are computed as these numbers are."""
    bits = min(numbers.nodes[number].precision for number in values)
    return next((value for known, value in _TOLERANCE.items() if bits >= known), _TOLERANCE[7])


@dataclass(slots=True, eq=False)
class ValueSearch:
    """One search.

    Parameters
    ----------
    numbers, evaluator
        Of both modules.
    sources
        Number of each id's value in the source module.
    links
        Where each id was in the module before.
    spots
        The values of the module after that were not there before.
    rivals
        Numbers of the module before: a value that is clearly one of these is no other, though it be within the tolerance.
    """

    numbers: ValueNumbers
    evaluator: Evaluator
    sources: Mapping[TensorId, int]
    links: Mapping[TensorId, Link]
    spots: Sequence[Spot]
    rivals: Iterable[int] = ()
    _values: dict[int, Array] = field(default_factory=dict[int, Array])
    _marks: dict[int, tuple[float, float, float]] = field(default_factory=dict[int, tuple[float, float, float]])
    _telling: dict[int, bool] = field(default_factory=dict[int, bool])
    _layouts: list[tuple[int, ...]] = field(default_factory=list[tuple[int, ...]])

    def find(self, lost: list[TensorId]) -> dict[TensorId, tuple[Spot, Link]]:
        """Match moved values first, of the same name before others; then look for factors among what is left."""
        wanted = [number for tensor in lost for number in (self.sources[tensor], self.links[tensor].number)]
        self._values = self.evaluator.get([*wanted, *(spot.number for spot in self.spots)])
        found: dict[TensorId, tuple[Spot, Link]] = {}
        for tensor in lost:
            match = self._closest(tensor)
            if match is not None:
                found[tensor] = match
                permutation = match[1].relation.permutation
                if permutation is not None and permutation not in self._layouts:
                    self._layouts.append(permutation)
        taken = {spot.number for spot, _ in found.values()}
        for tensor in lost:
            match = None if tensor in found else self._rescaled(tensor, taken)
            if match is not None:
                found[tensor] = match
        return found

    def _candidates(self, tensor: TensorId) -> Iterable[Spot]:
        """Return the values of the right size, those of the same name first."""
        size = self._values[self.sources[tensor]].size
        fitting = [spot for spot in self.spots if spot.number in self._values and self._values[spot.number].size == size]
        return sorted(fitting, key=lambda spot: (spot.name != tensor, spot.is_inner, spot.index is None))

    def _is_telling(self, number: int) -> bool:
        if number not in self._telling:
            self._telling[number] = is_telling(self._values[number])
        return self._telling[number]

    def _closest(self, tensor: TensorId) -> tuple[Spot, Link] | None:
        """Return the value that is closest to a tensor: among those as close as rounding leaves them, the first."""
        source = self.sources[tensor]
        if source not in self._values:
            return None
        scale = max(float(np.max(np.abs(self._values[source]), initial=0.0)), 1e-30)
        best: tuple[Spot, Link] | None = None
        least = np.inf
        for spot in self._candidates(tensor):
            # A few values, all zero say, are found anywhere: then only the name can tell which variable is meant.
            if not self._is_telling(source) and spot.name != tensor:
                continue
            link = self._link(tensor, spot)
            if link is None:
                continue
            difference = self._difference(tensor, spot, link) / scale
            if best is None or (difference * _CLEARLY < least and least > _ROUNDING):
                best, least = (spot, link), difference
            if least <= _ROUNDING:
                return best
        return None if best is None or self._is_rather_another(tensor, *best, least * scale) else best

    def _link(self, tensor: TensorId, spot: Spot) -> Link | None:
        """Return how a value may be that of a tensor, None if it isn't."""
        source, link = self.sources[tensor], self.links[tensor]
        if self._is_same(link.number, spot.number):
            return Link(link.number, link.relation)
        tolerance = tolerance_of(self.numbers, source, spot.number)
        before = link.relation
        if before.is_scaled and not before.is_rearranged and link.number in self._values:
            moved = find_relation(self._values[link.number], self._values[spot.number], tolerance=tolerance, with_factors=False)
            return None if moved is None or moved.shape else Link(spot.number, replace(before, permutation=moved.permutation))
        if not self._may_agree(source, spot.number, tolerance):
            return None
        relation = find_relation(self._values[source], self._values[spot.number], tolerance=tolerance, with_factors=False)
        return None if relation is None else Link(spot.number, relation)

    def _difference(self, tensor: TensorId, spot: Spot, link: Link) -> float:
        now = self._values[spot.number]
        if link.number != spot.number:
            return largest_difference(self._values[link.number], now)
        return largest_difference(link.relation.apply(self._values[self.sources[tensor]]), now)

    def _is_rather_another(self, tensor: TensorId, spot: Spot, link: Link, difference: float) -> bool:
        """Return whether a value before that isn't the tensor's is clearly closer: the tensor without its bias, say."""
        now, own = self._values[spot.number], (self.sources[tensor], self.links[tensor].number)
        is_same = link.number != spot.number
        like = self._values[own[1] if is_same else own[0]]
        for number in self.rivals:
            rival = self.evaluator.values.get(number)
            if number in own or rival is None or rival.shape != like.shape or rival.dtype != like.dtype:
                continue
            # Factors that nearly are 1 fit a small bias, too: what needs none is closer.
            unscaled = replace(link.relation, axis=None, factors=SAME.factors)
            forms = [rival] if is_same else [relation.apply(rival) for relation in {link.relation, unscaled}]
            if any(largest_difference(form, now) * _CLEARLY < difference for form in forms):
                return True
        return False

    def _is_same(self, old: int, new: int) -> bool:
        """Return whether a new value may take the place of an old one in every respect."""
        if old not in self._values:
            return False
        nodes, a, b = self.numbers.nodes, self._values[old], self._values[new]
        if a.dtype != b.dtype or a.shape != b.shape or nodes[old].precision != nodes[new].precision:
            return False
        tolerance = tolerance_of(self.numbers, old, new)
        return self._may_agree(old, new, tolerance) and agree(a, b, tolerance)

    def _rescaled(self, tensor: TensorId, taken: set[int]) -> tuple[Spot, Link] | None:
        source = self.sources[tensor]
        if source not in self._values or not self._is_telling(source):
            return None
        for spot in self._candidates(tensor):
            tolerance = tolerance_of(self.numbers, source, spot.number)
            if spot.number in taken or tolerance > _FACTORS_TOLERANCE:
                continue
            relation = find_relation(
                self._values[source], self._values[spot.number], tolerance=tolerance, permutations=self._layouts
            )
            if relation is not None and relation.is_scaled:
                link = Link(spot.number, relation)
                if not self._is_rather_another(tensor, spot, link, self._difference(tensor, spot, link)):
                    return spot, link
        return None

    def _may_agree(self, a: int, b: int, tolerance: float) -> bool:
        """Return whether two values could hold the same elements in some order: a cheap test that never says no wrongly."""
        x, y = self._values[a], self._values[b]
        if x.dtype.kind != "f" or y.dtype.kind != "f":
            return True
        (low_x, high_x, mean_x), (low_y, high_y, mean_y) = self._mark(a), self._mark(b)
        if not np.isfinite([low_x, high_x, low_y, high_y]).all():
            return True
        room = 1.01 * tolerance * max(abs(low_x), abs(high_x), 1e-30)
        return abs(low_x - low_y) <= room and abs(high_x - high_y) <= room and abs(mean_x - mean_y) <= room

    def _mark(self, number: int) -> tuple[float, float, float]:
        if number not in self._marks:
            value = self._values[number]
            none = (0.0, 0.0, 0.0)
            self._marks[number] = (
                (float(value.min()), float(value.max()), float(value.mean(dtype=np.float64))) if value.size else none
            )
        return self._marks[number]
