"""The ONNX QDQ file: valid, loadable, and the very simulation that the module is."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx_nets import (
    OnnxWriter,
    attention,
    convolutional,
    normalized_first,
    normalized_groups,
    normalized_rows,
    rows,
    shared_and_float,
    upsampling,
)

import octavo
import octavo.frontends
from apply_steps import with_steps
from nets import residual_net
from octavo.errors import QuantizationError
from octavo.export.onnx.onnx_export import export_onnx, onnx_model
from octavo.ir.graph import Model
from octavo.ir.graph.inputs import input_specs
from octavo.numerics.statistics.metrics import sqnr_db
from octavo.quantizer.quantize_graph import quantize_graph
from octavo.quantizer.recipe import Recipe
from octavo.target import OpSupport, TargetDescription
from reference_sessions import reference_session
from tvm_alone import tvm_alone

from handmade_profile import ranged  # isort: skip

NPU = TargetDescription(
    name="npu",
    ops=(
        OpSupport(op="nn.conv2d", weights=("int8",), fusions=("bias", "nn.relu", "clip")),
        OpSupport(op="matmul", weights=("int8",), fusions=("bias", "nn.relu", "clip")),
        *(OpSupport(op=name) for name in ("add", "mean", "nn.avg_pool2d", "concat")),
        *(OpSupport(op=name, same_params=True) for name in ("nn.max_pool2d", "reshape", "permute_dims")),
    ),
)

UNCORRECTED = Recipe(weight_rounding="nearest", bias_correction=False, min_sqnr=None)
"""Channels evened out alone: every run of a model that corrections and ratios need is compiled."""


def load(proto: Any, folder: Path) -> Model:
    onnx.save(proto, folder / "float.onnx")
    return octavo.frontends.load(folder / "float.onnx")


def profiled(model: Model, count: int = 12, keep: int = 0) -> tuple[Any, np.ndarray]:
    shape = input_specs(model)[0].shape
    samples = np.random.default_rng(4).standard_normal((count, *shape[1:])).astype(np.float32)
    return octavo.profile(model, samples, keep_samples=keep), samples


@pytest.fixture(scope="module")
def conv_net(tmp_path_factory: pytest.TempPathFactory) -> tuple[Model, Any, np.ndarray]:
    """The convolutional network, its profile, and the samples of that."""
    model = load(convolutional(), tmp_path_factory.mktemp("net"))
    return model, *profiled(model)


def run_both(model: Model, quantized: Model, path: Path, samples: np.ndarray, *, optimized: bool) -> list[list[np.ndarray]]:
    """Return [simulation, ONNX Runtime], each the outputs of all samples."""
    name = input_specs(model)[0].source_name
    simulate, runtime = tvm_alone(quantized.bound()), reference_session(path, optimized=optimized, threads=1)
    rows = [samples[index : index + 1] for index in range(len(samples))]
    results = [[simulate(row) for row in rows], [runtime.run(None, {name: row}) for row in rows]]
    return [[np.concatenate(parts) for parts in zip(*result, strict=True)] for result in results]


@pytest.mark.parametrize("recipe", [Recipe(), Recipe(activation_dtype="int8", weight_granularity="per_tensor")])
def test_onnx_runtime_computes_the_simulation(conv_net: Any, tmp_path: Path, recipe: Recipe) -> None:
    model, profile, samples = conv_net
    quantized = quantize_graph(model, profile, target=NPU, recipe=recipe)
    assert [item.op for item in quantized.plan.float_ops] == ["nn.softmax"]
    assert [fold.op for fold in quantized.plan.folds] == ["nn.pad", "nn.batch_norm", "nn.batch_norm"]
    export_onnx(quantized, tmp_path / "int8.onnx")
    proto = onnx.load(tmp_path / "int8.onnx")
    onnx.checker.check_model(proto, full_check=True)
    assert [item.name for item in proto.graph.output] == [item.name for item in model.source.proto.graph.output]
    count = Counter(node.op_type for node in proto.graph.node)
    assert count["QuantizeLinear"] == len(quantized.plan.activations)
    assert count["BatchNormalization"] == count["Pad"] == 0
    assert {item.data_type for item in proto.graph.initializer if item.name.endswith("weight_quantized")} == {
        onnx.TensorProto.INT8
    }
    simulated, unoptimized = run_both(model, quantized, tmp_path / "int8.onnx", samples, optimized=False)
    for ours, theirs in zip(simulated, unoptimized, strict=True):
        # A sum in another order may fall on the other side of a rounding; one step of the logits is the most it can move.
        assert sqnr_db(theirs, ours) > 40
    _, optimized = run_both(model, quantized, tmp_path / "int8.onnx", samples, optimized=True)
    assert sqnr_db(unoptimized[1], optimized[1]) > 30


def test_int16_activations_are_written_in_an_opset_that_has_them(conv_net: Any, tmp_path: Path) -> None:
    model, profile, samples = conv_net
    quantized = octavo.quantize(model, profile, recipe=Recipe(activation_dtype="int16"))
    assert {params.dtype for params in quantized.plan.activations.values()} == {"int16"}
    export_onnx(quantized, tmp_path / "int16.onnx")
    proto = onnx.load(tmp_path / "int16.onnx")
    assert ([entry.version for entry in proto.opset_import], proto.ir_version) == ([21], 10)
    for got, runtime in zip(*run_both(model, quantized, tmp_path / "int16.onnx", samples, optimized=False), strict=True):
        assert sqnr_db(got, runtime) > 70


def test_products_of_two_activations_are_written_and_their_scores_stay_float(tmp_path: Path) -> None:
    model = load(attention(), tmp_path)
    profile, samples = profiled(model)
    quantized = octavo.quantize(model, profile)
    assert octavo.explain(quantized).summary.split(";")[0].endswith("100.0% of MACs")
    assert "products" not in quantized.plan.activations
    export_onnx(quantized, tmp_path / "int8.onnx")
    onnx.checker.check_model(onnx.load(tmp_path / "int8.onnx"), full_check=True)
    [[simulated], [theirs]] = run_both(model, quantized, tmp_path / "int8.onnx", samples, optimized=False)
    assert sqnr_db(theirs, simulated) > 40
    executable = octavo.compile(quantized)
    ours = np.concatenate([executable(row[None])["y"] for row in samples])
    assert sqnr_db(simulated, ours) > 40


def test_convolutions_of_rows_are_written_as_they_were(tmp_path: Path) -> None:
    model = load(rows(), tmp_path)
    profile, samples = profiled(model)
    quantized = quantize_graph(model, profile)
    assert sum(layer.weight is not None for layer in quantized.plan.layers) == 3
    export_onnx(quantized, tmp_path / "int8.onnx")
    simulated, theirs = run_both(model, quantized, tmp_path / "int8.onnx", samples, optimized=False)
    assert sqnr_db(theirs[0], simulated[0]) > 40
    again = octavo.load(tmp_path / "int8.onnx")
    assert [op.integer for op in octavo.explain(again).counted if op.macs] == [True] * 3


def test_transposed_convolutions_are_integer_and_written_with_their_normalizations_folded(tmp_path: Path) -> None:
    model = load(upsampling(), tmp_path)
    profile, samples = profiled(model)
    quantized = quantize_graph(model, profile)
    assert [layer.op for layer in quantized.plan.layers] == ["nn.conv2d_transpose"] * 3
    assert [params.scale.ndim for params in quantized.plan.weights.values()] == [1, 1, 0], "groups of several share their scales"
    export_onnx(quantized, tmp_path / "int8.onnx")
    simulated, theirs = run_both(model, quantized, tmp_path / "int8.onnx", samples, optimized=False)
    assert sqnr_db(theirs[0], simulated[0]) > 40
    again, executable = octavo.load(tmp_path / "int8.onnx"), octavo.compile(quantized)
    assert octavo.explain(again).summary == "3/3 ops integer, 100.0% of MACs"
    assert sqnr_db(simulated[0], np.concatenate([executable(row[None])["y"] for row in samples])) > 40


def test_normalizations_before_convolutions_gates_and_constants_are_integer_and_written(tmp_path: Path) -> None:
    model = load(normalized_first(), tmp_path)
    profile, samples = profiled(model, 4)
    quantized = octavo.quantize(model, profile)
    assert [op.op for op in octavo.explain(quantized).counted if not op.integer] == []
    constants = {str(name) for layer in quantized.plan.layers for name in layer.constants}
    assert constants == {"joined", "places"}, "those of few values are in tables"
    assert {"d_sums", "s"}.isdisjoint(quantized.plan.activations), "parametric relus read what is not rounded"
    again = octavo.quantize(model, plan=quantized.plan)
    assert again.fingerprint == quantized.fingerprint
    export_onnx(quantized, tmp_path / "int8.onnx")
    simulated, theirs = run_both(model, quantized, tmp_path / "int8.onnx", samples, optimized=False)
    executable = octavo.compile(quantized)
    ours = np.concatenate([executable(row[None])["y"] for row in samples])
    assert sqnr_db(theirs[0], simulated[0]) > 40
    assert sqnr_db(simulated[0], ours) > 35, "a step of one tensor at most"


def recurrent() -> Any:
    """Convolutions of rows with channels of unlike ranges, which a recurrent op reads."""
    net, rng = OnnxWriter(), np.random.default_rng(1)
    uneven = (2.0 ** np.arange(-3, 5)).astype(np.float32)
    weights = [
        net.value("w1", rng.standard_normal((8, 3, 3)).astype(np.float32) * uneven[:, None, None]),
        net.value("w2", rng.standard_normal((8, 8, 3)).astype(np.float32) / uneven[None, :, None] * uneven[:, None, None]),
    ]
    a = net.node("Relu", [net.node("Conv", ["x", weights[0]], "c1", pads=[1, 1])], "r1")
    b = net.node("Relu", [net.node("Conv", [a, weights[1]], "c2", pads=[1, 1])], "r2")
    gates = [net.constant(name, 1, 24, size) for name, size in (("W", 8), ("R", 6))]
    net.node("LSTM", [net.node("Transpose", [b], "turned", perm=[2, 0, 1]), *gates], "y", hidden_size=6)
    return net.model({"x": [1, 3, 3]}, {"y": [3, 1, 1, 6]})


def test_recurrent_ops_read_what_equalization_divided(tmp_path: Path) -> None:
    model = load(recurrent(), tmp_path)
    shape = input_specs(model)[0].shape
    samples = np.random.default_rng(4).standard_normal((12, *shape[1:])).astype(np.float32)
    profile = octavo.profile(model, samples, keep_samples=12)
    quantized = octavo.quantize(model, profile, recipe=UNCORRECTED)
    assert {"r1", "turned"} <= set(quantized.plan.equalization.factors)
    export_onnx(quantized, tmp_path / "int8.onnx")
    assert any(node.op_type == "LSTM" for node in onnx.load(tmp_path / "int8.onnx").graph.node)
    kernels, again = octavo.compile(quantized), octavo.compile(octavo.load(tmp_path / "int8.onnx"))
    session = reference_session(tmp_path / "int8.onnx", optimized=False, threads=1)
    rows = [row[None] for row in samples]
    theirs = np.concatenate([session.run(None, {"x": row})[0] for row in rows])
    ours, back = (np.concatenate([each(row)["y"] for row in rows]) for each in (kernels, again))
    assert ours.tobytes() == back.tobytes()
    assert sqnr_db(ours, theirs) > 100


def uneven_dense() -> Any:
    """A convolution, a Gemm of a transposed weight and a MatMul, square ones, between channels of unlike ranges."""
    net, rng = OnnxWriter(), np.random.default_rng(1)
    uneven = (2.0 ** np.arange(-4, 4)).astype(np.float32)
    first = net.value("first", rng.standard_normal((8, 3, 1, 1)).astype(np.float32) * uneven[:, None, None, None])
    pool = net.node("GlobalAveragePool", [net.node("Relu", [net.node("Conv", ["x", first], "c")], "r")], "gap")
    across = net.value("wa", rng.standard_normal((8, 8)).astype(np.float32) / uneven[None] * uneven[:, None])
    h = net.node("Relu", [net.node("Gemm", [net.node("Flatten", [pool], "f"), across], "h", transB=1)], "hr")
    net.node("MatMul", [h, net.value("wb", rng.standard_normal((8, 8)).astype(np.float32) / uneven[:, None])], "y")
    return net.model({"x": [1, 3, 6, 6]}, {"y": [1, 8]})


@pytest.mark.parametrize("recipe", [Recipe(exclude=("h",), min_sqnr=None), replace(UNCORRECTED, exclude=("y",))], ids=["h", "y"])
def test_dense_layers_that_stay_float_are_written_with_their_factors(recipe: Recipe, tmp_path: Path) -> None:
    model = load(uneven_dense(), tmp_path)
    samples = np.random.default_rng(4).standard_normal((12, 3, 6, 6)).astype(np.float32)
    profile = octavo.profile(model, samples, keep_samples=12)
    quantized = octavo.quantize(model, profile, recipe=recipe)
    assert {"f", "hr"} <= set(quantized.plan.equalization.factors)
    export_onnx(quantized, tmp_path / "int8.onnx")
    kernels, again = octavo.compile(quantized), octavo.compile(octavo.load(tmp_path / "int8.onnx"))
    session = reference_session(tmp_path / "int8.onnx", optimized=False, threads=1)
    for row in samples:
        ours = kernels(row[None])["y"]
        assert np.array_equal(ours, again(row[None])["y"])
        assert sqnr_db(ours, session.run(None, {"x": row[None]})[0]) > 100


def test_layer_normalizations_are_integer_where_integers_are_read(tmp_path: Path) -> None:
    model = load(normalized_rows(), tmp_path)
    profile, samples = profiled(model)
    quantized = octavo.quantize(model, profile)
    assert [str(layer.output) for layer in quantized.plan.layers if layer.op == "nn.layer_norm"] == ["plain", "whole"]
    reasons = {str(item.tensor): item.reason for item in quantized.plan.float_ops}
    assert "steps need more than 8 bits" in reasons["rms"]
    assert reasons["y"] == "only float ops read its result, which 8 bits would only make coarser"
    assert [fold.op for fold in quantized.plan.folds] == ["nn.layer_norm"] * 8
    export_onnx(quantized, tmp_path / "int8.onnx")
    simulated, theirs = run_both(model, quantized, tmp_path / "int8.onnx", samples, optimized=False)
    assert sqnr_db(theirs[0], simulated[0]) > 40
    results = results_of_both(quantized, tmp_path / "int8.onnx", samples)
    assert sqnr_db(simulated[0], np.concatenate(results)) > 35


def results_of_both(quantized: Model, path: Path, samples: np.ndarray) -> list[np.ndarray]:
    """Return what a model gives, which its file gives, too, by the same kernels."""
    again = octavo.load(path)
    kinds = [Counter((op.op, op.integer, op.kernel) for op in octavo.explain(each).counted) for each in (quantized, again)]
    assert kinds[0] == kinds[1]
    executable, loaded = octavo.compile(quantized), octavo.compile(again)
    results = [executable(row[None])["y"] for row in samples]
    for row, ours in zip(samples, results, strict=True):
        np.testing.assert_array_equal(ours, loaded(row[None])["y"])
    return results


def normalized_at_the_start(form: str) -> Any:
    """A normalization of the network's own input, in steps or one op, behind a layer that has it quantized."""
    net = OnnxWriter(6)

    def unlike(channels: int, *shape: int) -> str:
        return net.value("gamma", np.geomspace(1, 30, channels, dtype=np.float32).reshape(shape))

    if form == "layer":
        both = net.node("MatMul", ["x", net.constant("w1", 24, 8)], "of_x")
        d = net.node("Sub", ["x", net.node("ReduceMean", ["x"], "middle", axes=[-1], keepdims=1)], "d")
        v = net.node("ReduceMean", [net.node("Mul", [d, d], "square")], "variance", axes=[-1], keepdims=1)
        v = net.node("Add", [v, net.value("little", np.float32(1e-5))], "v")
        n = net.node("Div", [d, net.node("Sqrt", [v], "root")], "q")
        n = net.node("Mul", [n, unlike(24, 24)], "scaled")
        n = net.node("Add", [n, net.constant("beta", 24)], "n")
        net.node("Add", [both, net.node("MatMul", [n, net.constant("w2", 24, 8)], "of_n")], "y")
        return net.model({"x": [1, 5, 24]}, {"y": [1, 5, 8]})
    both = net.node("Conv", ["x", net.constant("w1", 4, 12, 1, 1)], "of_x")
    if form == "whole group":
        n = net.node("GroupNormalization", ["x", unlike(12, 12), net.constant("beta", 12)], "n", num_groups=3, epsilon=0.01)
    else:
        n = net.node("Reshape", ["x", net.value("rows.shape", np.int64([0, 3, -1]))], "rows")
        ones, zeros = net.value("ones", np.ones(3, np.float32)), net.value("zeros", np.zeros(3, np.float32))
        n = net.node("InstanceNormalization", [n, ones, zeros], "by_group", epsilon=0.01)
        n = net.node("Reshape", [n, net.value("image.shape", np.int64([1, 12, 6, 7]))], "back")
        n = net.node("Mul", [n, unlike(12, 12, 1, 1)], "scaled")
        n = net.node("Add", [n, net.constant("beta", 12, 1, 1)], "n")
    net.node("Add", [both, net.node("Conv", [n, net.constant("w2", 4, 12, 1, 1)], "of_n")], "y")
    return net.model({"x": [1, 12, 6, 7]}, {"y": [1, 4, 6, 7]}, opset=21 if form == "whole group" else 17)


