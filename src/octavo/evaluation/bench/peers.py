"""Other runtimes, prepared to run the same model file on the same input and thread count. They are imported on first use.

A peer gets what its own documentation recommends for latency, its inputs are in place before the clock starts, and its outputs
stay in its own memory: what is timed is one inference.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import tvm
from tvm import relax

from ...errors import OctavoError
from ...ir.graph import Model
from ...runtime.llvm_host import host_target

Arrays = Sequence[npt.NDArray[Any]]


class PeerError(OctavoError):
    """A peer that is not installed, or cannot run the model."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PeerTask:
    """What a peer is asked to run.

    Parameters
    ----------
    path
        The model file, ONNX or TFLite.
    model
        The same model as Octavo imported it.
    inputs
        Input arrays by source name, in the order of the graph.
    threads
        Threads that one inference may use.
    precision
        What a float model may be computed in: "float32", "bfloat16" or "float16". A peer that has no such mode takes float32.
    """

    path: Path
    model: Model
    inputs: dict[str, npt.NDArray[Any]]
    threads: int
    precision: str = "float32"


@dataclass(frozen=True, kw_only=True, slots=True)
class PreparedPeer:
    """`call` runs one inference; `outputs` copies the results of the latest, in the order of the graph."""

    call: Callable[[], object]
    outputs: Callable[[], Arrays]


@dataclass(frozen=True, kw_only=True, slots=True)
class Peer:
    """A runtime to compare with.

    Parameters
    ----------
    name
        As the command line calls it.
    label
        As tables call it.
    module, package
        What Python imports, and what pip installs.
    suffixes
        Model files it reads.
    prepare
        Makes a PreparedPeer of a PeerTask.
    """

    name: str
    label: str
    module: str
    package: str
    suffixes: tuple[str, ...]
    prepare: Callable[[PeerTask], PreparedPeer]

    def require(self) -> None:
        """Import the peer; PeerError names the extra that installs it."""
        try:
            importlib.import_module(self.module)
        except ImportError as error:
            raise PeerError(f"{self.label} is not installed ({error}): pip install 'octavo[bench]'") from error

    @property
    def version(self) -> str:
        """Version of the installed package."""
        return metadata.version(self.package)


def _in_order(names: Sequence[str], task: PeerTask) -> list[npt.NDArray[Any]]:
    """Return the inputs in the peer's order: by name where it knows the names, else by position."""
    if set(names) == set(task.inputs):
        return [task.inputs[name] for name in names]
    return list(task.inputs.values())


def _prepare_litert(task: PeerTask) -> PreparedPeer:
    interpreter = importlib.import_module("ai_edge_litert.interpreter").Interpreter(
        model_path=str(task.path), num_threads=task.threads
    )
    details = interpreter.get_input_details()
    for detail, value in zip(details, _in_order([entry["name"] for entry in details], task), strict=True):
        if tuple(detail["shape"]) != value.shape:
            interpreter.resize_tensor_input(detail["index"], value.shape)
    interpreter.allocate_tensors()
    for detail, value in zip(details, _in_order([entry["name"] for entry in details], task), strict=True):
        interpreter.set_tensor(detail["index"], value)
    outputs = [entry["index"] for entry in interpreter.get_output_details()]
    return PreparedPeer(call=interpreter.invoke, outputs=lambda: [interpreter.get_tensor(index) for index in outputs])


def _prepare_onnxruntime(task: PeerTask) -> PreparedPeer:
    ort = importlib.import_module("onnxruntime")
    options = ort.SessionOptions()
    options.intra_op_num_threads = task.threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    session = ort.InferenceSession(str(task.path), options, providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    names = [entry.name for entry in session.get_inputs()]
    for name, value in zip(names, _in_order(names, task), strict=True):
        binding.bind_cpu_input(name, value)
    for entry in session.get_outputs():
        binding.bind_output(entry.name, "cpu")
    return PreparedPeer(call=lambda: session.run_with_iobinding(binding), outputs=binding.copy_outputs_to_cpu)


@cache
def openvino_core() -> Any:
    """Return the one `openvino.Core` of this process, which is never ended.

    Each gives the thread that makes it a stack for signals of its own. Where two end in the order of their making, or one ends in
    another thread, that stack is unmapped and still the thread's: the next signal, Ctrl-C for one, ends the process.
    """
    return importlib.import_module("openvino").Core()


def _prepare_openvino(task: PeerTask) -> PreparedPeer:
    openvino = importlib.import_module("openvino")
    core = openvino_core()
    network = core.read_model(str(task.path))
    names = [port.any_name if port.names else "" for port in network.inputs]
    values = _in_order(names, task)
    network.reshape({index: value.shape for index, value in enumerate(values)})
    compiled = core.compile_model(
        network,
        "CPU",
        {
            "INFERENCE_NUM_THREADS": task.threads,
            "PERFORMANCE_HINT": "LATENCY",
            "NUM_STREAMS": 1,
            "INFERENCE_PRECISION_HINT": "bf16" if task.precision == "bfloat16" else "f32",
        },
    )
    request = compiled.create_infer_request()
    for index, value in enumerate(values):
        request.set_input_tensor(index, openvino.Tensor(value))
    count = len(compiled.outputs)
    return PreparedPeer(call=request.infer, outputs=lambda: [np.array(request.get_output_tensor(i).data) for i in range(count)])


def _prepare_tvm(task: PeerTask) -> PreparedPeer:
    cpu: Any = tvm.cpu()  # two classes named Device: the annotation of VirtualMachine means the other one
    machine = relax.VirtualMachine(tvm.compile(task.model.bound(), host_target()), cpu)
    machine.save_function(
        "main", "bound_main", *(tvm.runtime.tensor(value) for value in task.inputs.values()), include_return=True
    )
    call = machine["bound_main"]

    def outputs() -> Arrays:
        result = call()
        return [value.numpy() for value in ([result] if isinstance(result, tvm.runtime.Tensor) else result)]

    return PreparedPeer(call=call, outputs=outputs)


PEERS = {
    peer.name: peer
    for peer in (
        Peer(
            name="litert",
            label="LiteRT",
            module="ai_edge_litert.interpreter",
            package="ai-edge-litert",
            suffixes=(".tflite",),
            prepare=_prepare_litert,
        ),
        Peer(
            name="onnxruntime",
            label="ONNX Runtime",
            module="onnxruntime",
            package="onnxruntime",
            suffixes=(".onnx",),
            prepare=_prepare_onnxruntime,
        ),
        Peer(
            name="openvino",
            label="OpenVINO",
            module="openvino",
            package="openvino",
            suffixes=(".onnx", ".tflite"),
            prepare=_prepare_openvino,
        ),
        Peer(
            name="tvm",
            label="TVM default build",
            module="tvm",
            package="apache-tvm",
            suffixes=(".onnx", ".tflite"),
            prepare=_prepare_tvm,
        ),
    )
}
"""Every runtime that `octavo bench --against` knows, by name."""
