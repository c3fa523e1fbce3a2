"""The profile file: JSON, versioned, deterministic, and distrusted on reading. docs/profile.schema.json describes it.

One tensor a line, or one kept sample, or what the model gave for it. Keys are sorted, floats the shortest decimal that is the
same float32, of histograms the bins in use, arrays as array_text.py encodes them.
Nothing in a file is ever executed or looked up; every value is checked before it is used.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from ..errors import ProfileError, brief
from ..ir.identity import TensorId
from ..numerics.statistics.histogram import LAST_BIN, MANTISSA_BITS, Histogram
from ..runtime.atomic_write import write_atomically
from .array_text import decode_array, encode_array
from .buckets import BUCKETS
from .kept_samples import Kept, Sample, check_kept
from .statistics import MAX_COUNT, NonFinite, TensorStatistics

FORMAT = "octavo-profile"
SCHEMA_VERSION = 6

KEY = "checksum"
"""Of what the file says, not of how it is laid out: it catches accidents, it is no signature."""

_HEADER_KEYS = (
    KEY,
    "bucket_samples",
    "fingerprint",
    "format",
    "keep_samples",
    "kept_results",
    "kept_samples",
    "mantissa_bits",
    "preprocessing",
    "samples",
    "schema_version",
    "tensors",
    "tools",
)
_TENSOR_KEYS = (
    "bucket_max",
    "bucket_min",
    "channel_axis",
    "channel_max",
    "channel_min",
    "count",
    "dtype",
    "first_non_finite",
    "histogram",
    "kind",
    "layer",
    "max",
    "min",
    "non_finite",
    "op",
    "shape",
    "source_name",
    "zeros",
)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ProfileFile:
    """What a profile file holds."""

    fingerprint: str
    preprocessing: str
    samples: int
    tensors: Mapping[TensorId, TensorStatistics]
    bucket_samples: tuple[int, ...]
    tools: Mapping[str, tuple[str, ...]]
    keep_samples: int
    kept: Kept


def write_profile(content: ProfileFile, path: Path, *, temporary: Path | None = None) -> None:
    """Write a profile under a temporary name, of this process alone unless given, then rename it; ProfileError if it can't be."""
    write_atomically(path, encode(content), ProfileError, "the profile", temporary=temporary)


