"""A float tensor that enters integers: ties go as its quantize says, in kernels as in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tvm import relax

import octavo
from executed import compare
from nets import model_of
from octavo.ir.composites.attributes import read_composites
from octavo.numerics import QuantParams, quantize
from octavo.target import OpSupport, TargetDescription
from qdq_graph import Qdq, graph, round_as

WORDS: dict[str, Any] = {
    "half_even": "half_even",
    "half_up": "half_up",
    "half_away": "half_away",
    "shift_half_up": "half_up",
    "shift_half_away": "half_away",
    "shift_half_even": "half_even",
    "fixed_point_once": "half_up",
    "fixed_point_twice": "half_up",
    "fixed_point_twice_away": "half_away",
}


def entering(word: str, **fields: Any) -> OpSupport:
    parts = word.split("_", 2) if word.startswith("fixed") else word.split("_", 1)
    form = {"shift": "shift", "fixed": "fixed_point"}.get(parts[0], "float_multiplier")
    scales = "power_of_two" if form == "shift" else "any"
    rounding = parts[-1] if form != "float_multiplier" else word
    return OpSupport(
        op="quantize",
        activations=("int8", "uint8", "int16", "uint16"),
        requantize=form,
        rounding=rounding,
        scales=scales,
        **fields,
    )


@pytest.mark.parametrize("word", WORDS)
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16"])
@pytest.mark.parametrize("scale", [0.25, 0.3])
def test_kernels_round_as_the_quantize_says(rng, word: str, dtype: str, scale: float) -> None:
    target = TargetDescription(name="npu", ops=(entering(word), OpSupport(op="dequantize")))
    zero_point = {"int8": -7, "uint8": 100, "int16": 0}[dtype]
    ends = np.iinfo(dtype)
    near = np.float32([-0.5, 0.49999997, -0.49999997, 0.5, 1.5, -1.5, 3e38, -3e38, 1e-40, -0.0])
    ties = np.concatenate(
        [np.arange(-9, 9) + 0.5, [ends.min - 0.5, ends.min + 0.5, ends.max - 0.5, ends.max + 0.5] - np.float64(zero_point)]
    )
    x = np.concatenate([near, ties.astype(np.float32) * np.float32(scale), rng.normal(0, 40 * scale, 67).astype(np.float32)])

    def body(writer: Any, params: dict[str, Any]) -> Any:
        return Qdq(writer, dtype).quantize("x", params["x"], (scale, zero_point), is_output=True)

    module = round_as(graph({"x": (x.shape, "float32")}, body), word)
    found = compare(module, target, {"x": x})
    if scale == 0.3 and word.startswith("shift"):
        assert f"x_q has scale 0.3; {word} takes powers of two alone" in found.rejections["x_q"]
        return
    assert found.differences == []
    assert found.compared == {"quantize": 1}, found.rejections
    given = octavo.compile(octavo.load(module), target=target)({"x": x})["x_q"]
    np.testing.assert_array_equal(given, quantize(x, QuantParams.per_tensor(dtype, scale, zero_point), WORDS[word]))


def test_a_model_enters_as_the_description_says() -> None:
    """The quantize of the input says the first rounding of `quantize`, the composite carries it, and a tie goes up."""

    def body(writer: Any, x: relax.Var, w: relax.Var) -> relax.Expr:
        return writer.emit("y", relax.op.nn.conv2d(x, w), is_output=True)

    model = model_of({"x": ((1, 1, 4, 8), "float32")}, {"w": np.ones((1, 1, 1, 1), np.float32)}, body, ("y",))
    x = (np.arange(32, dtype=np.float32).reshape(1, 1, 4, 8) - 16) / 16
    profile = octavo.profile(model, [x, -x])
    how: dict[str, Any] = {"activations": ("int8",), "activation_schemes": ("symmetric",), "scales": "power_of_two"}
    conv = OpSupport(op="nn.conv2d", weights=("int8",), requantize="shift", **how)
    for rounding in ("half_up", "half_even"):
        edge = OpSupport(op="quantize", requantize="shift", rounding=rounding, **how)
        target = TargetDescription(name="npu", ops=(conv, edge, OpSupport(op="dequantize")))
        quantized = octavo.quantize(model, profile, target=target)
        (entry,) = [c for c in read_composites(octavo.partition(quantized, target=target)).values() if c.op_name == "quantize"]
        info = entry.quantize_info
        assert (info["requantize"], info["rounding"]) == ("shift", rounding)
        params = quantized.plan.activations["x"]
        ties = (np.arange(32, dtype=np.float32).reshape(1, 1, 4, 8) - 16.5) * params.scale
        found = compare(quantized.bound(), target, {"x": ties})
        assert found.differences == []
        assert found.compared == {"quantize": 1, "conv2d": 1}
    assert (quantize(ties, params, "half_up") != quantize(ties, params)).any()