@pytest.mark.parametrize("form", ["layer", "group", "whole group"])
def test_a_normalization_that_reads_a_quantized_input_is_divided(form: str, tmp_path: Path) -> None:
    model = load(normalized_at_the_start(form), tmp_path)
    profile, samples = profiled(model, keep=12)
    quantized = with_steps(model, profile)
    assert f"nn.{form.removeprefix('whole ')}_norm" in [layer.op for layer in quantized.plan.layers]
    assert "n" in quantized.plan.equalization.factors
    export_onnx(quantized, tmp_path / "int8.onnx")
    ours = np.concatenate(results_of_both(quantized, tmp_path / "int8.onnx", samples))
    floats = octavo.compile(model)
    assert sqnr_db(np.concatenate([floats(row[None])["y"] for row in samples]), ours) > 35


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_normalizations_by_group_are_integer(dtype: Any, tmp_path: Path) -> None:
    model = load(normalized_groups(), tmp_path)
    profile, samples = profiled(model)
    quantized = octavo.quantize(model, profile, recipe=Recipe(activation_dtype=dtype))
    assert [str(layer.output) for layer in quantized.plan.layers if layer.op == "nn.group_norm"] == ["groups", "instances"]
    assert octavo.explain(quantized).summary == "6/6 ops integer, 100.0% of MACs"
    assert "rows" in {str(fold.gone) for fold in quantized.plan.folds}
    export_onnx(quantized, tmp_path / "int8.onnx")
    [[simulated], [theirs]] = run_both(model, quantized, tmp_path / "int8.onnx", samples, optimized=False)
    assert sqnr_db(theirs, simulated) > 40
    results = results_of_both(quantized, tmp_path / "int8.onnx", samples)
    assert sqnr_db(simulated, np.concatenate(results)) > 45


