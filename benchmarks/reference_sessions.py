"""The one place that makes sessions of ONNX Runtime and OpenVINO whose values are compared with Octavo's.

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
import onnx
import onnxruntime
from onnxruntime.capi.onnxruntime_pybind11_state import NotImplemented


def reference_session(
    model: onnx.ModelProto | bytes | str | Path,
    *,
    optimized: bool = True,
    int8_allowed: bool = False,
    threads: int = 0,
    optimized_model_filepath: Path | None = None,
) -> onnxruntime.InferenceSession:
    """Make a session of ONNX Runtime whose integer products are exact on every CPU.

    Parameters
    ----------
    optimized
        False runs each op as the file writes it: of a QDQ file the float ops between Q and DQ.
    int8_allowed
        QDQ groups of int8 activations are computed in integers, too; left alone they are float on x86.
    threads
        0 takes as many as ONNX Runtime chooses.
    optimized_model_filepath
        Where to write the graph that its optimizer made.
    """
    source = model.SerializeToString() if isinstance(model, onnx.ModelProto) else model

    def session(precision: int) -> onnxruntime.InferenceSession:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        options.intra_op_num_threads = threads
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # nothing is timed
        # Constant int8 weights become uint8, which no kernel saturates.
        options.add_session_config_entry("session.x64quantprecision", str(precision))
        options.add_session_config_entry("session.qdqisint8allowed", str(int(int8_allowed)))
        if not optimized:
            options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        if optimized_model_filepath is not None:
            options.optimized_model_filepath = str(optimized_model_filepath)
        return onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])

    try:
        return session(1)
    except NotImplemented:
        # It has no convolution of int8 by uint8. That of int8 by int8 is exact as it is, but what of uint8 is beside it is not.
        if unsigned := _unsigned_zero_points(model):
            message = f"convolutions of int8 activations stand beside uint8 tensors ({unsigned[0]} ...): split the model"
            raise ValueError(message) from None
        return session(0)


def _unsigned_zero_points(model: onnx.ModelProto | bytes | str | Path) -> list[str]:
    if isinstance(model, bytes):
        model = onnx.load_from_string(model)
    graph = (model if isinstance(model, onnx.ModelProto) else onnx.load(model)).graph
    unsigned = {tensor.name for tensor in graph.initializer if tensor.data_type == onnx.TensorProto.UINT8}
    return sorted(unsigned & {name for node in graph.node for name in node.input})


def reference_openvino(path: Path) -> Callable[[np.ndarray], np.ndarray]:
    """Return a function from a model's input to its first output as OpenVINO computes it, its quantized layers in float32."""
    compiled = reference_compiled(path)
    return lambda x: np.array(compiled([x])[0])


def reference_compiled(model: Any) -> Any:
    """Compile a file, or a model of OpenVINO's, its quantized layers in float32."""
    import openvino

    # Without low precision transformations the float ops between Q and DQ stay: integers of up to 2^24 are exact in them.
    config = {"INFERENCE_PRECISION_HINT": "f32", "LP_TRANSFORMS_MODE": "NO"}
    return openvino.Core().compile_model(model, "CPU", config)
