"""Networks of one-dimensional convolutions: they are quantized as image networks are, and their tensors stay rows for others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
import tvm
from onnx import helper
from onnx_nets import OnnxWriter

import octavo
from octavo.compiler.target_choice import resolve_target
from octavo.evaluation.verify import verify_lineage
from octavo.export.onnx.onnx_export import export_onnx
from octavo.ir.graph.dataflow import DataflowView
from octavo.ir.simplify import simplify
from octavo.numerics.statistics.metrics import sqnr_db
from octavo.quantizer.programs import Programs
from octavo.quantizer.quantize import by_profile
from octavo.runtime.llvm_host import host_target
from reference_sessions import reference_session

PLAIN = octavo.Recipe(bias_correction=False, weight_rounding="nearest", equalization="none", min_sqnr=None)
FUSED = [("nn.conv2d", ("bias", "nn.relu")), ("nn.conv2d", ("bias",)), ("add", ("nn.relu",)), ("nn.conv2d", ("bias",))]


def recordings(count: int, width: int = 24) -> np.ndarray:
    return np.random.default_rng(3).standard_normal((count, 4, width)).astype(np.float32)


def residual(batch: int | str = 1, width: int | str = 24) -> Any:
    """Convolutions behind paddings, normalizations that are not folded yet, a residual sum, and rows that are returned."""
    net = OnnxWriter()

    def block(data: str, name: str, pads: list[int], **attrs: Any) -> str:
        padded = net.node("Pad", [data, net.value(f"{name}.pads", np.array([0, 0, pads[0], 0, 0, pads[1]]))], f"{name}_pad")
        c = net.node("Conv", [padded, net.constant(f"{name}.w", 8, 8 if data != "x" else 4, 3)], f"{name}_conv", **attrs)
        values = [net.constant(f"{name}.{part}", 8, positive=part == "var") for part in ("scale", "bias", "mean", "var")]
        return net.node("BatchNormalization", [c, *values], f"{name}_norm")

    a = net.node("Relu", [block("x", "a", [1, 1])], "a")
    b = block(a, "b", [4, 0], dilations=[2])
    s = net.node("Relu", [net.node("Add", [a, b], "sum")], "s")
    net.node("Conv", [s, net.constant("c.w", 2, 8, 1), net.constant("c.b", 2)], "y")
    return net.model({"x": [batch, 4, width]}, {"y": [batch, 2, width]})


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> tuple[octavo.Model, octavo.Profile]:
    """The network and its profile."""
    model = load(residual(), tmp_path_factory.mktemp("rows"))
    return model, octavo.profile(model, recordings(12), keep_samples=12)


def load(proto: Any, folder: Path) -> octavo.Model:
    onnx.save(proto, folder / "float.onnx")
    return octavo.load(folder / "float.onnx")


def fused(quantized: octavo.QuantizedModel) -> list[tuple[str, tuple[str, ...]]]:
    return [(layer.op, layer.fused) for layer in quantized.plan.layers if layer.op in ("nn.conv2d", "add")]


def test_kernels_hold_what_follows_convolutions_of_rows(rows: Any) -> None:
    model, profile = rows
    quantized = by_profile(resolve_target("cpu"), model, profile, PLAIN)
    assert fused(quantized) == FUSED
    assert {str(fold.gone) for fold in quantized.plan.folds if fold.op == "nn.batch_norm"} == {"a_conv", "b_conv"}
    assert [str(fold.gone) for fold in quantized.plan.folds if fold.op == "nn.pad"] == ["b_pad"]
    # No squeeze is rounded, and what is bears the names of the source, but for the image of the input.
    assert {str(name) for name in quantized.plan.activations} == {"x", "a_pad", "a_conv_expand_dims", "a", "s"}
    for name in ("a", "s"):
        assert np.all(quantized.plan.activations[name].zero_point == quantized.plan.activations[name].qmin)


def test_plans_of_models_that_were_simplified_otherwise_are_followed(rows: Any, tmp_path: Path) -> None:
    model, profile = rows
    simple, folds = simplify(model, ())
    older = by_profile(resolve_target("cpu"), model, profile, PLAIN, programs=Programs(simple=simple, folds=folds))
    assert fused(older) != FUSED
    older.plan.save(tmp_path / "plan.json")
    data = json.loads((tmp_path / "plan.json").read_text())
    data["derived"]["folds"] = data.pop("folds")  # as files from before have it
    (tmp_path / "plan.json").write_text(json.dumps(data))
    again = octavo.quantize(model, plan=octavo.QuantizationPlan.load(tmp_path / "plan.json"))
    assert again.plan == older.plan
    assert again.fingerprint == older.fingerprint
    x = recordings(1)
    np.testing.assert_array_equal(octavo.compile(again)(x)["y"], octavo.compile(older)(x)["y"])


def test_a_plan_is_read_and_followed(rows: Any, tmp_path: Path) -> None:
    model, profile = rows
    quantized = octavo.quantize(model, profile)
    quantized.plan.save(tmp_path / "plan.json")
    again = octavo.quantize(model, plan=octavo.QuantizationPlan.load(tmp_path / "plan.json"))
    assert (again.plan, again.fingerprint) == (quantized.plan, quantized.fingerprint)


@pytest.mark.parametrize("is_quantized", [False, True])
def test_rows_are_followed_into_their_images(rows: Any, is_quantized: bool) -> None:
    model, profile = rows
    lineage = octavo.Lineage(model, target=host_target())
    with host_target(), tvm.transform.PassContext(opt_level=3, instruments=[lineage]):
        made = by_profile(resolve_target("cpu"), model, profile, PLAIN) if is_quantized else model
        module = octavo.relax_pipeline(ids=made.tensors)(made.bound())
    checks = verify_lineage(model, module, recordings(1), lineage=lineage)
    assert [str(check) for check in checks if not check.is_right] == []
    state = lineage["s"]
    assert state.is_alive
    values = np.arange(8 * 24, dtype=np.float32).reshape(1, 8, 24)
    assert state.relation.apply(values).ndim == 4
    np.testing.assert_array_equal(state.relation.undo(state.relation.apply(values), (1, 8, 24)), values)


def test_onnx_runtime_computes_the_simulation(rows: Any, tmp_path: Path) -> None:
    model, profile = rows
    quantized = by_profile(resolve_target("cpu"), model, profile, PLAIN)
    export_onnx(quantized, tmp_path / "int8.onnx")
    proto = onnx.load(tmp_path / "int8.onnx")
    onnx.checker.check_model(proto, full_check=True)
    kinds = [node.op_type for node in proto.graph.node]
    assert kinds.count("BatchNormalization") == 0
    assert kinds.count("Pad") == 1, "that of the input is no convolution's"
    session, executable = reference_session(tmp_path / "int8.onnx", optimized=False, threads=1), octavo.compile(quantized)
    ours, theirs = (
        np.concatenate(parts)
        for parts in zip(*((executable(x[None])["y"], session.run(None, {"x": x[None]})[0]) for x in recordings(8)), strict=True)
    )
    assert sqnr_db(theirs, ours) > 40
    floats = np.concatenate([octavo.compile(model)(x[None])["y"] for x in recordings(8)])
    assert sqnr_db(floats, ours) > 25


def test_open_batches_and_lengths(tmp_path: Path) -> None:
    model = load(residual("n", "t"), tmp_path)
    executable = octavo.compile(model)
    session = reference_session(tmp_path / "float.onnx", optimized=False, threads=1)
    for width in (24, 31):
        x = recordings(2, width)
        np.testing.assert_allclose(executable(x)["y"], session.run(None, {"x": x})[0], rtol=0, atol=2e-5)


class Separable(torch.nn.Module):
    """A depthwise convolution and one of a row's points, normalized, with a pool behind."""

    def __init__(self) -> None:
        super().__init__()
        layers = (torch.nn.Conv1d(4, 4, 5, padding=2, groups=4), torch.nn.BatchNorm1d(4), torch.nn.ReLU6())
        layers += (torch.nn.Conv1d(4, 8, 1, bias=False), torch.nn.BatchNorm1d(8), torch.nn.ReLU())
        self.body = torch.nn.Sequential(*layers, torch.nn.MaxPool1d(2), torch.nn.Conv1d(8, 8, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x)


def test_pytorch_s_convolutions_of_rows_hold_what_follows() -> None:
    torch.manual_seed(0)
    program = torch.export.export(Separable().eval(), (torch.zeros(1, 4, 24),))
    model = octavo.load(program)
    profile = octavo.profile(model, recordings(12), keep_samples=12)
    quantized = by_profile(resolve_target("cpu"), model, profile, PLAIN)
    assert [op for _, op in fused(quantized)][:2] == [("bias", "clip"), ("bias", "nn.relu")]
    assert sum(layer.op in ("squeeze", "expand_dims") for layer in quantized.plan.layers) == 1, "of the input"


@pytest.mark.parametrize("is_built", [False, True])
def test_errors_by_layer_are_those_of_the_source_s_tensors(rows: Any, is_built: bool) -> None:
    model, profile = rows
    quantized = by_profile(resolve_target("cpu"), model, profile, PLAIN)
    target = resolve_target("cpu") if is_built else None
    errors = {
        row.source_name: row.sqnr_db
        for row in octavo.layer_errors(model, quantized, [x[None] for x in recordings(4)], target=target)
    }
    assert errors.keys() == {"x", "a_pad", "a_conv", "a_norm", "a", "b_conv", "b_norm", "sum", "s"}
    assert all(35 < value < 60 for value in errors.values())


def test_parts_of_rows_are_parts_of_their_image_and_nothing_else_is_left(tmp_path: Path) -> None:
    """Else what no output needs would be placed, and asked of programs that don't have it."""
    net = OnnxWriter()
    net.node("Relu", [net.node("Conv", ["x", net.constant("a.w", 8, 4, 1)], "conv")], "a")
    net.nodes.append(helper.make_node("Split", ["a"], ["first", "second"], axis=1))
    net.node("Concat", ["first", net.node("Conv", ["second", net.constant("b.w", 4, 4, 1)], "b")], "y", axis=1)
    simple = simplify(load(net.model({"x": [1, 4, 24]}, {"y": [1, 8, 24]}), tmp_path))[0]
    view = DataflowView(simple.module["main"])
    assert {"first", "second"} <= view.variables.keys()
    assert not [binding.var.name for binding in view.bindings if view.is_unread(binding.var)]