def test_constants_of_convolutions_that_stay_float_are_folded_too(conv_net: Any, tmp_path: Path) -> None:
    model, profile, samples = conv_net
    quantized = quantize_graph(model, profile, target=NPU, recipe=Recipe(exclude=("conv1", "bn2")))
    export_onnx(quantized, tmp_path / "int8.onnx")
    assert "BatchNormalization" not in [node.op_type for node in onnx.load(tmp_path / "int8.onnx").graph.node]
    simulated, theirs = run_both(model, quantized, tmp_path / "int8.onnx", samples, optimized=False)
    assert sqnr_db(theirs[1], simulated[1]) > 40


@pytest.mark.parametrize("name", ["conv1", "Conv", "nn.conv2d"])
def test_a_convolution_that_took_over_a_normalization_answers_to_its_own_name(name: str, conv_net: Any) -> None:
    """The tensor "conv1" is gone: what a Relu reads now comes of a convolution that holds the normalization."""
    model, profile, _ = conv_net
    first = quantize_graph(model, profile, target=NPU).plan.layers[0]
    layers = quantize_graph(model, profile, target=NPU, recipe=Recipe(exclude=(name,))).plan.layers
    assert first.op == "nn.conv2d"
    assert first.output not in [layer.output for layer in layers]
    assert name == "conv1" or "nn.conv2d" not in [layer.op for layer in layers]


