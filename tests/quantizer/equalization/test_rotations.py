"""Rotations folded into weights: small transformers compute the same, whatever of them is rotated; plans and files, too."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import tvm

import octavo
from octavo.compiler.float_program import FloatProgram
from octavo.compiler.target_choice import resolve_target
from octavo.errors import QuantizationError
from octavo.ir.channels import Rotation, find_rotatable, rotated
from octavo.ir.identity import TensorId
from octavo.ir.simplify import simplify
from octavo.numerics.rotation import rotate
from octavo.numerics.statistics.metrics import sqnr_db
from octavo.profiling import samples_of
from octavo.quantizer.choices import Choices
from octavo.quantizer.equalization import Equalizer
from octavo.quantizer.equalization.check import check_rotations
from octavo.quantizer.plan.equalization import Equalization
from octavo.quantizer.programs import Programs
from octavo.quantizer.quantize_graph import quantize_graph
from octavo.quantizer.referee.referee import score_of
from octavo.quantizer.steps.equalize import Rotate
from reference_sessions import reference_session
from small_transformer import Net, draws, transformer

SAME = 2e-5
"""Of the largest result: softmax of large values makes more of float32's rounding than most ops do."""


def every_rotation(simple: Any) -> dict[TensorId, Rotation]:
    return {name: each for site in find_rotatable(simple).sites() for name, each in site.rotations.items()}


@pytest.mark.parametrize("size", [1, 2, 3, 4, 6, 8, 12, 16, 48, 64, 80])
def test_matrix_is_its_own_inverse_and_keeps_means(size: int, rng: np.random.Generator) -> None:
    matrix = rotate(np.eye(size), 0, size, (0,))
    assert np.allclose(matrix @ matrix, np.eye(size), atol=1e-14)
    assert np.allclose(matrix.sum(axis=0), 1, atol=1e-14)
    if size in (4, 16, 64):
        assert (np.abs(matrix) == size**-0.5).all()
    values = rng.normal(size=(3, size + 2, 5))
    found = rotate(values, 1, size, (1,))
    assert np.allclose(found[:, 1:-1], np.einsum("aib,ij->ajb", values[:, 1:-1], matrix), atol=1e-12)
    assert np.array_equal(found[:, [0, -1]], values[:, [0, -1]])


