"""Channels behind SiLU and hard-swish are evened out: the function runs on float sums, in the kernel of the product before it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import octavo
from octavo.numerics.statistics.metrics import sqnr_db
from reference_sessions import reference_session

CHANNELS = 16
UNCORRECTED = octavo.Recipe(weight_rounding="nearest", bias_correction=False, min_sqnr=None)
"""Equalization alone: every run of a model that corrections and ratios need is compiled."""


def network(kind: str) -> onnx.ModelProto:
    """A convolution with channels of unlike ranges, a function, a depthwise convolution that evens them out, a convolution."""
    rng = np.random.default_rng(5)
    width = np.geomspace(1, 200, CHANNELS).astype(np.float32)
    weights = {
        "w0": rng.normal(size=(CHANNELS, 3, 3, 3)).astype(np.float32) * width.reshape(-1, 1, 1, 1) / 5,
        "w1": rng.normal(size=(CHANNELS, 1, 3, 3)).astype(np.float32) / width.reshape(-1, 1, 1, 1),
        "w2": rng.normal(size=(8, CHANNELS, 1, 1)).astype(np.float32),
    }
    biases = {f"b{i}": rng.normal(size=each.shape[0]).astype(np.float32) * 0.1 for i, each in enumerate(weights.values())}
    sigmoid = "Sigmoid" if kind == "silu" else "HardSigmoid"
    attributes = {} if kind == "silu" else {"alpha": 1 / 6, "beta": 0.5}
    nodes = [
        helper.make_node("Conv", ["x", "w0", "b0"], ["c0"], pads=[1] * 4),
        helper.make_node(sigmoid, ["c0"], ["gate"], **attributes),
        helper.make_node("Mul", ["c0", "gate"], ["act"]),
        helper.make_node("Conv", ["act", "w1", "b1"], ["c1"], group=CHANNELS, pads=[1] * 4),
        helper.make_node("Conv", ["c1", "w2", "b2"], ["y"]),
    ]
    ends = [[helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, size, 16, 16])] for name, size in (("x", 3), ("y", 8))]
    constants = [numpy_helper.from_array(value, name) for name, value in {**weights, **biases}.items()]
    graph = helper.make_graph(nodes, kind, *ends, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


@pytest.mark.parametrize(("kind", "recipe"), [("silu", octavo.Recipe(min_sqnr=None)), ("hard_swish", UNCORRECTED)])
def test_channels_behind_a_function_are_evened_out(kind, recipe, rng, tmp_path) -> None:
    onnx.save(network(kind), tmp_path / "net.onnx")
    model = octavo.load(tmp_path / "net.onnx")
    samples = [rng.normal(size=(1, 3, 16, 16)).astype(np.float32) for _ in range(24)]
    profile = octavo.profile(model, samples[:16], keep_samples=16)
    run = octavo.compile(model)

    def quality(quantized: octavo.Model) -> float:
        executable = octavo.compile(quantized)
        outputs = [[next(iter(each(x).values())) for x in samples[16:]] for each in (run, executable)]
        return sqnr_db(*map(np.concatenate, outputs))

    plain = octavo.quantize(model, profile, recipe=replace(recipe, equalization="none"))
    even = octavo.quantize(model, profile, recipe=recipe)
    factors = {str(name): each for name, each in even.plan.equalization.factors.items()}
    assert "act" in factors
    assert np.log2(factors["act"]).round() == pytest.approx(np.log2(factors["act"]), abs=0)  # powers of two: exact in float32
    kernels = [op.op for op in octavo.explain(even).ops if op.kernel]
    assert "lookup" not in kernels
    assert kernels.count("conv2d") == 3
    assert quality(even) > quality(plain) + 6
    again = octavo.quantize(model, plan=even.plan)
    assert again.fingerprint == even.fingerprint
    octavo.export_onnx(even, tmp_path / "int8.onnx")
    session = reference_session(onnx.load(tmp_path / "int8.onnx"))
    executable = octavo.compile(even)
    for x in samples[16:18]:
        want, got = session.run(None, {"x": x})[0], next(iter(executable(x).values()))
        assert sqnr_db(want, got) > 50


def test_a_plan_repeats_a_scaled_function_that_stays_float(rng, tmp_path) -> None:
    onnx.save(network("silu"), tmp_path / "net.onnx")
    model = octavo.load(tmp_path / "net.onnx")
    profile = octavo.profile(model, [rng.normal(size=(1, 3, 16, 16)).astype(np.float32) for _ in range(16)], keep_samples=16)
    quantized = octavo.quantize(model, profile, recipe=replace(UNCORRECTED, exclude=("c0",)))
    assert "act" in map(str, quantized.plan.equalization.factors)
    quantized.plan.save(tmp_path / "plan.json")
    assert octavo.quantize(model, plan=tmp_path / "plan.json").fingerprint == quantized.fingerprint


def test_a_function_that_must_not_be_rounded_before_runs_in_the_kernel(rng, tmp_path) -> None:
    onnx.save(network("silu"), tmp_path / "net.onnx")
    model = octavo.load(tmp_path / "net.onnx")
    profile = octavo.profile(model, [rng.normal(size=(1, 3, 16, 16)).astype(np.float32) for _ in range(4)])
    recipe = octavo.Recipe(equalization="none", min_sqnr=None, float_tensors=("c0",))
    quantized = octavo.quantize(model, profile, recipe=recipe)
    assert "c0" not in map(str, quantized.plan.activations)
    assert "act" in map(str, quantized.plan.activations)
    assert [op.op for op in octavo.explain(quantized).ops if op.kernel] == ["quantize", "conv2d", "conv2d", "conv2d"]