def test_an_older_opset_is_raised(tmp_path: Path) -> None:
    model = load(convolutional(opset=9), tmp_path)
    profile, samples = profiled(model)
    quantized = quantize_graph(model, profile, target=NPU)
    proto = onnx_model(quantized)
    assert [item.version for item in proto.opset_import] == [13]
    export_onnx(quantized, tmp_path / "int8.onnx")
    simulated, theirs = run_both(model, quantized, tmp_path / "int8.onnx", samples, optimized=False)
    assert sqnr_db(theirs[1], simulated[1]) > 40


def test_shared_constants_and_float_readers(tmp_path: Path) -> None:
    model = load(shared_and_float(), tmp_path)
    profile, samples = profiled(model)
    quantized = quantize_graph(model, profile, target=NPU)
    export_onnx(quantized, tmp_path / "int8.onnx")
    nodes = {node.output[0]: node for node in onnx.load(tmp_path / "int8.onnx").graph.node}
    assert nodes["e"].input[0] == "x", "a float op reads the float input"
    assert nodes["scaled"].input[0] == "c", "and what an integer op made, dequantized"
    assert nodes["c"].op_type == nodes["y"].op_type == "DequantizeLinear"
    assert sum("b_" in name and name.endswith("_quantized") for node in nodes.values() for name in node.input) == 2
    simulated, theirs = run_both(model, quantized, tmp_path / "int8.onnx", samples, optimized=False)
    assert sqnr_db(theirs[0], simulated[0]) > 40


