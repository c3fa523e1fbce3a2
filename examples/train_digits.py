"""Train the demo network: a small convolutional classifier of scikit-learn's bundled handwritten digits.

Writes the two files that `octavo demo` reads, `digits.onnx` and `digits.npz`. It runs only when the network is trained anew;
the files it wrote are committed. Batch normalization stays a node of the ONNX graph, as trainers leave it: folding it is the
compiler's job. The held-out samples are every fourth of the set, chosen before training and never looked at during it.

    pip install -e '.[torch,test]'
    python examples/train_digits.py --output src/octavo/cli/demo_data
"""

import argparse
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import torch
from onnx import TensorProto, helper, numpy_helper
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional

SEED = 7
EPOCHS = 60
BATCH = 64
OPSET = 17
IR_VERSION = 8
HELD_OUT_EVERY = 4
PIXEL_MAX = 16.0  # the digits' pixels are counts in [0; 16]


class ConvNorm(nn.Module):
    """Convolution, batch normalization and an activation: "relu", "relu6" or "none"."""

    def __init__(self, inputs: int, outputs: int, kernel: int, groups: int = 1, activation: str = "relu") -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, kernel, padding=kernel // 2, groups=groups, bias=False)
        self.norm = nn.BatchNorm2d(outputs)
        self.activation = activation

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.conv(x))
        return {"relu": functional.relu, "relu6": functional.relu6, "none": lambda value: value}[self.activation](x)


