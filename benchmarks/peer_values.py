"""What another runtime makes of samples, in a process of its own, which may be emulated: it imports NumPy and that runtime alone.

    python benchmarks/peer_values.py onnxruntime m.onnx samples.npy values.npy
    qemu-x86_64 -cpu max python benchmarks/peer_values.py litert m.tflite samples.npy values.npy

`samples.npy` holds one input after the other along its first axis; `values.npy` gets the first outputs, flat, in rows.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import numpy as np

Runner = Callable[[np.ndarray], np.ndarray]


def litert(path: str) -> Runner:
    """With its defaults, on one thread."""
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(path, num_threads=1)
    interpreter.allocate_tensors()
    given, wanted = interpreter.get_input_details()[0], interpreter.get_output_details()[0]

    def run(x: np.ndarray) -> np.ndarray:
        interpreter.set_tensor(given["index"], x)
        interpreter.invoke()
        return interpreter.get_tensor(wanted["index"])

    return run


def onnxruntime(path: str) -> Runner:
    """With its defaults, on one thread."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return lambda x: np.asarray(session.run(None, {name: x})[0])


def openvino(path: str) -> Runner:
    """In float32 where it is float, on one thread; else with its defaults."""
    import openvino as ov

    core = ov.Core()
    network = core.read_model(path)
    compiled: dict[tuple[int, ...], Callable[..., object]] = {}

    def run(x: np.ndarray) -> np.ndarray:
        if x.shape not in compiled:
            network.reshape({0: x.shape})
            options = {"INFERENCE_NUM_THREADS": 1, "INFERENCE_PRECISION_HINT": "f32"}
            compiled[x.shape] = core.compile_model(network, "CPU", options)
        return np.array(compiled[x.shape]([x])[0])

    return run


RUNTIMES = {"litert": litert, "onnxruntime": onnxruntime, "openvino": openvino}


def main(runtime: str, model: str, samples: str, values: str) -> int:
    run = RUNTIMES[runtime](model)
    np.save(values, np.stack([run(x).reshape(-1) for x in np.load(samples)]))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
