"""The sessions of ONNX Runtime and OpenVINO whose values are compared with Octavo's; the former's are those of `octavo evaluate`.

Without VNNI both multiply uint8 by int8 in pairs whose sums saturate at 16 bits, so their values depend on the CPU. Here ONNX
Runtime is asked for products that don't, and OpenVINO for none. Sessions that are only timed are made elsewhere: exactness costs
speed.

It must not decide what a test compares: how far a model is optimized, and what may be integer, is the caller's to say.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from octavo.evaluation.bench.peers import openvino_core
from octavo.evaluation.peers import exact_session as reference_session

__all__ = ["reference_compiled", "reference_openvino", "reference_session"]


def reference_openvino(path: Path) -> Callable[[np.ndarray], np.ndarray]:
    """Return a function from a model's input to its first output as OpenVINO computes it, its quantized layers in float32."""
    compiled = reference_compiled(path)
    return lambda x: np.array(compiled([x])[0])


def reference_compiled(model: Any) -> Any:
    """Compile a file, or a model of OpenVINO's, its quantized layers in float32."""
    # Without low precision transformations the float ops between Q and DQ stay: integers of up to 2^24 are exact in them.
    config = {"INFERENCE_PRECISION_HINT": "f32", "LP_TRANSFORMS_MODE": "NO"}
    return openvino_core().compile_model(model, "CPU", config)
