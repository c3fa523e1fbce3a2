"""Which tensors of a profiled float model 16 bits cannot hold, and why: what stays float32 when the rest is downcast."""

from __future__ import annotations

from ..numerics.floats.half import MAX_FINITE, MIN_NORMAL, HalfDtype
from .model_profile import Profile


def unfit_tensors(profile: Profile, dtype: HalfDtype) -> dict[str, str]:
    """Return why a format is no place for a tensor, by the ids of those that it cannot hold.

    Values beyond the largest number would become infinite. A tensor all of whose values lie below the least normal number would
    lose most of its digits, if not all; smaller values beside larger ones lose no more than rounding takes from those.
    """
    found: dict[str, str] = {}
    for key, tensor in profile.items():
        largest = max(abs(tensor.minimum), abs(tensor.maximum))
        if tensor.kind == "constant":
            continue
        if largest > MAX_FINITE[dtype]:
            found[str(key)] = f"stays float32: it reaches {largest:g}, beyond {dtype}'s largest number {MAX_FINITE[dtype]:g}"
        elif 0 < largest < MIN_NORMAL[dtype]:
            least = MIN_NORMAL[dtype]
            found[str(key)] = f"stays float32: it stays within {largest:g}, below {dtype}'s least normal number {least:g}"
    return found