class Block(nn.Module):
    """expand 3x3, then depthwise 3x3 and project 1x1 around a residual add."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.expand = ConvNorm(inputs, outputs, 3)
        self.depthwise = ConvNorm(outputs, outputs, 3, groups=outputs, activation="relu6")
        self.project = ConvNorm(outputs, outputs, 1, activation="none")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.expand(x)
        return functional.relu(x + self.project(self.depthwise(x)))


class DigitsNet(nn.Module):
    """Float [N, 1, 8, 8] in [0; 1] -> logits [N, 10]."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = ConvNorm(1, 32, 3)
        self.block1 = Block(32, 64)
        self.block2 = Block(64, 128)
        self.dense = nn.Linear(128, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.block2(functional.max_pool2d(self.block1(self.stem(x)), 2))
        return self.dense(functional.adaptive_avg_pool2d(x, 1).flatten(1))


def shifted(pixels: torch.Tensor) -> torch.Tensor:
    """Return the images moved by up to one pixel each way: the only augmentation."""
    padded = functional.pad(pixels, (1, 1, 1, 1))
    rows, columns = torch.randint(0, 3, (2,)).tolist()
    return padded[:, :, rows : rows + 8, columns : columns + 8]


def train(pixels: torch.Tensor, labels: torch.Tensor) -> DigitsNet:
    """Train for a fixed number of epochs; nothing is chosen by looking at held-out samples."""
    torch.manual_seed(SEED)
    net = DigitsNet()
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3, weight_decay=1e-2)
    steps = EPOCHS * (len(pixels) // BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=3e-3, total_steps=steps)
    for epoch in range(EPOCHS):
        order = torch.randperm(len(pixels))
        total = 0.0
        for start in range(0, len(order) - BATCH + 1, BATCH):
            chosen = order[start : start + BATCH]
            loss = functional.cross_entropy(net(shifted(pixels[chosen])), labels[chosen], label_smoothing=0.05)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            total += float(loss.detach())
        if epoch % 10 == 9:
            print(f"epoch {epoch + 1}: loss {total / (len(order) // BATCH):.4f}")
    return net.eval()


class GraphWriter:
    """Collects ONNX nodes and initializers; a node's output tensor bears the node's name."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []

    def constant(self, name: str, value: torch.Tensor) -> str:
        self.initializers.append(numpy_helper.from_array(value.detach().numpy(), name))
        return name

    def node(self, op: str, name: str, *inputs: str, output: str | None = None, **attributes: object) -> str:
        self.nodes.append(helper.make_node(op, inputs, [output or name], name=name, **attributes))
        return output or name

    def conv_norm(self, name: str, x: str, layer: ConvNorm) -> str:
        conv, norm = layer.conv, layer.norm
        kernel = list(conv.kernel_size)
        pads = [kernel[0] // 2, kernel[1] // 2] * 2
        weight = self.constant(f"{name}/conv.weight", conv.weight)
        x = self.node("Conv", f"{name}/conv", x, weight, kernel_shape=kernel, pads=pads, group=conv.groups)
        values = {"scale": norm.weight, "bias": norm.bias, "mean": norm.running_mean, "var": norm.running_var}
        constants = [self.constant(f"{name}/norm.{key}", value) for key, value in values.items()]
        x = self.node("BatchNormalization", f"{name}/norm", x, *constants, epsilon=norm.eps)
        if layer.activation == "relu":
            return self.node("Relu", f"{name}/relu", x)
        if layer.activation == "relu6":
            bounds = [self.constant(f"{name}/clip.{key}", torch.tensor(value)) for key, value in (("min", 0.0), ("max", 6.0))]
            return self.node("Clip", f"{name}/clip", x, *bounds)
        return x

    def block(self, name: str, x: str, block: Block) -> str:
        skip = self.conv_norm(f"{name}/expand", x, block.expand)
        x = self.conv_norm(f"{name}/depthwise", skip, block.depthwise)
        x = self.conv_norm(f"{name}/project", x, block.project)
        return self.node("Relu", f"{name}/relu", self.node("Add", f"{name}/add", skip, x))


def to_onnx(net: DigitsNet) -> onnx.ModelProto:
    """Write the trained network as an ONNX graph with readable names, batch 1."""
    graph = GraphWriter()
    x = graph.conv_norm("stem", "pixels", net.stem)
    x = graph.block("block1", x, net.block1)
    x = graph.node("MaxPool", "block1/pool", x, kernel_shape=[2, 2], strides=[2, 2])
    x = graph.block("block2", x, net.block2)
    x = graph.node("Flatten", "head/flatten", graph.node("GlobalAveragePool", "head/pool", x), axis=1)
    weight, bias = graph.constant("head/dense.weight", net.dense.weight), graph.constant("head/dense.bias", net.dense.bias)
    graph.node("Gemm", "head/dense", x, weight, bias, output="logits", transB=1)
    proto = helper.make_model(
        helper.make_graph(
            graph.nodes,
            "digits",
            [helper.make_tensor_value_info("pixels", TensorProto.FLOAT, [1, 1, 8, 8])],
            [helper.make_tensor_value_info("logits", TensorProto.FLOAT, [1, 10])],
            graph.initializers,
        ),
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=IR_VERSION,
        producer_name="octavo examples/train_digits.py",
    )
    onnx.checker.check_model(proto, full_check=True)
    return onnx.shape_inference.infer_shapes(proto)


def main() -> None:
    """Train, write both files, and check the ONNX file in ONNX Runtime against PyTorch."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=Path("src/octavo/cli/demo_data"))
    output = parser.parse_args().output
    digits = load_digits()
    images, labels = digits.images.astype(np.uint8), digits.target.astype(np.uint8)
    held_out = np.arange(len(images)) % HELD_OUT_EVERY == HELD_OUT_EVERY - 1
    pixels = torch.from_numpy(images[:, None].astype(np.float32) / PIXEL_MAX)
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(1)  # the order of float sums, and so the weights, would depend on the thread count
    net = train(pixels[~held_out], torch.from_numpy(labels[~held_out].astype(np.int64)))

    output.mkdir(parents=True, exist_ok=True)
    path = output / "digits.onnx"
    onnx.save(to_onnx(net), path)
    np.savez_compressed(output / "digits.npz", images=images, labels=labels, held_out=held_out)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    got = np.concatenate([session.run(None, {"pixels": row[None].numpy()})[0] for row in pixels])
    want = net(pixels).detach().numpy()
    np.testing.assert_allclose(got, want, atol=1e-4)
    for name, chosen in (("training", ~held_out), ("held-out", held_out)):
        print(f"{name}: top-1 {np.mean(got[chosen].argmax(1) == labels[chosen]):.4f} of {chosen.sum()} digits")
    print(f"wrote {path} ({path.stat().st_size:,} bytes) and {output / 'digits.npz'}")


if __name__ == "__main__":
    main()
