"""Build, compile and run a quantized network from NumPy arrays alone, and check every bit of it against NumPy.

No framework and no file: float weights (random here, seeded) are quantized by hand, the scales of the activations are read off
one batch, and octavo.ModelBuilder takes the integers. The same network in the oracles of octavo.numerics, which define what each
integer op computes, must give the same integers.

    python examples/build_from_numpy.py
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

import octavo
from octavo import numerics

SEED = 3
SIZE = 28
CLASSES = 10
CALIBRATION, TRIALS = 8, 20
SAME_3X3 = (1, 1, 1, 1)  # top, left, bottom, right: what "SAME" is for a 3x3 kernel at stride 1


@dataclass(frozen=True)
class Activation:
    """Integers of one activation, int8, with scale and zero point."""

    q: np.ndarray
    scale: np.float32
    zero_point: int


@dataclass(frozen=True)
class Weight:
    """An int8 weight, output channels last, one scale for each; int32 bias in units of input scale times weight scale."""

    q: np.ndarray
    scale: np.ndarray
    bias: np.ndarray


def quantize_weight(weight: np.ndarray, bias: np.ndarray, x_scale: np.float32) -> Weight:
    """Symmetric, per output channel: the largest weight of a channel becomes 127."""
    scale = (np.abs(weight).reshape(-1, weight.shape[-1]).max(axis=0) / 127).astype(np.float32)
    q = np.clip(np.rint(weight / scale), -127, 127).astype(np.int8)
    return Weight(q, scale, np.rint(bias / (x_scale * scale)).astype(np.int32))


def choose_scale(real: np.ndarray) -> tuple[np.float32, int]:
    """Scale and zero point that spread [min(real, 0); max(real, 0)] over int8."""
    low, high = min(float(real.min()), 0.0), max(float(real.max()), 0.0)
    scale = np.float32((high - low) / 255)
    return scale, int(np.clip(np.rint(-128 - low / scale), -128, 127))


class Oracle:
    """The network in NumPy, layer by layer. The first run chooses the scales of the activations, later ones use them."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng
        self.weights: dict[str, Weight] = {}
        self.scales: dict[str, tuple[np.float32, int]] = {}

    def layer(
        self, name: str, x: Activation, shape: tuple[int, ...], accumulate: Callable[[np.ndarray, Weight], np.ndarray], top: float
    ) -> Activation:
        """Run a layer with weights, whose result is clamped to [0; top], or not at all if `top` is 0."""
        if name not in self.weights:
            fan_in = float(np.prod(shape[:-1]))
            values, bias = self.rng.normal(0, fan_in**-0.5, shape), self.rng.normal(0, 0.1, shape[-1])
            self.weights[name] = quantize_weight(values, bias, x.scale)
        weight = self.weights[name]
        acc = accumulate(x.q, weight)
        if name not in self.scales:
            real = acc * (x.scale * weight.scale)
            self.scales[name] = choose_scale(np.clip(real, 0, top) if top else real)
        scale, zero_point = self.scales[name]
        low = zero_point if top else -128
        high = min(127, int(np.rint(np.float32(top) / scale)) + zero_point) if np.isfinite(top) and top else 127
        multiplier = numerics.requantize_multiplier(x.scale, weight.scale, scale)
        return Activation(numerics.requantize(acc, multiplier, zero_point, low, high, "int8"), scale, zero_point)

    def conv(
        self, name: str, x: Activation, shape: tuple[int, ...], *, padding: tuple[int, int, int, int], groups: int, top: float
    ) -> Activation:
        """Run a convolution; `shape` is HWIO."""

        def accumulate(q: np.ndarray, weight: Weight) -> np.ndarray:
            return numerics.conv2d_accumulate(
                q, weight.q, x_zero_point=x.zero_point, bias=weight.bias, window=numerics.Window(padding=padding), groups=groups
            )

        return self.layer(name, x, shape, accumulate, top)

    def run(self, pixels: np.ndarray) -> dict[str, Activation]:
        """Return every activation of the network for int8 pixels (batch, 28, 28, 1), scale 1/255, zero point -128."""
        x = Activation(pixels, np.float32(1 / 255), -128)
        stem = self.conv("stem", x, (3, 3, 1, 16), padding=SAME_3X3, groups=1, top=np.inf)
        pooled_q = numerics.max_pool2d(stem.q, kernel=(2, 2), window=numerics.Window(strides=(2, 2)), out_shape=(14, 14))
        pooled = Activation(pooled_q, stem.scale, stem.zero_point)
        depthwise = self.conv("depthwise", pooled, (3, 3, 1, 16), padding=SAME_3X3, groups=16, top=6.0)
        project = self.conv("project", depthwise, (1, 1, 16, 16), padding=(0, 0, 0, 0), groups=1, top=0.0)
        if "residual" not in self.scales:
            real = [(t.q - np.float32(t.zero_point)) * t.scale for t in (pooled, project)]
            self.scales["residual"] = choose_scale(np.maximum(real[0] + real[1], 0))
        scale, zero_point = self.scales["residual"]
        a = {"a_scale": pooled.scale, "a_zero_point": pooled.zero_point}
        b = {"b_scale": project.scale, "b_zero_point": project.zero_point}
        low = {"qmin": zero_point, "qmax": 127, "dtype": "int8"}  # relu
        total = numerics.add(pooled.q, project.q, **a, **b, out_scale=scale, zero_point=zero_point, **low)
        same = {"multiplier": 1.0, "input_zero_point": zero_point, "zero_point": zero_point}
        mean_q = numerics.global_avg_pool2d(total, **same, qmin=-128, qmax=127, dtype="int8")
        mean = Activation(mean_q.reshape(len(pixels), -1), scale, zero_point)

        def accumulate(q: np.ndarray, weight: Weight) -> np.ndarray:
            return numerics.matmul_accumulate(q, weight.q, x_zero_point=zero_point, bias=weight.bias)

        logits = self.layer("logits", mean, (16, CLASSES), accumulate, 0.0)
        return {"stem": stem, "depthwise": depthwise, "project": project, "mean": mean, "logits": logits}


