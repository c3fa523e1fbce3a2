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
from ..ir.identity import TensorId, TensorKind
from ..numerics.statistics.histogram import LAST_BIN, MANTISSA_BITS, Histogram
from ..runtime.json_values import Malformed, a_list, a_mapping, a_real, a_text, an_integer, an_object
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


def _single(where: str, value: Any) -> float:
    return float(np.float32(a_real(where, value)))


def _floats(value: Any, where: str, null: float) -> npt.NDArray[np.float32]:
    numbers = [null if number is None else _single(where, number) for number in a_list(where, value)]
    return np.array(numbers, np.float32)


def decode(data: Any) -> tuple[ProfileFile, StoredSamples | None]:
    """Return what a profile's file holds, and what it says of the file of its samples; Malformed for what is no profile."""
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise Malformed(f'it has no "format": "{FORMAT}"')
    version = data.get("schema_version")
    if version not in (SCHEMA_VERSION, INLINE_VERSION):
        raise Malformed(f"schema_version must be {SCHEMA_VERSION}, or {INLINE_VERSION} of older files, got {brief(version)}")
    keys = _HEADER_KEYS if version == SCHEMA_VERSION else (*(set(_HEADER_KEYS) - {"samples_file"}), *INLINE_KEYS)
    header = an_object("the profile", cast("Any", data), keys)
    an_integer("mantissa_bits", header["mantissa_bits"], MANTISSA_BITS, MANTISSA_BITS)
    fingerprint = a_text("fingerprint", header["fingerprint"])
    preprocessing = a_text("preprocessing", header["preprocessing"], may_be_empty=True)
    samples = an_integer("samples", header["samples"], 1)
    buckets = _bucket_samples(header["bucket_samples"], samples)
    tools = _tools(header["tools"])
    keep = an_integer("keep_samples", header["keep_samples"])
    stored = stored_samples(header["samples_file"]) if version == SCHEMA_VERSION else None
    try:
        kept = inline_samples(header) if version == INLINE_VERSION else Kept()
        check_kept(min(keep, samples), kept)
    except ValueError as error:
        raise Malformed(f"kept_samples: {error}") from error
    found = a_mapping("tensors", header["tensors"])
    tensors = {TensorId(key): _tensor_from_json(TensorId(key), value) for key, value in found.items()}
    if a_text(KEY, header[KEY]) != checksum_of(header):
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
    data = an_object("samples_file", value, ("bytes", "digest"))
    size = an_integer("samples_file: bytes", data["bytes"], 1)
    return StoredSamples(size=size, digest=a_text("samples_file: digest", data["digest"]))


def _bucket_samples(value: Any, samples: int) -> tuple[int, ...]:
    counts = tuple(an_integer("bucket_samples", count) for count in a_list("bucket_samples", value))
    if counts and (len(counts) != BUCKETS or sum(counts) != samples):
        raise Malformed(f"bucket_samples must be {BUCKETS} counts that add up to samples {samples}, or none")
    return counts


def _tools(value: Any) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for name, listed in a_mapping("tools", value).items():
        versions = tuple(a_text(f"tools: {name}", version) for version in a_list(f"tools: {name}", listed))
        if not versions or list(versions) != sorted(set(versions)):
            raise Malformed(f"tools: {name} must list its versions, each once, sorted")
        found[name] = versions
    return found


def _tensor_from_json(key: TensorId, value: Any) -> TensorStatistics:
    where = f"tensor {key}"
    data = an_object(where, value, _TENSOR_KEYS)
    kind = cast("TensorKind", a_text(f"{where}: kind", data["kind"], ("input", "activation", "constant")))
    shape = a_list(f"{where}: shape", data["shape"])
    axis = data["channel_axis"]
    try:
        return TensorStatistics(
            id=key,
            source_name=a_text(f"{where}: source_name", data["source_name"], may_be_empty=True),
            kind=kind,
            op=a_text(f"{where}: op", data["op"], may_be_empty=True),
            layer=a_text(f"{where}: layer", data["layer"], may_be_empty=True),
            shape=tuple(dim if isinstance(dim, str) else an_integer(f"{where}: shape", dim) for dim in shape),
            dtype=a_text(f"{where}: dtype", data["dtype"]),
            count=an_integer(f"{where}: count", data["count"]),
            zeros=an_integer(f"{where}: zeros", data["zeros"]),
            non_finite=an_integer(f"{where}: non_finite", data["non_finite"]),
            first_non_finite=_non_finite_from_json(data["first_non_finite"], f"{where}: first_non_finite"),
            minimum=_single(f"{where}: min", data["min"]),
            maximum=_single(f"{where}: max", data["max"]),
            channel_axis=None if axis is None else an_integer(f"{where}: channel_axis", axis, 0, max(len(shape) - 1, 0)),
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
    data = an_object(where, value, ("index", "sample"))
    index = tuple(an_integer(f"{where}: index", number) for number in a_list(f"{where}: index", data["index"]))
    return NonFinite(sample=an_integer(f"{where}: sample", data["sample"]), index=index)


def _histogram_from_json(value: Any, where: str) -> Histogram:
    data = an_object(where, value, ("counts", "gaps"))
    counts = [an_integer(f"{where}: counts", count, 1) for count in a_list(f"{where}: counts", data["counts"])]
    if sum(counts) > MAX_COUNT:
        raise Malformed(f"{where}: counts must add up to at most {MAX_COUNT}")
    listed = a_list(f"{where}: gaps", data["gaps"])
    gaps = [an_integer(f"{where}: gaps", gap, 1 if place else -LAST_BIN, 2 * LAST_BIN) for place, gap in enumerate(listed)]
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
