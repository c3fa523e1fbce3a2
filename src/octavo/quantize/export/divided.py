"""What a quantized file says of tensors whose channels equalization divided: which of the source each was, and by how much.

Such a tensor is another one than the source's: it is named `<name>_divided`, and the file's metadata has the factors, so that
layers of the file can be compared with the float model's. No runtime reads them. It computes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import tflite

from ...errors import ModelError
from ...graph import Model
from ...importer.tflite.source import TfliteSource

METADATA_KEY = "octavo.divided"
SUFFIX = "_divided"


@dataclass(frozen=True, kw_only=True, slots=True)
class Divided:
    """A tensor of a file: its name in the float model, and what its channels are divided by there, of a shape to divide by."""

    source_name: str
    factors: npt.NDArray[np.float32]


def divided_text(found: Mapping[str, Divided]) -> str:
    """Return the metadata of tensors by their names in the file."""
    values = {
        name: {
            "source": each.source_name,
            "shape": list(each.factors.shape),
            # The shortest decimals that give the same float32.
            "factors": [float(str(factor)) for factor in each.factors.reshape(-1)],
        }
        for name, each in found.items()
    }
    return json.dumps(values, separators=(",", ":"))


def divided_tensors(model: Model) -> dict[str, Divided]:
    """Return what the file that a model was loaded from says, by the file's names; empty where it says nothing.

    Raises
    ------
    ModelError
        The metadata is not what `divided_text` writes.
    """
    text = _metadata(model)
    if text is None:
        return {}
    try:
        return {
            str(name): Divided(
                source_name=str(each["source"]), factors=np.asarray(each["factors"], np.float32).reshape(tuple(each["shape"]))
            )
            for name, each in json.loads(text).items()
        }
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"the file's metadata {METADATA_KEY} is not what octavo quantize writes: {error}") from error


def _metadata(model: Model) -> str | bytes | None:
    if isinstance(model.source, onnx.ModelProto):
        return next((each.value for each in model.source.metadata_props if each.key == METADATA_KEY), None)
    if not isinstance(model.source, TfliteSource):
        return None
    root: Any = tflite.Model.GetRootAs(model.source.graph.data, 0)
    for each in map(root.Metadata, range(root.MetadataLength())):
        if each.Name() == METADATA_KEY.encode():
            return bytes(root.Buffers(each.Buffer()).DataAsNumpy())
    return None
