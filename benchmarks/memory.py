"""Time and memory of profiling and quantizing ResNet50, whose largest layers have Gram matrices of 4608 x 4608.

    python benchmarks/memory.py                 100 random images, as many kept in the profile as by default
    python benchmarks/memory.py --images 20

The network has the shapes of He et al., Deep Residual Learning for Image Recognition, 2016, and random weights. Prints seconds
and the greatest resident memory of the process up to the end of each stage, in MB, without PyTorch's own.
"""

from __future__ import annotations

import argparse
import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

if __name__ == "__main__":
    sys.modules["torch"] = None  # TVM imports it where it is

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import octavo

STAGES = ((64, 3), (128, 4), (256, 6), (512, 3))
"""Channels within the blocks of a stage, which gives four times as many, and the number of blocks."""


class Writer:
    """Nodes and weights of a network of convolutions."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self._random = np.random.default_rng(0)

    def op(self, kind: str, *inputs: str, **attributes: object) -> str:
        name = f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [name], **attributes))
        return name

    def weight(self, *shape: int, spread: float) -> str:
        name = f"w{len(self.weights)}"
        values = (self._random.standard_normal(shape) * spread).astype(np.float32)
        self.weights.append(numpy_helper.from_array(values, name))
        return name

    def conv(self, x: str, inputs: int, outputs: int, size: int = 1, stride: int = 1, gain: float = 2.0) -> str:
        spread = (gain / (inputs * size * size)) ** 0.5
        operands = x, self.weight(outputs, inputs, size, size, spread=spread), self.weight(outputs, spread=0.1)
        return self.op("Conv", *operands, strides=[stride, stride], pads=[size // 2] * 4)


def resnet50(path: Path) -> None:
    """Write the network."""
    out = Writer()
    x = out.op("Relu", out.conv("image", 3, 64, 7, 2))
    x = out.op("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    inputs = 64
    for number, (width, blocks) in enumerate(STAGES):
        for block in range(blocks):
            stride = 2 if number and not block else 1
            y = out.op("Relu", out.conv(x, inputs, width))
            y = out.op("Relu", out.conv(y, width, width, 3, stride))
            y = out.conv(y, width, 4 * width, gain=0.5)
            x = out.op("Relu", out.op("Add", y, x if block else out.conv(x, inputs, 4 * width, stride=stride, gain=1.0)))
            inputs = 4 * width
    x = out.op("Flatten", out.op("GlobalAveragePool", x))
    y = out.op("Gemm", x, out.weight(inputs, 1000, spread=inputs**-0.5), out.weight(1000, spread=0.1))
    image = helper.make_tensor_value_info("image", TensorProto.FLOAT, (1, 3, 224, 224))
    scores = helper.make_tensor_value_info(y, TensorProto.FLOAT, (1, 1000))
    graph = helper.make_graph(out.nodes, "resnet50", [image], [scores], out.weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)


def images(count: int) -> Iterator[np.ndarray]:
    """Yield smooth random images, one at a time."""
    random = np.random.default_rng(1)
    for _ in range(count):
        coarse = random.standard_normal((1, 3, 28, 28)).astype(np.float32)
        yield coarse.repeat(8, axis=2).repeat(8, axis=3) + 0.1 * random.standard_normal((1, 3, 224, 224)).astype(np.float32)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=100, help="to profile on (default: 100)")
    options = parser.parse_args(arguments)

    def report(stage: str, start: float) -> float:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000
        print(f"{stage:10} {time.perf_counter() - start:7.1f} s  {peak:6.0f} MB", flush=True)
        return time.perf_counter()

    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        resnet50(Path(folder) / "resnet50.onnx")
        model = octavo.load(Path(folder) / "resnet50.onnx")
    start = report("load", start)
    profile = octavo.profile(model, images(options.images))
    start = report("profile", start)
    quantized = octavo.quantize(model, profile)
    start = report("quantize", start)
    print(f"{len(quantized.plan.layers)} integer layers, {quantized.plan.journal.summary}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