@pytest.mark.parametrize(
    ("width", "heads", "groups", "kind"),
    [
        (32, 4, 1, "layer"),
        (32, 4, 2, "rms"),
        (32, 4, 2, "bare"),
        (36, 3, 1, "rms"),
        (36, 3, 1, "bare"),
        (40, 2, 2, "layer"),
    ],
)
def test_rotated_model_computes_the_same(width: int, heads: int, groups: int, kind: str) -> None:
    model = octavo.load(transformer(width, heads, groups=groups, kind=kind))
    simple, _ = simplify(model)
    sites = find_rotatable(simple).sites()
    sizes = sorted(next(iter(site.rotations.values())).size for site in sites)
    # Queries with keys, and values, of each block, and the stream.
    assert sizes == [width // heads] * 4 + [width]
    rotations = every_rotation(simple)
    check_rotations(simple, rotations)
    other = rotated(simple, rotations)
    [sample] = draws(width, 1)
    before, after = (octavo.compile(each)(sample)["y"] for each in (simple, other))
    assert np.abs(before - after).max() < SAME * np.abs(before).max()
    here, names = resolve_target(None), [*map(str, rotations)]
    values = {}
    for each in (simple, other):
        [(_, values[each is other])] = FloatProgram(each, names, here).on([[sample]], names)
    found = find_rotatable(simple)
    behind_norms = {*found.without_shifts(rotations), *(TensorId(var.name) for var in found.norms)}
    for name, old, new in zip(names, values[False], values[True], strict=True):
        if TensorId(name) not in behind_norms:  # these lose their factors, too
            turn = rotations[TensorId(name)]
            expected = rotate(old, turn.axis, turn.size, turn.starts)
            assert np.abs(new - expected).max() < SAME * np.abs(expected).max(), name


def test_each_site_alone_computes_the_same() -> None:
    simple, _ = simplify(octavo.load(transformer(seed=3)))
    [sample] = draws(32, 1)
    before = octavo.compile(simple)(sample)["y"]
    for site in find_rotatable(simple).sites():
        after = octavo.compile(rotated(simple, site.rotations))(sample)["y"]
        assert np.abs(before - after).max() < SAME * np.abs(before).max()


def stream(end: Callable[[Net, str], str]) -> list[int]:
    """Return the sizes of what can be rotated of a dense layer, something, and another dense layer."""
    net = Net(16, 2)
    simple, _ = simplify(octavo.load(net.model(net.dense(end(net, net.dense("x", 16, 16)), 16, 4))))
    return [next(iter(site.rotations.values())).size for site in find_rotatable(simple).sites()]


def test_only_what_is_linear_is_rotated() -> None:
    assert stream(lambda net, x: x) == [16]
    assert stream(lambda net, x: net.node("Add", x, x)) == [16]
    assert stream(lambda net, x: net.node("Mul", x, net.constant(np.float32(2)))) == [16]
    assert stream(lambda net, x: net.node("Add", x, net.normal(16))) == [16]
    assert stream(lambda net, x: net.node("Relu", x)) == []
    assert stream(lambda net, x: net.node("Add", x, net.node("Sigmoid", x))) == []
    assert stream(lambda net, x: net.node("Mul", x, x)) == []
    assert stream(lambda net, x: net.node("Max", x, net.normal(16))) == []
    assert stream(lambda net, x: net.node("Add", x, net.constant(np.float32(2)))) == []
    assert stream(lambda net, x: net.node("Mul", x, net.node("ReduceMean", x, axes=[-1], keepdims=1))) == []
    # A norm's factors can be moved into what reads it, and into nothing else; what it adds needs a bias there.
    assert stream(Net.layer_norm) == [16]
    assert stream(lambda net, x: net.node("Add", x, net.layer_norm(x))) == []

    def unbiased(net: Net, x: str) -> str:
        return net.dense(net.layer_norm(x), 16, 16, bias=False)

    assert stream(unbiased) == [16]  # what that layer gives, not what the norm does


def test_shared_weights_are_not_rotated() -> None:
    def shared(net: Net, x: str) -> str:
        weight = net.normal(16, 16)
        return net.node("Relu", net.node("MatMul", net.node("Relu", net.node("MatMul", x, weight)), weight))

    assert stream(shared) == []


def test_kept_tensors_are_not_rotated() -> None:
    simple, _ = simplify(octavo.load(transformer()))
    sites = find_rotatable(simple).sites()
    kept = str(sites[0].rounded[0])
    assert len(find_rotatable(simple, [kept]).sites()) < len(sites)
    assert all(kept not in map(str, site.rotations) for site in find_rotatable(simple, [kept]).sites())


@pytest.fixture(scope="module", params=["layer", "rms"])
def quantized(request: pytest.FixtureRequest) -> tuple[Any, Any, Any]:
    """Return a model, and quantized as it is and rotated."""
    model = octavo.load(transformer(kind=request.param))
    profile = octavo.profile(model, draws(32, 16), keep_samples=16)
    simple, _ = simplify(model)
    equalizer = Equalizer(profile, samples_of(model, profile), Programs(simple=simple).floats)
    sites, found = equalizer.rotated(simple, ())
    assert len(sites) == 5
    assert found.rotations == every_rotation(simple)
    plain = quantize_graph(model, profile, target=resolve_target("cpu"))
    return model, plain, quantize_graph(model, profile, target=resolve_target("cpu"), changes=Choices(equalization=found))


def test_rotating_gains_and_the_referee_knows(quantized: tuple[Any, Any, Any]) -> None:
    model, plain, turned = quantized
    fresh = draws(32, 32, seed=9)
    floats, first, second = (octavo.compile(each) for each in (model, plain, turned))
    before, after = (
        sqnr_db(np.stack([floats(x)["y"] for x in fresh]), np.stack([each(x)["y"] for x in fresh])) for each in (first, second)
    )
    assert after > before + 1
    profile = octavo.profile(model, fresh, keep_samples=32)
    score = score_of(model, turned, profile)
    assert score is not None
    assert abs(score.sqnr_db - after) < 0.3


def test_plan_is_saved_and_applied_to_the_letter(quantized: tuple[Any, Any, Any], tmp_path: Path) -> None:
    model, _, turned = quantized
    turned.plan.save(tmp_path / "plan.json")
    plan = octavo.QuantizationPlan.load(tmp_path / "plan.json")
    assert plan.equalization.rotations == turned.plan.equalization.rotations
    again = octavo.quantize(model, plan=plan)
    assert again.fingerprint == turned.fingerprint
    assert again.params.keys() == turned.params.keys()
    assert all(np.array_equal(value, again.params[name]) for name, value in turned.params.items())
    again.plan.save(tmp_path / "again.json")
    assert (tmp_path / "again.json").read_text() == (tmp_path / "plan.json").read_text()


def test_plan_without_rotations_is_read(quantized: tuple[Any, Any, Any], tmp_path: Path) -> None:
    model, plain, _ = quantized
    plain.plan.save(tmp_path / "plan.json")
    data = json.loads((tmp_path / "plan.json").read_text())
    assert data.pop("rotations") == {}
    (tmp_path / "old.json").write_text(json.dumps(data))
    plan = octavo.QuantizationPlan.load(tmp_path / "old.json")
    assert octavo.quantize(model, plan=plan).fingerprint == plain.fingerprint


def test_plan_that_rotates_half_is_refused(quantized: tuple[Any, Any, Any]) -> None:
    model, _, turned = quantized
    """Each is left out, smaller or elsewhere, by turns."""
    for number, (name, turn) in enumerate(turned.plan.equalization.rotations.items()):
        other = {key: each for key, each in turned.plan.equalization.rotations.items() if key != name}
        if number % 3:
            other[name] = replace(turn, size=turn.size // 2) if number % 3 == 1 else replace(turn, starts=(1,))
        plan = replace(turned.plan, equalization=Equalization(rotations=other))
        with pytest.raises(QuantizationError, match="rotations"):
            octavo.quantize(model, plan=plan)


def test_identity_says_what_became_of_rotated_tensors(quantized: tuple[Any, Any, Any]) -> None:
    model, _, turned = quantized
    lineage = octavo.Lineage(model)
    with tvm.transform.PassContext(opt_level=3, instruments=[lineage]):
        octavo.quantize(model, plan=turned.plan)
    named = [name for name in turned.plan.equalization.rotations if name in turned.tensors]
    assert named
    for name in named:
        assert "its channels are rotated" in lineage[name].reason


@pytest.mark.parametrize("by_row", [False, True])
def test_exported_model_computes_the_same(by_row: bool, quantized: tuple[Any, Any, Any], tmp_path: Path) -> None:
    model, _, turned = quantized
    if by_row:
        rows = {layer.output: "it is tried" for layer in turned.plan.layers if layer.weight}
        changes = Choices(equalization=turned.plan.equalization, per_row=rows)
        turned = quantize_graph(model, octavo.profile(model, draws(32, 16)), target=resolve_target("cpu"), changes=changes)
        assert all(layer.per_row for layer in turned.plan.layers if layer.weight)
    octavo.export_onnx(turned, tmp_path / "q.onnx")
    file = onnx.load(tmp_path / "q.onnx")
    assert any(name.endswith("_rotated") for node in file.graph.node for name in node.output)
    session = reference_session(tmp_path / "q.onnx")
    here = octavo.compile(turned)
    floats = octavo.compile(model)
    for x in draws(32, 4, seed=5):
        [there] = session.run(None, {"x": x})
        assert sqnr_db(floats(x)["y"], there) > sqnr_db(floats(x)["y"], here(x)["y"]) - 3


def test_step_is_tried_where_channels_may_be_rotated() -> None:
    """That the default tries it tests/quantizer/causes/test_rotated.py sees."""
    assert Rotate.of(octavo.Recipe()) == [Rotate()]
    assert Rotate.of(octavo.Recipe(equalization="factors")) == []
    assert Rotate.of(octavo.Recipe().with_preset("fast")) == []


@pytest.mark.parametrize(("samples", "stride", "part"), [("samples", 5, 1), ("3*samples", 1, 3)])
def test_sizes_that_a_stride_makes_smaller_are_rotated_as_fixed_ones(
    samples: str, stride: int, part: int, rng: np.random.Generator
) -> None:
    """A convolution reads 20 samples: of 2, it would leave less than nothing; a reshape splits what is a multiple of 3."""
    weights = {"w": (8, 1, 20), "e": (8, 8), "a": (8, 16), "b": (16, 8), "c": (8, 4), "scale": (8,)}
    proto = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["": 17]> g (float[batch, samples] x) => (float[batch, frames, 4] y)
        <int64[4] split = {{0, -1, {part}, 8}}, int64[3] flat = {{0, -1, 8}}, int64[1] one = {{1}}> {{
        r = Unsqueeze(x, one)
        k = Conv<strides = [{stride}], pads = [0, 19]>(r, w)
        t = Transpose<perm = [0, 2, 1]>(k)
        p = MatMul(t, e)
        s = Reshape(p, split)
        f = Reshape(s, flat)
        o = LayerNormalization(f, scale)
        m = MatMul(o, a)
        h = Relu(m)
        n = MatMul(h, b)
        d = Add(f, n)
        l = LayerNormalization(d, scale)
        y = MatMul(l, c)
    }}"""
    )
    if samples == "samples":  # without the padding: 20 samples are the fewest
        proto.graph.node[1].attribute.pop()
    proto.graph.initializer.extend(
        onnx.numpy_helper.from_array(rng.normal(size=shape).astype(np.float32), name) for name, shape in weights.items()
    )
    shapes: list[Any] = [{"x": ("batch", samples)}, {"x": (2, 600)}]
    found = [every_rotation(simplify(octavo.load(proto, shapes=each))[0]) for each in shapes]
    assert found[0] == found[1]
    assert found[0]
