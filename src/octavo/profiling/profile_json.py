"""The text of a profile's file: JSON, versioned, deterministic, and distrusted on reading. docs/profile.schema.json describes it.

One tensor a line. Keys are sorted, floats the shortest decimal that is the same float32, of histograms the bins in use. Kept
samples are not in it but for files of version 6 (inline_samples.py). Nothing in a text is ever executed or looked up; every value
is checked before it is used. It knows no paths.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from ..errors import brief
from ..ir.identity import TensorId
from ..numerics.statistics.histogram import LAST_BIN, MANTISSA_BITS, Histogram
from .buckets import BUCKETS
from .inline_samples import INLINE_KEYS, INLINE_VERSION, inline_samples
from .kept_samples import Kept, check_kept
from .samples_file import StoredSamples
from .statistics import MAX_COUNT, NonFinite, TensorStatistics

FORMAT = "octavo-profile"
SCHEMA_VERSION = 7

KEY = "checksum"
"""Of what the file says, not of how it is laid out: it catches accidents, it is no signature."""

_HEADER_KEYS = (
    KEY,
    "bucket_samples",
    "fingerprint",
    "format",
    "keep_samples",
    "mantissa_bits",
    "preprocessing",
    "samples",
    "samples_file",
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
    """What a profile's file and the one of its samples hold."""

    fingerprint: str
    preprocessing: str
    samples: int
    tensors: Mapping[TensorId, TensorStatistics]
    bucket_samples: tuple[int, ...]
    tools: Mapping[str, tuple[str, ...]]
    keep_samples: int
    kept: Kept


def encode(content: ProfileFile, stored: StoredSamples | None) -> str:
    """Return the text of a profile file: the same content, in the same order of tensors, gives the same text."""
    lines = {json.dumps(str(key)): compact(_tensor_to_json(value)) for key, value in content.tensors.items()}
    header: dict[str, Any] = {
        "bucket_samples": list(content.bucket_samples),
        "fingerprint": content.fingerprint,
        "format": FORMAT,
        "keep_samples": content.keep_samples,
        "mantissa_bits": MANTISSA_BITS,
        "preprocessing": content.preprocessing,
        "samples": content.samples,
        "samples_file": None if stored is None else {"bytes": stored.size, "digest": stored.digest},
        "schema_version": SCHEMA_VERSION,
    }
    in_order = [json.dumps(str(key)) for key in sorted(content.tensors)]
    tools = {"tools": {name: list(versions) for name, versions in content.tools.items()}}
    # "tensors" and "tools" sort last among the keys.
    parts = (f"{',' if place else ''}{key}:{lines[key]}" for place, key in enumerate(in_order))
    checksum = checksum_of_parts(chain([f'{compact(header)[:-1]},"tensors":{{'], parts, [f"}},{compact(tools)[1:]}"]))
    body = ",\n".join(f"{key}:{line}" for key, line in lines.items())
    first = compact({**header, **tools, KEY: checksum})[:-1]
    return f'{first},\n"tensors":{{\n{body}\n}}}}\n'


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


class Malformed(Exception):
    """What is wrong, in words; becomes a ProfileError that names the file."""


def parse(text: str) -> Any:
    """Return what JSON says, without the liberties that Python takes; ValueError or RecursionError for what is none."""
    return json.loads(text, parse_constant=_no_constant, object_pairs_hook=_unique_keys)


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not allowed")


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("a key appears twice in one object")
    return result


