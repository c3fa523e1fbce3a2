"""An implementation of an NPU in NumPy, from the files of a conformance case alone, with faults that can be planted in it.

It shares no code with Octavo: what it computes is read off docs/conformance.md.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

FAULTS = {
    "half_up": "ties are rounded up instead of to even",
    "half_away": "ties are rounded away from zero instead of to even",
    "next_scale": "a channel is scaled by its neighbour's scale",
    "wraps": "results beyond the dtype wrap instead of saturating",
    "zero_padding": "padding is the integer 0 instead of the zero point",
    "no_bias": "the bias is missing",
    "late_bias": "the bias is added after requantization",
    "no_input_zero_point": "the input's zero point is ignored",
    "early_zero_point": "the result's zero point is added before the multiplication",
    "no_clamp": "the clamp of a fused activation is missing",
    "swapped_window": "strides and dilations are swapped",
    "transposed_weights": "the weights' input channels are read in reverse",
    "accumulator_16": "sums are kept in 16 bits",
    "transposed_kernel": "rows and columns of the kernel are swapped",
    "output_channels_reversed": "output channels come in reverse order",
    "truncates": "results are rounded towards zero",
    "average_divides_early": "an average is rounded once more before it is scaled",
    "second_input_scale": "both addends have the first one's scale",
}


class NumpyNpu:
    """Computes cases; `fault` is one of `FAULTS`, or none."""

    def __init__(self, fault: str = "") -> None:
        self.fault = fault

    def __call__(self, folder: Path) -> dict[str, np.ndarray]:
        """Return the outputs of a case."""
        case = json.loads((folder / "case.json").read_text())
        inputs, constants = (dict(np.load(folder / f"{name}.npz")) for name in ("inputs", "constants"))
        info, attributes = case["quantize_info"], case["attributes"]
        computed = getattr(self, case["kind"])(inputs, constants, info, attributes)
        return {"y": computed.reshape(case["outputs"]["y"]["shape"])}

    def conv2d(self, inputs: Any, constants: Any, info: Any, attributes: Any) -> np.ndarray:
        x, is_nchw = inputs["x"], attributes["layout"] == "NCHW"
        x = x.transpose(0, 2, 3, 1) if is_nchw else x
        w = constants["weight.values"].astype(np.int64) - constants["weight.zero_point"]
        if self.fault == "transposed_weights":
            w = w[:, :, ::-1]
        if self.fault == "transposed_kernel":
            w = w.transpose(1, 0, 2, 3) if w.shape[0] == w.shape[1] else w
        strides, dilation = attributes["strides"], attributes["dilation"]
        if self.fault == "swapped_window":
            strides, dilation = dilation, strides
        padded = self.padded(x, attributes["padding"], info["input"]["zero_point"])
        groups = attributes["groups"]
        rows, columns = self.size(padded, w.shape, attributes["strides"], attributes["dilation"])
        acc = np.zeros((x.shape[0], rows, columns, w.shape[3]), np.int64)
        for o in range(w.shape[3]):
            first = o // (w.shape[3] // groups) * w.shape[2]
            for i, j, c in np.ndindex(*w.shape[:3]):
                at = [np.arange(n) * s + k * d for n, s, k, d in zip((rows, columns), strides, (i, j), dilation, strict=True)]
                at = [np.minimum(each, limit - 1) for each, limit in zip(at, padded.shape[1:3], strict=True)]
                acc[..., o] += padded[:, at[0][:, None], at[1][None], first + c] * w[i, j, c, o]
        y = self.scaled(acc, constants, info)
        return y.transpose(0, 3, 1, 2) if is_nchw else y

    def matmul(self, inputs: Any, constants: Any, info: Any, attributes: Any) -> np.ndarray:
        w = constants["weight.values"].astype(np.int64) - constants["weight.zero_point"]
        w = w[::-1] if self.fault == "transposed_weights" else w
        return self.scaled(self.centered(inputs["x"], info["input"]["zero_point"]) @ w, constants, info)

    def add(self, inputs: Any, constants: Any, info: Any, attributes: Any) -> np.ndarray:
        y = info["output"]
        scales = [info[f"input{i}"]["scale"] / y["scale"] for i in range(2)]
        if self.fault == "second_input_scale":
            scales[1] = scales[0]
        parts = [self.centered(inputs[name], info[f"input{i}"]["zero_point"]) for i, name in enumerate("ab")]
        total = np.float32(scales[0]) * parts[0].astype(np.float32) + np.float32(scales[1]) * parts[1].astype(np.float32)
        return self.quantized(total, y)

    def pool2d(self, inputs: Any, constants: Any, info: Any, attributes: Any) -> np.ndarray:
        x, is_nchw, zero = inputs["x"], attributes["layout"] == "NCHW", info["input"]["zero_point"]
        x = self.centered(x.transpose(0, 2, 3, 1) if is_nchw else x, zero)
        is_max, padding = attributes["kind"] == "max", attributes["padding"]
        outside = -(10**6) if is_max and self.fault != "zero_padding" else 0
        padded, counted = self.around(x, padding, outside), self.around(np.ones_like(x), padding, 0)
        rows, columns = attributes["out_height"], attributes["out_width"]
        taps = [
            (padded[:, i::down][:, :rows, j::right][:, :, :columns], counted[:, i::down][:, :rows, j::right][:, :, :columns])
            for down, right in [attributes["strides"]]
            for i, j in np.ndindex(*attributes["kernel"])
        ]
        if is_max:
            y = self.clamped(np.max([tap for tap, _ in taps], axis=0) + zero, info["output"])
        else:
            total, count = (np.sum(each, axis=0) for each in zip(*taps, strict=True))
            if attributes["count_include_pad"] or self.fault == "zero_padding":
                count = np.full_like(count, len(taps))
            ratio = np.float32(np.float32(info["input"]["scale"]) / np.float32(info["output"]["scale"]))
            if self.fault == "average_divides_early":
                total, count = np.rint(total / count).astype(np.int64), np.ones_like(count)
            y = self.quantized(total.astype(np.float32) * (ratio / count.astype(np.float32)), info["output"])
        return y.transpose(0, 3, 1, 2) if is_nchw else y

    def concat(self, inputs: Any, constants: Any, info: Any, attributes: Any) -> np.ndarray:
        y, parts = info["output"], []
        for i, x in enumerate(inputs.values()):
            mine = info[f"input{i}"]
            factor = np.float32(np.float32(mine["scale"]) / np.float32(y["scale"]))
            parts.append(self.quantized(self.centered(x, mine["zero_point"]).astype(np.float32) * factor, y))
        return np.concatenate(parts, axis=attributes["axis"])

    def lookup(self, inputs: Any, constants: Any, info: Any, attributes: Any) -> np.ndarray:
        return constants["table"][inputs["x"].astype(np.int64) - info["input"]["qmin"]]

    def move(self, inputs: Any, constants: Any, info: Any, attributes: Any) -> np.ndarray:
        x, axes = inputs["x"], attributes.get("axes")
        return x if axes is None else x.transpose(axes)

    def centered(self, x: np.ndarray, zero_point: int) -> np.ndarray:
        return x.astype(np.int64) - (0 if self.fault == "no_input_zero_point" else zero_point)

    def padded(self, x: np.ndarray, padding: Any, zero_point: int) -> np.ndarray:
        outside = -zero_point if self.fault == "zero_padding" else 0
        return self.around(self.centered(x, zero_point), padding, outside)

    @staticmethod
    def around(x: np.ndarray, padding: Any, outside: int) -> np.ndarray:
        top, left, bottom, right = padding
        return np.pad(x, ((0, 0), (top, bottom), (left, right), (0, 0)), constant_values=outside)

    @staticmethod
    def size(padded: np.ndarray, weight: Any, strides: Any, dilation: Any) -> list[int]:
        return [
            (have - step * (taps - 1) - 1) // stride + 1
            for have, taps, stride, step in zip(padded.shape[1:3], weight, strides, dilation, strict=False)
        ]

    def scaled(self, acc: np.ndarray, constants: Any, info: Any) -> np.ndarray:
        bias, multiplier = constants["weight.bias"], constants["weight.multiplier"]
        is_late = self.fault == "late_bias"
        acc = acc if is_late or self.fault == "no_bias" else acc + bias
        if self.fault == "accumulator_16":
            acc = acc.astype(np.int16).astype(np.int64)
        overflow, bound = info["overflow"], 2 ** (info["accumulator_bits"] - 1)
        if self.fault == "other_overflow":
            overflow = {"wraps": "saturates", "saturates": "wraps"}.get(overflow, overflow)
        if overflow == "saturates":
            acc = np.clip(acc, -bound, bound - 1)
        elif overflow == "wraps":
            acc = (acc + bound) % (2 * bound) - bound
        multiplier = np.roll(multiplier, 1) if self.fault == "next_scale" else multiplier
        if self.fault == "early_zero_point":
            acc = acc + info["output"]["zero_point"]
            info = {**info, "output": {**info["output"], "zero_point": 0}}
        y = self.quantized(acc.astype(np.float32) * multiplier, info["output"])
        y = self.clamped(y.astype(np.int64) + bias, info["output"]) if is_late else y
        return y[..., ::-1] if self.fault == "output_channels_reversed" else y

    def quantized(self, real: np.ndarray, y: Any) -> np.ndarray:
        """Return round(real) + zero point, clamped."""
        wide = real.astype(np.float64)
        rounded = {
            "half_up": lambda: np.floor(wide + 0.5),
            "half_away": lambda: np.copysign(np.floor(np.abs(wide) + 0.5), wide),
            "truncates": lambda: np.trunc(wide),
        }.get(self.fault, lambda: np.rint(wide))()
        return self.clamped(np.clip(rounded, -(2.0**40), 2.0**40).astype(np.int64) + y["zero_point"], y)

    def clamped(self, values: np.ndarray, y: Any) -> np.ndarray:
        info = np.iinfo(y["dtype"])
        low, high = (info.min, info.max) if self.fault == "no_clamp" else (y["qmin"], y["qmax"])
        return values.astype(y["dtype"]) if self.fault == "wraps" else np.clip(values, low, high).astype(y["dtype"])
