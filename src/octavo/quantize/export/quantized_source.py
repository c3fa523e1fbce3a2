"""The file of a model that was quantized before it was loaded: it is written as it is. Rewrites nothing."""

from __future__ import annotations

from typing import Any

import onnx

from ...errors import QuantizationError
from ...graph import Model
from ..qdq import is_quantized


def quantized_source(model: Model) -> Any:
    """Return the file of a model that was quantized already when it was loaded."""
    if not is_quantized(model):
        raise QuantizationError("the model is not quantized; call quantize before writing it")
    if not isinstance(model.source, onnx.ModelProto):
        raise QuantizationError(
            f"the model came quantized from {model.source_format}, and only one loaded from ONNX can be written as ONNX; "
            "compile it as it is"
        )
    proto = onnx.ModelProto()
    proto.CopyFrom(model.source)
    return proto
