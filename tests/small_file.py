"""A small network and digits for it, as files: what a command line works on where nothing depends on what was learnt.

Its names, shapes and kinds of ops are those of the demo's network, which takes several times as long to compile.
"""

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from octavo.cli.demo import DATA


def write_small_net(path: Path, channels: int = 1) -> None:
    """Write conv, relu, depthwise conv, residual sum, relu, mean and dense from pixels [1, channels, 8, 8] to logits [1, 10]."""
    rng = np.random.default_rng(2)
    shapes = {
        "stem/conv.weight": (8, channels, 3, 3),
        "stem/conv.bias": (8,),
        "block/conv.weight": (8, 1, 3, 3),
        "block/conv.bias": (8,),
        "head/dense.weight": (32, 10),
        "head/dense.bias": (10,),
    }
    values = {name: rng.normal(size=shape) / np.sqrt(np.prod(shape[1:])) for name, shape in shapes.items()}
    convs = {"pads": [1, 1, 1, 1]}
    nodes = [
        _node("Conv", "stem/conv", "pixels", "stem/conv.weight", "stem/conv.bias", strides=[2, 2], **convs),
        _node("Relu", "stem/relu", "stem/conv"),
        _node("Conv", "block/conv", "stem/relu", "block/conv.weight", "block/conv.bias", group=8, **convs),
        _node("Add", "block/add", "stem/relu", "block/conv"),
        _node("Relu", "block/relu", "block/add"),
        _node("AveragePool", "head/pool", "block/relu", kernel_shape=[2, 2], strides=[2, 2]),
        _node("Flatten", "head/flatten", "head/pool"),
        _node("Gemm", "logits", "head/flatten", "head/dense.weight", "head/dense.bias"),
    ]
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in {"pixels": (1, channels, 8, 8), "logits": (1, 10)}.items()
    ]
    constants = [numpy_helper.from_array(value.astype(np.float32), name) for name, value in values.items()]
    graph = helper.make_graph(nodes, "small", ends[:1], ends[1:], constants)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


def _node(op: str, result: str, *inputs: str, **attributes: object) -> onnx.NodeProto:
    return helper.make_node(op, inputs, [result], name=result, **attributes)


def digits(start: int, stop: int) -> np.ndarray:
    """Return some of the demo's digits, [stop - start, 1, 8, 8] in [0; 1]."""
    with np.load(DATA / "digits.npz") as file:
        return file["images"][start:stop, None].astype(np.float32) / 16
