"""Rotary embeddings as standard ops: pairs of features turned by an angle that depends on the position."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..frontend import RejectedOpError
from .standard_steps import Steps


@dataclass(frozen=True, kw_only=True, slots=True)
class Angles:
    """Cosines and sines, which broadcast to [batch, heads, rows, features / 2], of the first `features` of each head."""

    cos: str
    sin: str
    features: int
    is_interleaved: bool


def turned(r: Steps, x: str, size: int, angles: Angles, *, to: str = "") -> str:
    """Turn the pairs of x [batch, heads, rows, size]: interleaved ones are neighbours, others half the features apart."""
    count = angles.features
    part = x if count == size else r.cut(x, 3, 0, count)
    last = to if count == size else ""
    if angles.is_interleaved:
        pairs = r.emit("Reshape", [part, r.sizes(0, 0, -1, count // 2, 2)])
        first, second = (r.squeeze(r.cut(pairs, 4, place, place + 1), 4) for place in (0, 1))
        both = [r.unsqueeze(each, 4) for each in _rotated(r, first, second, angles)]
        result = r.reshape(r.emit("Concat", both, axis=4), 0, 0, -1, count, to=last)
    else:
        first, second = r.cut(part, 3, 0, count // 2), r.cut(part, 3, count // 2, count)
        result = r.emit("Concat", _rotated(r, first, second, angles), to=last, axis=3)
    return result if count == size else r.emit("Concat", [result, r.cut(x, 3, count)], to=to, axis=3)


def _rotated(r: Steps, first: str, second: str, angles: Angles) -> tuple[str, str]:
    cos, sin = angles.cos, angles.sin
    left = r.emit("Sub", [r.emit("Mul", [first, cos]), r.emit("Mul", [second, sin])])
    right = r.emit("Add", [r.emit("Mul", [second, cos]), r.emit("Mul", [first, sin])])
    return left, right


def angles_at(r: Steps, caches: tuple[str, str], positions: str, *, is_interleaved: bool) -> Angles:
    """Return the angles at int64 positions [batch or 1, rows], which rows of the caches hold."""
    cos, sin = (r.unsqueeze(r.emit("Gather", [cache, positions], axis=0), 1) for cache in caches)
    return Angles(cos=cos, sin=sin, features=2 * r.size(caches[0], -1), is_interleaved=is_interleaved)


def angles_from(r: Steps, caches: tuple[str, str], places: str, *, is_interleaved: bool) -> Angles:
    """Return the angles of int64 positions [rows], the same for each sample."""
    cos, sin = (r.emit("Gather", [cache, places], axis=0) for cache in caches)
    return Angles(cos=cos, sin=sin, features=2 * r.size(caches[0], -1), is_interleaved=is_interleaved)


def _rotary(r: Steps) -> None:
    """Turn [batch, rows, heads * size] or [batch, heads, rows, size] by caches at the positions given, or from a first one on."""
    r.refuse_attributes("is_packed_batching", advice="give each sample rows of its own")
    if float(r.attrs.get("scale", 1.0)) != 1.0:
        raise RejectedOpError(f"its attribute scale = {r.attrs['scale']} is not supported; scale the caches of cosines and sines")
    x, places = r.required(0, "input"), r.required(1, "position_ids")
    caches = r.required(2, "cos_cache"), r.required(3, "sin_cache")
    features, heads = 2 * r.size(caches[0], -1), int(r.attrs.get("num_heads", 0))
    has_heads = r.rank(x) == 4
    size = r.size(x, -1) if has_heads else r.size(x, -1) // heads if heads else features
    if r.rank(places) < 2:
        rows = r.range_to(r.dim(x, 2 if has_heads else 1))
        places = r.unsqueeze(r.emit("Add", [rows, places]), 0)
    angles = angles_at(r, caches, places, is_interleaved=bool(r.attrs.get("interleaved", 0)))
    _turn(r, x, size, angles)


def _turn(r: Steps, x: str, size: int, angles: Angles) -> None:
    """End in the turned heads, each of that size, in the form that they came in."""
    if r.rank(x) == 4:
        turned(r, x, size, angles, to=r.output(0))
        return
    features = r.size(x, -1)
    r.join_by_head(turned(r, r.by_head(x, features // size, size), size, angles), features, to=r.output(0))


def _rotary_of_onnx(r: Steps) -> None:
    """ONNX's own op of that name: caches that positions choose from, or cosines and sines of each sample and row."""
    x, caches, heads = (
        r.required(0, "X"),
        (r.required(1, "cos_cache"), r.required(2, "sin_cache")),
        int(r.attrs.get("num_heads", 0)),
    )
    if r.rank(x) == 3 and not heads:
        raise RejectedOpError("its attribute num_heads is missing, and its input has three axes; state it")
    size = r.size(x, -1) if r.rank(x) == 4 else r.size(x, -1) // heads
    is_interleaved = bool(r.attrs.get("interleaved", 0))
    if r.input(3):
        _turn(r, x, size, angles_at(r, caches, r.input(3), is_interleaved=is_interleaved))
        return
    cos, sin = (r.unsqueeze(cache, 1) for cache in caches)
    angles = Angles(cos=cos, sin=sin, features=2 * r.size(caches[0], -1), is_interleaved=is_interleaved)
    _turn(r, x, size, angles)


REWRITES: dict[str, Callable[[Steps], None]] = {"RotaryEmbedding": _rotary}
"""How each op becomes standard ones."""

STANDARD_REWRITES: dict[str, Callable[[Steps], None]] = {"RotaryEmbedding": _rotary_of_onnx}
"""How each op of ONNX becomes others."""