def _object(value: Any, keys: tuple[str, ...], where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise Malformed(f"{where} must be an object, got {type(value).__name__}")
    found = cast("dict[str, Any]", value)
    if set(found) != set(keys):
        missing, unknown = sorted(set(keys) - set(found)), sorted(set(found) - set(keys))
        raise Malformed(f"{where} lacks {missing}" if missing else f"{where} holds unknown {unknown[:5]}")
    return found


def _integer(value: Any, where: str, low: int = 0, high: int = MAX_COUNT) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise Malformed(f"{where} must be an integer in [{low}; {high}], got {brief(value)}")
    return value


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise Malformed(f"{where} must be a string, got {brief(value)}")
    return value


def _list(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise Malformed(f"{where} must be a list, got {brief(value)}")
    return cast("list[Any]", value)


def _float(value: Any, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or abs(value) > float(np.finfo(np.float32).max):
        raise Malformed(f"{where} must be a finite float32 number, got {brief(value)}")
    return float(np.float32(value))


def _floats(value: Any, where: str, null: float) -> npt.NDArray[np.float32]:
    numbers = [null if number is None else _float(number, where) for number in _list(value, where)]
    return np.array(numbers, np.float32)


def decode(data: Any) -> tuple[ProfileFile, StoredSamples | None]:
    """Return what a profile's file holds, and what it says of the file of its samples; Malformed for what is no profile."""
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise Malformed(f'it has no "format": "{FORMAT}"')
    version = data.get("schema_version")
    if version not in (SCHEMA_VERSION, INLINE_VERSION):
        raise Malformed(f"schema_version must be {SCHEMA_VERSION}, or {INLINE_VERSION} of older files, got {brief(version)}")
    keys = _HEADER_KEYS if version == SCHEMA_VERSION else (*(set(_HEADER_KEYS) - {"samples_file"}), *INLINE_KEYS)
    header = _object(cast("Any", data), keys, "the profile")
    _integer(header["mantissa_bits"], "mantissa_bits", MANTISSA_BITS, MANTISSA_BITS)
    fingerprint = _text(header["fingerprint"], "fingerprint")
    preprocessing = _text(header["preprocessing"], "preprocessing")
    samples = _integer(header["samples"], "samples", 1)
    buckets = _bucket_samples(header["bucket_samples"], samples)
    tools = _tools(header["tools"])
    keep = _integer(header["keep_samples"], "keep_samples")
    stored = stored_samples(header["samples_file"]) if version == SCHEMA_VERSION else None
    try:
        kept = inline_samples(header) if version == INLINE_VERSION else Kept()
        check_kept(min(keep, samples), kept)
    except ValueError as error:
        raise Malformed(f"kept_samples: {error}") from error
    if not isinstance(header["tensors"], dict):
        raise Malformed("tensors must be an object")
    tensors: dict[TensorId, TensorStatistics] = {}
    for key, value in cast("dict[str, Any]", header["tensors"]).items():
        tensors[TensorId(key)] = _tensor_from_json(TensorId(key), value)
    if _text(header[KEY], KEY) != checksum_of(header):
        raise Malformed("its content does not fit its checksum: it was changed after it was written")
    content = ProfileFile(
        fingerprint=fingerprint,
        preprocessing=preprocessing,
        samples=samples,
        tensors=tensors,
        bucket_samples=buckets,
        tools=tools,
        keep_samples=keep,
        kept=kept,
    )
    return content, stored


def stored_samples(value: Any) -> StoredSamples | None:
    """Return what "samples_file" says, None for null; Malformed."""
    if value is None:
        return None
    data = _object(value, ("bytes", "digest"), "samples_file")
    size = _integer(data["bytes"], "samples_file: bytes", 1)
    return StoredSamples(size=size, digest=_text(data["digest"], "samples_file: digest"))


def _bucket_samples(value: Any, samples: int) -> tuple[int, ...]:
    counts = tuple(_integer(count, "bucket_samples") for count in _list(value, "bucket_samples"))
    if counts and (len(counts) != BUCKETS or sum(counts) != samples):
        raise Malformed(f"bucket_samples must be {BUCKETS} counts that add up to samples {samples}, or none")
    return counts


def _tools(value: Any) -> dict[str, tuple[str, ...]]:
    if not isinstance(value, dict):
        raise Malformed("tools must be an object")
    found: dict[str, tuple[str, ...]] = {}
    for name, listed in cast("dict[str, Any]", value).items():
        versions = tuple(_text(version, f"tools: {name}") for version in _list(listed, f"tools: {name}"))
        if not versions or list(versions) != sorted(set(versions)):
            raise Malformed(f"tools: {name} must list its versions, each once, sorted")
        found[name] = versions
    return found


def _tensor_from_json(key: TensorId, value: Any) -> TensorStatistics:
    where = f"tensor {key}"
    data = _object(value, _TENSOR_KEYS, where)
    kind = _text(data["kind"], f"{where}: kind")
    if kind not in ("input", "activation", "constant"):
        raise Malformed(f"{where}: kind must be input, activation or constant, got {brief(kind)}")
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
        raise Malformed(f"{where}: {error}") from error


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
        raise Malformed(f"{where}: counts must add up to at most {MAX_COUNT}")
    listed = _list(data["gaps"], f"{where}: gaps")
    gaps = [_integer(gap, f"{where}: gaps", 1 if place else -LAST_BIN, 2 * LAST_BIN) for place, gap in enumerate(listed)]
    if len(gaps) > 2 * LAST_BIN + 1:
        raise Malformed(f"{where}: {len(gaps)} gaps, there are {2 * LAST_BIN + 1} bins")
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