def test_a_weight_that_two_convolutions_share_is_dequantized_for_each(tmp_path: Path) -> None:
    """As ONNX Runtime's quantizer writes it; that its weights can't become uint8 twice is no reason not to compare it."""
    net = OnnxWriter()
    w = net.constant("w", 3, 3, 3, 3)
    first = net.node("Conv", ["x", w], "a", pads=[1, 1, 1, 1])
    second = net.node("Conv", [net.node("Relu", [first], "r"), w], "b", pads=[1, 1, 1, 1])
    net.node("Add", [first, second], "y")
    model = load(net.model({"x": [1, 3, 6, 6]}, {"y": [1, 3, 6, 6]}), tmp_path)
    profile, samples = profiled(model)
    quantized = quantize_graph(model, profile)
    export_onnx(quantized, tmp_path / "int8.onnx")
    graph = onnx.load(tmp_path / "int8.onnx").graph
    [integers] = [each.name for each in graph.initializer if list(each.dims) == [3, 3, 3, 3]]
    assert sum(integers in node.input for node in graph.node) == 2
    simulated, theirs = run_both(model, quantized, tmp_path / "int8.onnx", samples, optimized=True)
    assert sqnr_db(theirs[0], simulated[0]) > 40


def test_factors_of_gemm_are_written_once_and_constants_that_are_results_keep_their_values(tmp_path: Path) -> None:
    net = OnnxWriter()
    statistics = [net.constant(f"bn.{part}", 4, positive=part == "var") for part in ("scale", "bias", "mean", "var")]
    c = net.node("Conv", ["x", net.constant("w", 4, 1, 3, 3), net.constant("b", 4)], "c")
    f = net.node("Flatten", [net.node("BatchNormalization", [c, *statistics], "n")], "f")
    weights = [net.constant("fc.weight", 16, 16), net.constant("fc.bias", 16)]
    net.node("Gemm", [f, *weights], "y", alpha=-0.5, beta=3.0, transB=1)
    model = load(net.model({"x": [1, 1, 4, 4]}, {"y": [1, 16], "w": [4, 1, 3, 3], "b": [4]}), tmp_path)
    profile, samples = profiled(model)
    quantized = quantize_graph(model, profile, target=NPU)
    assert [layer.op for layer in quantized.plan.layers] == ["nn.conv2d", "reshape", "matmul"]
    export_onnx(quantized, tmp_path / "int8.onnx")
    simulated, theirs = run_both(model, quantized, tmp_path / "int8.onnx", samples, optimized=False)
    assert sqnr_db(theirs[0], simulated[0]) > 40
    for place, name in ((1, "w"), (2, "b")):
        value = onnx.numpy_helper.to_array(next(item for item in net.initializers if item.name == name))
        assert all(np.array_equal(rows[place][: len(value)], value) for rows in (simulated, theirs))


