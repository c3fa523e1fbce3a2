"""Reading what a quantized file says of tensors whose channels equalization scaled (see export/onnx/equalized_tensor.py)."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import onnx
import tflite

from ...errors import ModelError
from ...export.onnx.equalized_tensor import METADATA_KEY, EqualizedTensor
from ...frontends.tflite.source import TfliteSource
from ...ir.graph import Model


def equalized_tensors(model: Model) -> dict[str, EqualizedTensor]:
    """Return what the file that a model was loaded from says, by the file's names; empty where it says nothing.

    Raises
    ------
    ModelError
        The metadata is not what `equalized_metadata` writes.
    """
    text = _metadata(model)
    if text is None:
        return {}
    try:
        return {
            str(name): EqualizedTensor(
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