def build(oracle: Oracle) -> octavo.Model:
    """Hand the integers, scales and zero points to the builder."""
    b = octavo.ModelBuilder()

    def arguments(name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        weight = oracle.weights[name]
        return weight.q, weight.scale, weight.bias

    def out(name: str) -> dict[str, float]:
        scale, zero_point = oracle.scales[name]
        return {"out_scale": scale, "out_zero_point": zero_point}

    pixels = b.input("pixels", (1, SIZE, SIZE, 1), dtype="int8", scale=1 / 255, zero_point=-128)
    stem = b.conv2d("stem", pixels, *arguments("stem"), **out("stem"), padding="SAME", activation="relu")
    pooled = b.max_pool2d("pooled", stem, (2, 2))
    depthwise = b.conv2d(
        "depthwise", pooled, *arguments("depthwise"), **out("depthwise"), padding="SAME", groups=16, activation="relu6"
    )
    project = b.conv2d("project", depthwise, *arguments("project"), **out("project"))
    residual = b.add("residual", pooled, project, **out("residual"), activation="relu")
    logits = b.dense("logits", b.mean("mean", residual), *arguments("logits"), **out("logits"))
    return b.build([logits])


def main() -> None:
    """Build, compile, run, compare."""
    rng = np.random.default_rng(SEED)
    oracle = Oracle(rng)
    oracle.run(rng.integers(-128, 128, (CALIBRATION, SIZE, SIZE, 1), np.int8))

    model = build(oracle)
    print(octavo.explain(model).summary)
    executable = octavo.compile(model)
    different = 0
    for _ in range(TRIALS):
        pixels = rng.integers(-128, 128, (1, SIZE, SIZE, 1), np.int8)
        different += int((executable(pixels)["logits"] != oracle.run(pixels)["logits"].q).sum())
    print(f"{TRIALS * CLASSES - different} of {TRIALS * CLASSES} logits equal NumPy's, bit for bit")
    if different:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
