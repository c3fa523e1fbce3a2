"""Random QDQ graphs: whatever the mixture of ops, layouts and readers, lowering keeps the meaning of TVM's float simulation."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import relax

from qdq_graph import Qdq, graph, run_float, run_lowered


class Drawing:
    """Draws ops at random over a pool of quantized tensors that all have one channel count, in one layout."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.layout = self.rng.choice(["NCHW", "NHWC"])
        self.dtype = self.rng.choice(["int8", "uint8"])
        self.count = 0

    def name(self, stem: str) -> str:
        self.count += 1
        return f"{stem}{self.count}"

    def params(self) -> tuple[float, int]:
        low, high = (-128, 127) if self.dtype == "int8" else (0, 255)
        return float(self.rng.uniform(0.02, 0.06)), int(self.rng.integers(low + 60, high - 60))

    def shape(self, size: int, channels: int) -> tuple[int, ...]:
        return (1, size, size, channels) if self.layout == "NHWC" else (1, channels, size, size)

    def build(self, steps: int):
        channels = int(self.rng.integers(3, 20))

        def body(writer, params):
            self.writer, self.qdq = writer, Qdq(writer, self.dtype)
            self.pool = [self.requantized("x", params["x"])]
            for _ in range(steps):
                self.pool.append(self.step(channels))
            outputs = {id(self.pool[-1]): self.pool[-1]}
            for _ in range(2):
                chosen = self.pool[self.rng.integers(len(self.pool))]
                outputs[id(chosen)] = chosen
            return relax.Tuple(
                [writer.emit(self.name("out"), relax.op.multiply(v, relax.const(1.0)), is_output=True) for v in outputs.values()]
            )

        return graph({"x": (self.shape(8, channels), "float32")}, body), self.shape(8, channels)

    def requantized(self, name, value):
        params = self.params()
        return self.qdq.dequantize(name, self.qdq.quantize(name, value, params), params)

    def pick(self):
        return self.pool[self.rng.integers(len(self.pool))]

    def step(self, channels: int):
        kind = self.rng.choice(
            ["conv", "depthwise", "add", "maxpool", "avgpool", "concat", "relu", "sigmoid", "permute", "twice"]
        )
        name = self.name(str(kind))
        return self.requantized(name, self.writer.emit(f"{name}_f", getattr(self, kind)(name, channels)))

    def convolution(self, name: str, channels: int, groups: int):
        nhwc = self.layout == "NHWC"
        inner = channels // groups
        values = self.rng.integers(-127, 128, (3, 3, inner, channels)).astype(np.int8)
        scale = self.rng.uniform(0.3, 1.0, channels) / (127 * 3 * np.sqrt(inner))
        order = (0, 1, 2, 3) if nhwc else (3, 2, 0, 1)
        w = self.qdq.weight(f"{name}_w", np.ascontiguousarray(values.transpose(order)), scale, axis=3 if nhwc else 0)
        conv = relax.op.nn.conv2d(
            self.pick(),
            w,
            padding=(1, 1, 1, 1),
            groups=groups,
            data_layout=self.layout,
            kernel_layout="HWIO" if nhwc else "OIHW",
        )
        conv = self.writer.emit(f"{name}_acc", conv)
        return relax.op.clip(conv, -0.5, 3.0) if self.rng.random() < 0.5 else relax.op.nn.relu(conv)

    def conv(self, name, channels):
        return self.convolution(name, channels, 1)

    def depthwise(self, name, channels):
        return self.convolution(name, channels, channels)

    def add(self, name, channels):
        return relax.op.add(self.pick(), self.pick())

    def twice(self, name, channels):
        value = self.pick()
        return relax.op.add(value, value)

    def maxpool(self, name, channels):
        return relax.op.nn.max_pool2d(self.pick(), (3, 3), (1, 1), (1, 1, 1, 1), layout=self.layout)

    def avgpool(self, name, channels):
        include = bool(self.rng.random() < 0.5)
        return relax.op.nn.avg_pool2d(self.pick(), (3, 3), (1, 1), (1, 1, 1, 1), layout=self.layout, count_include_pad=include)

    def concat(self, name, channels):
        """Concatenate and pool back to the same shape along the joined axis."""
        axis = 3 if self.layout == "NHWC" else 1
        joined = self.writer.emit(f"{name}_cat", relax.op.concat([self.pick(), self.pick()], axis=axis))
        again = self.requantized(f"{name}_joined", joined)
        return relax.op.strided_slice(again, [axis], [1], [channels + 1])

    def relu(self, name, channels):
        return relax.op.nn.relu(self.pick())

    def sigmoid(self, name, channels):
        return relax.op.sigmoid(self.pick())

    def permute(self, name, channels):
        """Transpose height and width: the shape stays."""
        axes = [0, 2, 1, 3] if self.layout == "NHWC" else [0, 1, 3, 2]
        return relax.op.permute_dims(self.pick(), axes)


@pytest.mark.parametrize("seed", range(8))
def test_lowering_keeps_the_meaning(seed):
    drawing = Drawing(seed)
    module, shape = drawing.build(steps=7)
    x = np.random.default_rng(seed).normal(0.5, 1.0, shape).astype(np.float32)
    for got, want in zip(run_lowered(module, x), run_float(module, x), strict=True):
        # Ties round differently in a float accumulation than in integers: a step (at most 0.06) here and there, then passed on.
        difference = np.abs(got - want)
        assert difference.max() <= 4 * 0.06
        assert np.mean(difference > 0.001) < 0.05
