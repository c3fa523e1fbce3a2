"""The frameworks that cases come from, as `compare` runs them."""

from __future__ import annotations

import onnx_case
import tflite_case
from compare import Framework

TFLITE = Framework(suffix="tflite", write=tflite_case.write, run=tflite_case.litert)
ONNX = Framework(suffix="onnx", write=lambda cases: onnx_case.write(cases).SerializeToString(), run=onnx_case.peer)
