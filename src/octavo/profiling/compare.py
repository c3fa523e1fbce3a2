"""Two profiles side by side: how their models differ, and which tensors changed. It reads profiles and changes nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import ProfileError, check_type
from ..ir.graph.model import Model
from ..ir.identity import TensorId
from ..numerics.statistics.histogram import Histogram
from .model_profile import Profile
from .statistics import TensorStatistics

_MAX_NAMED = 3
_MADE_OF = ("source_name", "kind", "op", "layer", "shape", "dtype")
_SIDES = "first", "second"


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorChange:
    """How far the values of one tensor changed from one profile to another; both numbers are the same in either direction.

    Parameters
    ----------
    id, source_name, op
        As in the profiles.
    before, after
        Minimum and maximum in either profile.
    range_change
        How far the minimum or the maximum moved, whichever moved further, as a share of the wider of the two ranges; where both
        ranges are single values, of the larger of their magnitudes.
    values_change
        Largest difference of the two distribution functions at the ends of the histograms' bins, in [0; 1]: 0 for alike
        histograms, 1 where all values of one lie beyond those of the other (the statistic of Kolmogorov and Smirnov).
    non_finite_before, non_finite_after
        NaN and infinite values in either profile.
    """

    id: TensorId
    source_name: str
    op: str
    before: tuple[float, float]
    after: tuple[float, float]
    range_change: float
    values_change: float
    non_finite_before: int
    non_finite_after: int

    @property
    def has_changed(self) -> bool:
        """Whether anything changed at all."""
        return bool(self.range_change or self.values_change or self.non_finite_before != self.non_finite_after)

    def to_json(self) -> dict[str, Any]:
        """Return the fields for JSON."""
        return {
            "id": self.id,
            "source_name": self.source_name,
            "op": self.op,
            "before": list(self.before),
            "after": list(self.after),
            "range_moved": self.range_change,
            "values_moved": self.values_change,
            "non_finite_before": self.non_finite_before,
            "non_finite_after": self.non_finite_after,
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class ProfileDiff:
    """What differs between two profiles of one model.

    Parameters
    ----------
    changes
        One for each tensor that both observe, the one whose range changed most first, then by values, then by TensorId.
    only_before, only_after
        Tensors that one of them observes.
    """

    changes: tuple[TensorChange, ...]
    only_before: tuple[TensorId, ...]
    only_after: tuple[TensorId, ...]


def diff(before: Profile, after: Profile) -> ProfileDiff:
    """Compare two profiles of one model.

    Raises
    ------
    ProfileError
        The profiles belong to different models; the message says what differs.
    """
    check_type(before, Profile, ProfileError, "a Profile to compare")
    check_type(after, Profile, ProfileError, "a Profile to compare")
    check_same_model(before, after)
    changes = [_change(value, after[key]) for key, value in before.items() if key in after]
    return ProfileDiff(
        changes=tuple(sorted(changes, key=lambda change: (-change.range_change, -change.values_change, change.id))),
        only_before=tuple(sorted(before.keys() - after.keys())),
        only_after=tuple(sorted(after.keys() - before.keys())),
    )


def check_same_model(first: Profile, second: Profile, names: tuple[str, str] = _SIDES) -> None:
    """Raise ProfileError unless both profiles have one fingerprint, saying what differs between the models.

    Parameters
    ----------
    names
        What the message calls the two.
    """
    if first.fingerprint != second.fingerprint:
        raise ProfileError(
            f"profiles of different models: fingerprints {first.fingerprint} ({names[0]}) and {second.fingerprint} "
            f"({names[1]}): {_distinguished(first.tensors, second.tensors, names)}; give profiles of one model"
        )


def check_model(profile: Profile, model: Model) -> None:
    """Raise ProfileError unless the profile was made from this very model, saying what differs between the two models."""
    if profile.fingerprint != model.fingerprint:
        known = {key: model.tensors[key] for key in profile if key in model.tensors}
        raise ProfileError(
            f"the profile belongs to another model: it was made from {profile.fingerprint}, this model is {model.fingerprint}: "
            f"{_distinguished(profile.tensors, known, ('the profile', 'the model'))}; profile this model"
        )


def _distinguished(first: Any, second: Any, names: tuple[str, str]) -> str:
    """Return what is different between two tables of tensors whose models differ."""
    parts: list[str] = []
    for name, own, other in ((names[0], first, second), (names[1], second, first)):
        alone = sorted(own.keys() - other.keys())
        if alone:
            parts.append(f"only {name} holds {_listed(alone)}")
    shared = sorted(first.keys() & second.keys())
    for field in _MADE_OF:
        differing = [key for key in shared if getattr(first[key], field) != getattr(second[key], field)]
        if differing:
            own, other = getattr(first[differing[0]], field), getattr(second[differing[0]], field)
            more = f" (and of {len(differing) - 1} more)" if len(differing) > 1 else ""
            parts.append(f"{field} of {differing[0]} is {_shown(own)} and {_shown(other)}{more}")
    if not parts:
        changed = [key for key in shared if _constants_differ(first[key], second[key])]
        parts.append(
            f"the same tensors, but other values in {_listed(changed)}"
            if changed
            else "the tensors described are alike, so it lies in attributes of the ops or in the weights"
        )
    return "; ".join(parts)


def _constants_differ(first: Any, second: Any) -> bool:
    if not (isinstance(first, TensorStatistics) and isinstance(second, TensorStatistics)) or first.kind != "constant":
        return False
    ends = [(one.minimum, one.maximum, one.count) for one in (first, second)]
    return ends[0] != ends[1] or first.histogram != second.histogram


def _listed(keys: list[TensorId]) -> str:
    more = len(keys) - _MAX_NAMED
    return ", ".join(keys[:_MAX_NAMED]) + (f" and {more} more" if more > 0 else "")


def _shown(value: Any) -> str:
    return str(list(value)) if isinstance(value, tuple) else repr(value)


def _change(before: TensorStatistics, after: TensorStatistics) -> TensorChange:
    ends = (before.minimum, before.maximum), (after.minimum, after.maximum)
    widest = max(high - low for low, high in ends) or max(abs(low) for low, _ in ends) or 1.0
    furthest = max(abs(one - other) for one, other in zip(*ends, strict=True))
    return TensorChange(
        id=before.id,
        source_name=before.source_name,
        op=before.op,
        before=ends[0],
        after=ends[1],
        range_change=furthest / widest,
        values_change=_distance(before.histogram, after.histogram),
        non_finite_before=before.non_finite,
        non_finite_after=after.non_finite,
    )


def _distance(first: Histogram, second: Histogram) -> float:
    """Return the largest difference of the two distribution functions; 1 where only one of them counts any value."""
    if not first.total or not second.total:
        return float(first.total != second.total)
    bins = np.union1d(first.bins, second.bins)
    shares = [
        np.concatenate([[0], np.cumsum(part.counts)])[np.searchsorted(part.bins, bins, "right")] for part in (first, second)
    ]
    return float(np.abs(shares[0] / first.total - shares[1] / second.total).max())