def test_the_source_is_left_as_it_was(tmp_path: Path) -> None:
    model = load(convolutional(), tmp_path)
    before = model.source.proto.SerializeToString()
    export_onnx(quantize_graph(model, ranged(model), target=NPU), tmp_path / "int8.onnx")
    assert model.source.proto.SerializeToString() == before


def test_what_cannot_be_written_says_why(tmp_path: Path) -> None:
    relax_model = residual_net()
    with pytest.raises(QuantizationError, match="not quantized; call quantize"):
        export_onnx(relax_model, tmp_path / "m.onnx")
    with pytest.raises(QuantizationError, match=r"only a model loaded from ONNX .* this one came from relax"):
        export_onnx(quantize_graph(relax_model, ranged(relax_model)), tmp_path / "m.onnx")
    model = load(convolutional(), tmp_path)
    quantized = quantize_graph(model, ranged(model), target=NPU)
    (tmp_path / "folder").mkdir()
    before = sorted(tmp_path.rglob("*"))
    for name in ("missing/m.onnx", "float.onnx/m.onnx", "folder"):
        with pytest.raises(QuantizationError, match="cannot write the ONNX file"):
            export_onnx(quantized, tmp_path / name)
    assert sorted(tmp_path.rglob("*")) == before


def test_padding_that_the_convolution_computes_itself_is_refused(tmp_path: Path) -> None:
    net = OnnxWriter()
    pads = net.value("pads", np.array([0, 0, 1, 1, 0, 0, 1, 1], np.int64))
    p = net.node("Pad", ["x", pads], "p")
    net.node("Conv", [p, net.constant("w", 2, 3, 3, 3)], "y", auto_pad="SAME_UPPER")
    model = load(net.model({"x": [1, 3, 4, 4]}, {"y": [1, 2, 6, 6]}), tmp_path)
    quantized = quantize_graph(model, ranged(model), target=NPU)
    with pytest.raises(QuantizationError, match="y: auto_pad SAME_UPPER behind a Pad"):
        export_onnx(quantized, tmp_path / "int8.onnx")
