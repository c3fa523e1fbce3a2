"""From a profile to a neighbour's table of ranges and back.

A table holds far less than a profile: what comes back from one has ranges alone, marked so. It never replaces a profile's file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import ProfileError
from ...ir.graph.model import Model
from ...ir.identity import TensorId
from ...numerics.statistics.ranges import asymmetric_params, symmetric_params
from ...runtime.atomic_write import write_atomically
from ..constants import profile_constants
from ..encodings import Encoded, Malformed, Ranges, aimet, tensorrt
from ..model_profile import RANGES_ALONE, Profile
from ..statistics import TensorStatistics, constant_statistics
from . import onnxruntime

FORMATS = ("ort-json", "ort-flatbuffers", "ort-cache", "tensorrt", "aimet-0.6.1", "aimet-1.0.0")
"""Tables that are written; each is read, too."""


RangeOf = Callable[[TensorStatistics], tuple[float, float]]


def observed_range(tensor: TensorStatistics) -> tuple[float, float]:
    """Return [minimum; maximum]."""
    return float(tensor.minimum), float(tensor.maximum)


def write_table(profile: Profile, path: Path, form: str, *, range_of: RangeOf = observed_range) -> int:
    """Write the ranges of a profile's inputs and activations as a neighbour keeps them; return how many.

    Parameters
    ----------
    form
        One of FORMATS. AIMET's hold the weights, too, symmetric and by channel.
    range_of
        Chooses the range of a tensor; the observed one by default.

    Raises
    ------
    ProfileError
        The file cannot be written, or cannot hold a name.
    """
    assert form in FORMATS, form
    activations = {
        value.source_name or str(key): value for key, value in profile.items() if value.kind != "constant" and value.finite
    }
    ranges = {name: range_of(value) for name, value in activations.items()}
    amplitudes = {name: max(abs(low), abs(high)) for name, (low, high) in ranges.items()}
    writers: dict[str, Callable[[], str | bytes]] = {
        "ort-json": lambda: onnxruntime.write_json(ranges),
        "ort-flatbuffers": lambda: onnxruntime.write_flatbuffers(amplitudes),
        "ort-cache": lambda: onnxruntime.write_cache(amplitudes),
        "tensorrt": lambda: tensorrt.write_cache(amplitudes),
        "aimet-0.6.1": lambda: aimet.write(_activations(ranges), _weights(profile), "0.6.1"),
        "aimet-1.0.0": lambda: aimet.write(_activations(ranges), _weights(profile), "1.0.0"),
    }
    try:
        content = writers[form]()
    except Malformed as error:
        raise ProfileError(f"{path}: cannot write the table: {error}") from error
    write_atomically(path, content, ProfileError, "the table")
    return len(ranges)


def _activations(ranges: Ranges) -> dict[str, Encoded]:
    encoded: dict[str, Encoded] = {}
    for name, (low, high) in ranges.items():
        params = asymmetric_params(low, high, "uint8")
        encoded[name] = Encoded(
            scales=(float(params.scale),), offsets=(-int(params.zero_point),), symmetric=False, per_channel=False
        )
    return encoded


def _weights(profile: Profile) -> dict[str, Encoded]:
    """Weights have a channel axis; biases do not, and stay float."""
    encoded: dict[str, Encoded] = {}
    for key, value in profile.items():
        if value.kind == "constant" and value.channel_axis is not None and value.finite:
            size = np.maximum(np.abs(value.channel_minimum), np.abs(value.channel_maximum))
            largest = np.where(np.isfinite(size), size, np.float32(0))
            scales = [float(symmetric_params(np.array([number], np.float32), "int8", axis=None).scale) for number in largest]
            encoded[value.source_name or str(key)] = Encoded(
                scales=tuple(scales), offsets=(-128,) * len(scales), symmetric=True, per_channel=True
            )
    return encoded


def read_table(path: Path) -> tuple[str, Ranges]:
    """Read a neighbour's table, whichever it is; return its kind and the range of each tensor by name.

    Raises
    ------
    ProfileError
        No such file, or none of the tables that are known.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ProfileError(f"{path}: cannot read the table: {error.strerror or error}") from error
    try:
        kind, ranges = _read(content)
        if not ranges:
            raise Malformed("it holds no tensor")
    except Malformed as error:
        raise ProfileError(f"{path}: not a valid table: {error}; known are {', '.join(FORMATS)}") from error
    return kind, ranges


def _read(content: bytes) -> tuple[str, Ranges]:
    try:
        text = content.decode()
        is_text = "\0" not in text
    except UnicodeDecodeError:
        text, is_text = "", False
    if not is_text:
        return "ONNX Runtime's calibration.flatbuffers", _symmetric(onnxruntime.read_flatbuffers(content))
    if text.lstrip()[:1] == "{":
        if '"activation_encodings"' in text:
            return "AIMET's encodings", aimet.read(text)
        return "ONNX Runtime's calibration.json", onnxruntime.read_json(text)
    if text.startswith("TRT-"):
        return "TensorRT's calibration cache", _symmetric(tensorrt.read_cache(text))
    return "ONNX Runtime's calibration.cache", _symmetric(onnxruntime.read_cache(text))


def _symmetric(amplitudes: Mapping[str, float]) -> Ranges:
    return {name: (-value, value) for name, value in amplitudes.items()}


def from_table(model: Model, path: Path) -> tuple[Profile, list[str]]:
    """Return a profile of a model whose activations have the ranges of a table, and the table's names that the model lacks.

    Each activation has two values, the ends of its range: enough for min-max, for nothing else. Weights are the model's own.

    Raises
    ------
    ProfileError
        As `read_table`, or no name in the table is one of the model's.
    """
    kind, ranges = read_table(path)
    named = {name: key for key, entry in model.tensors.items() for name in (str(key), *entry.aliases, entry.source_name)}
    tensors: dict[TensorId, TensorStatistics] = dict(profile_constants(model, lambda _: True))
    foreign: list[str] = []
    taken = 0
    for name, ends in ranges.items():
        entry: Any = model.tensors[named[name]] if name in named else None
        if entry is None or entry.kind == "constant" or not str(entry.dtype).startswith("float"):
            foreign += [name] if entry is None else []
            continue
        tensors[entry.id] = replace(constant_statistics(entry, np.array(ends, np.float32)), first_non_finite=None)
        taken += 1
    if not taken:
        raise ProfileError(f"{path}: none of its {len(ranges)} tensors is one of the model's; is it of another model?")
    in_order = {key: tensors[key] for key in model.tensors if key in tensors}
    preprocessing = f"{RANGES_ALONE} {kind}"
    return Profile(fingerprint=model.fingerprint, samples=1, tensors=in_order, preprocessing=preprocessing), foreign
