"""The ONNX form of a model that was quantized before it was loaded: an ONNX file as it is, any other op by op."""

from __future__ import annotations

from typing import Any

import onnx

from ...errors import QuantizationError
from ...ir.graph import Model
from ...quantizer.qdq import is_quantized
from .module_export import module_as_onnx


def quantized_source(model: Model) -> Any:
    """Return the file of a model that was quantized already when it was loaded."""
    if not is_quantized(model):
        raise QuantizationError("the model is not quantized; call quantize before writing it")
    if not isinstance(model.source, onnx.ModelProto):
        return module_as_onnx(model)
    proto = onnx.ModelProto()
    proto.CopyFrom(model.source)
    return proto