def read_profile(path: Path) -> ProfileFile:
    """Read and check a profile; ProfileError names the file and the first thing wrong with it."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror or str(error) if isinstance(error, OSError) else "it is not text"
        raise ProfileError(f"{path}: cannot read the profile: {reason}") from error
    try:
        data = json.loads(text, parse_constant=_no_constant, object_pairs_hook=_unique_keys)
    except (ValueError, RecursionError) as error:
        raise ProfileError(f"{path}: not a profile (not JSON, or cut short): {error}") from error
    try:
        return _decode(data)
    except _Malformed as error:
        raise ProfileError(f"{path}: not a valid profile: {error}; profile the model again") from error


def encode(content: ProfileFile) -> str:
    """Return the text of a profile file: the same content, in the same order of tensors, gives the same text."""
    lines = {json.dumps(str(key)): compact(_tensor_to_json(value)) for key, value in content.tensors.items()}
    header: dict[str, Any] = {
        "bucket_samples": list(content.bucket_samples),
        "fingerprint": content.fingerprint,
        "format": FORMAT,
        "keep_samples": content.keep_samples,
        "kept_results": _arrays_to_json(content.kept.results),
        "kept_samples": _arrays_to_json(content.kept.samples),
        "mantissa_bits": MANTISSA_BITS,
        "preprocessing": content.preprocessing,
        "samples": content.samples,
        "schema_version": SCHEMA_VERSION,
    }
    in_order = [json.dumps(str(key)) for key in sorted(content.tensors)]
    tools = {"tools": {name: list(versions) for name, versions in content.tools.items()}}
    # "tensors" and "tools" sort last among the keys.
    parts = (f"{',' if place else ''}{key}:{lines[key]}" for place, key in enumerate(in_order))
    checksum = checksum_of_parts(chain([f'{compact(header)[:-1]},"tensors":{{'], parts, [f"}},{compact(tools)[1:]}"]))
    results, samples = (",\n".join(map(compact, header.pop(name))) for name in ("kept_results", "kept_samples"))
    body = ",\n".join(f"{key}:{line}" for key, line in lines.items())
    first = compact({**header, **tools, KEY: checksum})[:-1]
    kept = f'"kept_results":[\n{results}\n],\n"kept_samples":[\n{samples}\n]'
    return f'{first},\n{kept},\n"tensors":{{\n{body}\n}}}}\n'


def _arrays_to_json(listed: Sequence[Sample]) -> list[list[dict[str, Any]]]:
    return [[encode_array(array) for array in arrays] for arrays in listed]


def _decimal(value: float) -> float:
    """Return the float64 that prints as the shortest decimal of a float32."""
    return float(str(np.float32(value)))


def _decimal_or_null(value: float) -> float | None:
    """Return None for the bound of a channel or bucket without values."""
    return None if np.isinf(value) else _decimal(value)


def _tensor_to_json(value: TensorStatistics) -> dict[str, Any]:
    first = value.first_non_finite
    return {
        "bucket_max": [_decimal_or_null(number) for number in value.bucket_maximum],
        "bucket_min": [_decimal_or_null(number) for number in value.bucket_minimum],
        "channel_axis": value.channel_axis,
        "channel_max": [_decimal_or_null(number) for number in value.channel_maximum],
        "channel_min": [_decimal_or_null(number) for number in value.channel_minimum],
        "count": value.count,
        "dtype": value.dtype,
        "first_non_finite": None if first is None else {"index": list(first.index), "sample": first.sample},
        "histogram": {
            "counts": value.histogram.counts.tolist(),
            "gaps": np.diff(value.histogram.bins, prepend=0).tolist(),
        },
        "kind": value.kind,
        "layer": value.layer,
        "max": _decimal(value.maximum),
        "min": _decimal(value.minimum),
        "non_finite": value.non_finite,
        "op": value.op,
        "shape": list(value.shape),
        "source_name": value.source_name,
        "zeros": value.zeros,
    }


class _Malformed(Exception):
    """What is wrong, in words; becomes a ProfileError that names the file."""


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not allowed")


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("a key appears twice in one object")
    return result


def _object(value: Any, keys: tuple[str, ...], where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _Malformed(f"{where} must be an object, got {type(value).__name__}")
    found = cast("dict[str, Any]", value)
    if set(found) != set(keys):
        missing, unknown = sorted(set(keys) - set(found)), sorted(set(found) - set(keys))
        raise _Malformed(f"{where} lacks {missing}" if missing else f"{where} holds unknown {unknown[:5]}")
    return found


def _integer(value: Any, where: str, low: int = 0, high: int = MAX_COUNT) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise _Malformed(f"{where} must be an integer in [{low}; {high}], got {brief(value)}")
    return value


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise _Malformed(f"{where} must be a string, got {brief(value)}")
    return value


def _list(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise _Malformed(f"{where} must be a list, got {brief(value)}")
    return cast("list[Any]", value)


def _float(value: Any, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or abs(value) > float(np.finfo(np.float32).max):
        raise _Malformed(f"{where} must be a finite float32 number, got {brief(value)}")
    return float(np.float32(value))


def _floats(value: Any, where: str, null: float) -> npt.NDArray[np.float32]:
    numbers = [null if number is None else _float(number, where) for number in _list(value, where)]
    return np.array(numbers, np.float32)


def _decode(data: Any) -> ProfileFile:
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise _Malformed(f'it has no "format": "{FORMAT}"')
    if data.get("schema_version") != SCHEMA_VERSION:
        raise _Malformed(f"schema_version must be {SCHEMA_VERSION}, got {brief(data.get('schema_version'))}")
    header = _object(cast("Any", data), _HEADER_KEYS, "the profile")
    _integer(header["mantissa_bits"], "mantissa_bits", MANTISSA_BITS, MANTISSA_BITS)
    fingerprint = _text(header["fingerprint"], "fingerprint")
    preprocessing = _text(header["preprocessing"], "preprocessing")
    samples = _integer(header["samples"], "samples", 1)
    buckets = _bucket_samples(header["bucket_samples"], samples)
    tools = _tools(header["tools"])
    keep = _integer(header["keep_samples"], "keep_samples")
    kept = Kept(*(_arrays(header[name], name) for name in ("kept_samples", "kept_results")))
    try:
        check_kept(min(keep, samples), kept)
    except ValueError as error:
        raise _Malformed(f"kept_samples: {error}") from error
    if not isinstance(header["tensors"], dict):
        raise _Malformed("tensors must be an object")
    tensors: dict[TensorId, TensorStatistics] = {}
    for key, value in cast("dict[str, Any]", header["tensors"]).items():
        tensors[TensorId(key)] = _tensor_from_json(TensorId(key), value)
    if _text(header[KEY], KEY) != checksum_of(header):
        raise _Malformed("its content does not fit its checksum: it was changed after it was written")
    return ProfileFile(
        fingerprint=fingerprint,
        preprocessing=preprocessing,
        samples=samples,
        tensors=tensors,
        bucket_samples=buckets,
        tools=tools,
        keep_samples=keep,
        kept=kept,
    )


def _bucket_samples(value: Any, samples: int) -> tuple[int, ...]:
    counts = tuple(_integer(count, "bucket_samples") for count in _list(value, "bucket_samples"))
    if counts and (len(counts) != BUCKETS or sum(counts) != samples):
        raise _Malformed(f"bucket_samples must be {BUCKETS} counts that add up to samples {samples}, or none")
    return counts


def _arrays(value: Any, name: str) -> tuple[Sample, ...]:
    found: list[Sample] = []
    for place, arrays in enumerate(_list(value, name)):
        where = f"{name}: {place}"
        try:
            found.append(tuple(decode_array(array) for array in _list(arrays, where)))
        except ValueError as error:
            raise _Malformed(f"{where}: {error}") from error
    return tuple(found)


def _tools(value: Any) -> dict[str, tuple[str, ...]]:
    if not isinstance(value, dict):
        raise _Malformed("tools must be an object")
    found: dict[str, tuple[str, ...]] = {}
    for name, listed in cast("dict[str, Any]", value).items():
        versions = tuple(_text(version, f"tools: {name}") for version in _list(listed, f"tools: {name}"))
        if not versions or list(versions) != sorted(set(versions)):
            raise _Malformed(f"tools: {name} must list its versions, each once, sorted")
        found[name] = versions
    return found


def _tensor_from_json(key: TensorId, value: Any) -> TensorStatistics:
    where = f"tensor {key}"
    data = _object(value, _TENSOR_KEYS, where)
    kind = _text(data["kind"], f"{where}: kind")
    if kind not in ("input", "activation", "constant"):
        raise _Malformed(f"{where}: kind must be input, activation or constant, got {brief(kind)}")
    shape = _list(data["shape"], f"{where}: shape")
    axis = data["channel_axis"]
    try:
        return TensorStatistics(
            id=key,
            source_name=_text(data["source_name"], f"{where}: source_name"),
            kind=kind,
            op=_text(data["op"], f"{where}: op"),
            layer=_text(data["layer"], f"{where}: layer"),
            shape=tuple(dim if isinstance(dim, str) else _integer(dim, f"{where}: shape") for dim in shape),
            dtype=_text(data["dtype"], f"{where}: dtype"),
            count=_integer(data["count"], f"{where}: count"),
            zeros=_integer(data["zeros"], f"{where}: zeros"),
            non_finite=_integer(data["non_finite"], f"{where}: non_finite"),
            first_non_finite=_non_finite_from_json(data["first_non_finite"], f"{where}: first_non_finite"),
            minimum=_float(data["min"], f"{where}: min"),
            maximum=_float(data["max"], f"{where}: max"),
            channel_axis=None if axis is None else _integer(axis, f"{where}: channel_axis", 0, max(len(shape) - 1, 0)),
            channel_minimum=_floats(data["channel_min"], f"{where}: channel_min", np.inf),
            channel_maximum=_floats(data["channel_max"], f"{where}: channel_max", -np.inf),
            histogram=_histogram_from_json(data["histogram"], f"{where}: histogram"),
            bucket_minimum=_floats(data["bucket_min"], f"{where}: bucket_min", np.inf),
            bucket_maximum=_floats(data["bucket_max"], f"{where}: bucket_max", -np.inf),
        )
    except ValueError as error:
        raise _Malformed(f"{where}: {error}") from error


def _non_finite_from_json(value: Any, where: str) -> NonFinite | None:
    if value is None:
        return None
    data = _object(value, ("index", "sample"), where)
    index = tuple(_integer(number, f"{where}: index") for number in _list(data["index"], f"{where}: index"))
    return NonFinite(sample=_integer(data["sample"], f"{where}: sample"), index=index)


def _histogram_from_json(value: Any, where: str) -> Histogram:
    data = _object(value, ("counts", "gaps"), where)
    counts = [_integer(count, f"{where}: counts", 1) for count in _list(data["counts"], f"{where}: counts")]
    if sum(counts) > MAX_COUNT:
        raise _Malformed(f"{where}: counts must add up to at most {MAX_COUNT}")
    listed = _list(data["gaps"], f"{where}: gaps")
    gaps = [_integer(gap, f"{where}: gaps", 1 if place else -LAST_BIN, 2 * LAST_BIN) for place, gap in enumerate(listed)]
    if len(gaps) > 2 * LAST_BIN + 1:
        raise _Malformed(f"{where}: {len(gaps)} gaps, there are {2 * LAST_BIN + 1} bins")
    return Histogram(bins=np.cumsum(np.array(gaps, np.int64)), counts=np.array(counts, np.int64))


def compact(value: Any) -> str:
    """Return JSON without white space, ASCII, keys sorted by code points: the form that the checksum is taken of."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def checksum_of(data: Mapping[str, Any]) -> str:
    """Return the checksum of a profile as JSON gives it, whose own checksum is left out."""
    return checksum_of_parts([compact({key: value for key, value in data.items() if key != KEY})])


def checksum_of_parts(parts: Iterable[str]) -> str:
    """Return the checksum of the compact form of a profile, given in pieces."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part.encode("ascii"))
    return f"sha256:{digest.hexdigest()}"
