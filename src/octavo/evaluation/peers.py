"""ONNX Runtime and LiteRT as evaluations run them: exactly, on every CPU. They are imported where they are asked for.

Without VNNI ONNX Runtime's own integer kernels add products of uint8 by int8 in pairs that saturate at 16 bits, so that its
values depend on the CPU. Here it is asked for products that don't; how far its defaults are from that is counted beside.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from ..errors import ModelError
from ..frontends.symbols import symbol_name
from ..numerics import QuantParams
from ..numerics.arrays import Array
from ..runtime.size import Size
from .inference_model import InferenceModel, Port


def exact_session(
    model: onnx.ModelProto | bytes | str | Path,
    *,
    optimized: bool = True,
    int8_allowed: bool = False,
    threads: int = 0,
    optimized_model_filepath: Path | None = None,
) -> Any:
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
    ort = _imported("onnxruntime", "onnxruntime")
    errors = importlib.import_module("onnxruntime.capi.onnxruntime_pybind11_state")
    source = model.SerializeToString() if isinstance(model, onnx.ModelProto) else model

    def session(precision: int, *, optimized: bool = optimized) -> Any:
        read = source if optimized else _with_unsigned_weights(model, source)
        options = _quiet_options(ort, threads)
        # Constant int8 weights become uint8, which no kernel saturates.
        options.add_session_config_entry("session.x64quantprecision", str(precision))
        options.add_session_config_entry("session.qdqisint8allowed", str(int(int8_allowed)))
        # Beside weights of 4 bits in blocks it would quantize activations to 8 bits, which the file does not say: 1 is float32.
        options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "1")
        if not optimized:
            options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        if optimized_model_filepath is not None:
            options.optimized_model_filepath = str(optimized_model_filepath)
        return ort.InferenceSession(read, options, providers=["CPUExecutionProvider"])

    try:
        return session(1)
    except errors.Fail as error:
        # Of weights that several ops read it makes uint8 once for each, of one name; each op by itself is exact as it is.
        if "replace the existing tensor" not in str(error):
            raise
        return session(0, optimized=False)
    except errors.NotImplemented:
        # It has no convolution of int8 by uint8. That of int8 by int8 is exact as it is, but what of uint8 is beside it is not.
        if unsigned := _unsigned_zero_points(model):
            message = f"convolutions of int8 activations stand beside uint8 tensors ({unsigned[0]} ...): split the model"
            raise ValueError(message) from None
        return session(0)


def _quiet_options(ort: Any, threads: int) -> Any:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = threads
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # nothing is timed
    return options


def _read(model: onnx.ModelProto | bytes | str | Path, *, with_data: bool = False) -> onnx.ModelProto:
    if isinstance(model, bytes):
        return onnx.load_from_string(model)
    return model if isinstance(model, onnx.ModelProto) else onnx.load(model, load_external_data=with_data)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Places:
    """Where a product by a weight has it, its zero point and that of the activations."""

    weight: int
    zero_point: int
    of_activations: int


_WEIGHTS = {
    **dict.fromkeys(("MatMulInteger", "ConvInteger"), _Places(weight=1, zero_point=3, of_activations=2)),
    **dict.fromkeys(("QLinearConv", "QLinearMatMul", "QGemm"), _Places(weight=3, zero_point=5, of_activations=2)),
}


def _with_unsigned_weights(model: onnx.ModelProto | bytes | str | Path, source: bytes | str | Path) -> bytes | str | Path:
    """Return a model whose constant int8 weights of products by uint8 are uint8, as ONNX Runtime's optimizer makes them.

    The numbers and their zero points are both 128 more, so that the products are what they were. Without any it is `source`.
    """
    read = _read(model)
    constants = {tensor.name: tensor for tensor in read.graph.initializer}
    if not any(_multiplies_by_int8(node, constants) for node in read.graph.node):
        return source
    result = onnx.ModelProto()
    result.CopyFrom(_read(model, with_data=True))
    constants = {tensor.name: tensor for tensor in result.graph.initializer}
    for number, node in enumerate(result.graph.node):
        if not _multiplies_by_int8(node, constants):
            continue
        places = _WEIGHTS[node.op_type]
        node.input.extend([""] * (places.zero_point + 1 - len(node.input)))
        for place in (places.weight, places.zero_point):
            tensor = constants.get(node.input[place])
            signed = np.zeros((), np.int8) if tensor is None else onnx.numpy_helper.to_array(tensor)
            node.input[place] = f"unsigned_{number}_{place}"
            unsigned = (signed.astype(np.int16) + 128).astype(np.uint8)
            result.graph.initializer.append(onnx.numpy_helper.from_array(unsigned, node.input[place]))
    return result.SerializeToString()


def _multiplies_by_int8(node: onnx.NodeProto, constants: Mapping[str, onnx.TensorProto]) -> bool:
    """Return whether a node has a constant int8 weight with a constant zero point, and activations not known as int8."""
    places, read = _WEIGHTS.get(node.op_type), dict(enumerate(node.input))
    if places is None:
        return False
    weight, zero_point, activations = (
        constants.get(read.get(place, "")) for place in (places.weight, places.zero_point, places.of_activations)
    )
    if weight is None or weight.data_type != onnx.TensorProto.INT8 or (zero_point is None and read.get(places.zero_point)):
        return False
    return activations is None or activations.data_type == onnx.TensorProto.UINT8


def _unsigned_zero_points(model: onnx.ModelProto | bytes | str | Path) -> list[str]:
    graph = _read(model).graph
    unsigned = {tensor.name for tensor in graph.initializer if tensor.data_type == onnx.TensorProto.UINT8}
    return sorted(unsigned & {name for node in graph.node for name in node.input})


def _imported(module: str, package: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ModelError(f"{package} is not installed ({error}): pip install 'octavo[bench]'") from error


def _onnxruntime(path: Path, threads: int) -> InferenceModel:
    ort = _imported("onnxruntime", "onnxruntime")
    try:
        session = exact_session(path, threads=threads)
        usual = ort.InferenceSession(str(path), _quiet_options(ort, threads), providers=["CPUExecutionProvider"])
    except Exception as error:  # its exceptions share no class of their own
        raise ModelError(f"{path}: ONNX Runtime cannot run it: {' '.join(str(error).split())[:200]}") from error
    names = [entry.name for entry in session.get_inputs()]

    def run(arrays: Sequence[Array]) -> list[Array]:
        return [np.asarray(each) for each in session.run(None, dict(zip(names, arrays, strict=True)))]

    def run_usual(arrays: Sequence[Array]) -> list[Array]:
        return [np.asarray(each) for each in usual.run(None, dict(zip(names, arrays, strict=True)))]

    return InferenceModel(
        label=f"ONNX Runtime {ort.__version__} on {path.name}",
        inputs=tuple(map(_onnx_port, session.get_inputs())),
        outputs=tuple(map(_onnx_port, session.get_outputs())),
        run=run,
        run_usual=run_usual,
        usual_note="ONNX Runtime's own integer kernels saturate or round otherwise on this CPU",
    )


def _onnx_port(entry: Any) -> Port:
    name = entry.type.removeprefix("tensor(").removesuffix(")")
    shape = tuple(
        size if isinstance(size, int) else Size.named(symbol_name(size or f"{entry.name}_dim{axis}"))
        for axis, size in enumerate(entry.shape)
    )
    dtype = str({"float": "float32", "double": "float64"}.get(name, name))
    return Port(name=entry.name, shape=shape, dtype=dtype)


def _litert(path: Path, threads: int) -> InferenceModel:
    """Of LiteRT: XNNPACK's integer products are exact on every CPU, so its defaults are the exact evaluation."""
    module = _imported("ai_edge_litert.interpreter", "ai-edge-litert")
    try:
        interpreter = module.Interpreter(model_path=str(path), num_threads=max(threads, 1))
        interpreter.allocate_tensors()
    except (RuntimeError, ValueError) as error:
        raise ModelError(f"{path}: LiteRT cannot run it: {' '.join(str(error).split())[:200]}") from error
    given, wanted = interpreter.get_input_details(), interpreter.get_output_details()

    def run(arrays: Sequence[Array]) -> list[Array]:
        for entry, array in zip(given, arrays, strict=True):
            interpreter.set_tensor(entry["index"], array)
        interpreter.invoke()
        return [interpreter.get_tensor(entry["index"]) for entry in wanted]

    return InferenceModel(
        label=f"LiteRT on {path.name}",
        inputs=tuple(map(_tflite_port, given)),
        outputs=tuple(map(_tflite_port, wanted)),
        run=run,
    )


def _tflite_port(entry: Any) -> Port:
    scale, zero_point = entry["quantization"]
    dtype = str(np.dtype(entry["dtype"]))
    params = QuantParams.per_tensor(dtype, float(scale), int(zero_point)) if scale else None
    return Port(name=str(entry["name"]), shape=tuple(int(size) for size in entry["shape"]), dtype=dtype, params=params)


PEERS: dict[str, Callable[[Path, int], InferenceModel]] = {"onnxruntime": _onnxruntime, "litert": _litert}
"""Who can run a file in Octavo's place, by the name that stands before it: "onnxruntime:m.onnx"."""
