"""ONNX graphs made canonical: functions, branches, float16, Einsum, ops defined by others; and what is refused."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto
from onnx.helper import make_graph, make_node, make_tensor_value_info

import octavo
from octavo.errors import ModelError
from octavo.frontends import load
from reference_sessions import reference_session


def by_onnxruntime(proto, *arrays):
    session = reference_session(proto)
    return session.run(None, dict(zip((value.name for value in session.get_inputs()), arrays, strict=True)))


def branch(name, nodes, result, constants=()):
    tensors = [onnx.numpy_helper.from_array(value, key) for key, value in constants]
    return make_graph(nodes, name, [], [make_tensor_value_info(result, TensorProto.FLOAT, None)], tensors)


def either(condition, output, then, other):
    return make_node("If", [condition], [output], then_branch=then, else_branch=other)


def test_branches_of_known_conditions_are_taken(make_onnx, run):
    """A shape decides the outer If, a constant the inner; names of branches meet those outside."""
    k = np.float32([2, 3, 4])
    inner = either(
        "no",
        "r",
        branch("a", [make_node("Abs", ["t"], ["inner"])], "inner"),
        branch("b", [make_node("Mul", ["t", "k"], ["inner"])], "inner", [("k", -k)]),
    )
    then = branch("then", [make_node("Add", ["x", "k"], ["t"]), inner], "r")
    kept = either(
        "no", "same", branch("c", [make_node("Neg", ["y"], ["n"])], "n"), branch("d", [make_node("Identity", ["y"], ["d"])], "d")
    )
    nodes = [
        make_node("Shape", ["x"], ["shape"]),
        make_node("Gather", ["shape", "one"], ["width"]),
        make_node("Equal", ["width", "three"], ["is_three"]),
        either("is_three", "y", then, branch("else", [make_node("Neg", ["x"], ["t"])], "t")),
        kept,
        make_node("Sub", ["same", "k"], ["t"]),
    ]
    constants = {"k": k, "one": np.int64(1), "three": np.int64(3), "no": np.array(False)}
    proto = make_onnx(nodes, {"x": (2, 3)}, {"y": None, "t": None}, constants)
    x = np.float32([[-1, 0, 2], [5, -7, 1]])
    model = load(proto)
    for ours, theirs in zip(run(model.bound(), x), by_onnxruntime(proto, x), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert model.tensors["y"].is_output


@pytest.fixture
def half_net():
    rng = np.random.default_rng(3)
    nodes = [
        make_node("Constant", [], ["half"], value=onnx.numpy_helper.from_array(np.float16(0.5))),
        make_node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]),
        make_node("Relu", ["c"], ["r"]),
        make_node("Cast", ["r"], ["wide"], to=TensorProto.FLOAT),
        make_node("Cast", ["wide"], ["narrow"], to=TensorProto.FLOAT16),
        make_node("Mul", ["narrow", "half"], ["m"]),
        make_node("Conv", ["m", "v"], ["y"]),
        make_node("Sigmoid", ["y"], ["p"]),
    ]
    weights = {"w": rng.normal(0, 0.3, (8, 3, 3, 3)), "v": rng.normal(0, 0.3, (4, 8, 1, 1))}
    tensors = [onnx.numpy_helper.from_array(value.astype(np.float16), name) for name, value in weights.items()]
    values = [
        [make_tensor_value_info(name, TensorProto.FLOAT16, shape) for name, shape in group]
        for group in ([("x", (1, 3, 8, 8))], [("y", (1, 4, 8, 8)), ("p", (1, 4, 8, 8))])
    ]
    graph = make_graph(nodes, "half", *values, tensors)
    plain = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    return onnx.shape_inference.infer_shapes(plain)  # the file states the types of all its tensors


def test_float16_models_are_computed_in_float32_and_quantize(half_net, tmp_path):
    rng = np.random.default_rng(4)
    samples = [rng.normal(size=(1, 3, 8, 8)).astype(np.float16) for _ in range(4)]
    wanted = by_onnxruntime(half_net, samples[0])
    model = load(half_net)
    for name, theirs in zip(("y", "p"), wanted, strict=True):
        ours = octavo.compile(model)(samples[0])[name]
        assert ours.dtype == np.float16
        np.testing.assert_allclose(ours.astype(np.float32), theirs.astype(np.float32), rtol=2**-8, atol=2**-8)
    quantized = octavo.quantize(model, octavo.profile(model, samples))
    executable = octavo.compile(quantized)
    assert all(op.integer for op in octavo.explain(executable).ops if op.macs)
    octavo.export_onnx(quantized, tmp_path / "int8.onnx")
    exported = by_onnxruntime(onnx.load(tmp_path / "int8.onnx"), samples[0])
    for ours, theirs in zip(executable(samples[0]).values(), exported, strict=True):
        np.testing.assert_allclose(ours.astype(np.float32), theirs.astype(np.float32), atol=2**-10)


def test_bfloat16_inputs_and_weights_become_float32(run):
    w = onnx.helper.make_tensor("w", TensorProto.BFLOAT16, (2,), np.float32([1.5, -2]))
    values = [[make_tensor_value_info(name, TensorProto.BFLOAT16, (2,))] for name in "xy"]
    graph = make_graph([make_node("Mul", ["x", "w"], ["y"])], "half", *values, [w])
    model = load(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8))
    (y,) = run(model.bound(), np.float32([3, 4]))
    np.testing.assert_array_equal(y, np.float32([4.5, -8]))
    assert y.dtype == np.float32


def test_text(make_onnx):
    proto = make_onnx([make_node("Identity", ["x"], ["y"])], {"x": (2,)}, {"y": None}, dtype=TensorProto.STRING)
    proto.graph.output[0].type.tensor_type.elem_type = TensorProto.STRING
    with pytest.raises(ModelError, match="input 'x' is text"):
        load(proto)


@pytest.mark.parametrize(
    ("equation", "left", "right"),
    [
        ("abc,cde->abde", (1, 5, 6), (6, 2, 3)),
        ("aecd,abcd->acbe", (1, 5, 2, 3), (1, 4, 2, 3)),
        ("acbe , aecd -> abcd", (1, 2, 4, 5), (1, 5, 2, 3)),
        ("abcd,cde->abe", (1, 5, 2, 3), (2, 3, 6)),
        ("ij,jk", (3, 4), (4, 2)),
        ("ji,jk->ki", (3, 4), (3, 2)),
        ("i,i->", (7,), (7,)),
        ("i,j->ji", (3,), (4,)),
        ("b...i,b...i->b...", (2, 3, 4), (2, 3, 4)),
    ],
)
def test_einsum(equation, left, right, make_onnx, run):
    """As NumPy computes it; all but the one with an ellipsis are products of matrices."""
    rng = np.random.default_rng(5)
    x, w = (rng.normal(size=shape).astype(np.float32) for shape in (left, right))
    node = make_node("Einsum", ["x", "w"], ["y"], equation=equation)
    model = load(make_onnx([node], {"x": left}, {"y": None}, {"w": w}))
    (y,) = run(model.bound(), x)
    np.testing.assert_allclose(y, np.einsum(equation.replace(" ", ""), x, w), rtol=1e-5, atol=1e-5)
    assert ("matmul" in model.module["main"].script()) == ("." not in equation)


def test_an_einsum_of_an_open_batch_is_computed_and_quantized(make_onnx, tmp_path):
    rng = np.random.default_rng(6)
    nodes = [
        make_node("Einsum", ["x", "w"], ["q"], equation="abc,cde->abde", name="named"),  # once, where several are written
        make_node("Relu", ["q"], ["r"], name="named_2"),
        make_node("Einsum", ["r", "v"], ["y"], equation="abde,dec->abc"),
    ]
    constants = {"w": rng.normal(size=(8, 2, 4)).astype(np.float32), "v": rng.normal(size=(2, 4, 8)).astype(np.float32)}
    proto = make_onnx(nodes, {"x": ("N", 5, 8)}, {"y": None}, constants)
    model = load(proto)
    assert model.any_batch
    x = rng.normal(size=(3, 5, 8)).astype(np.float32)
    quantized = octavo.quantize(model, octavo.profile(model, [x]))
    executable = octavo.compile(quantized)
    assert octavo.explain(executable).summary.startswith("2/2 ops integer")
    octavo.export_onnx(quantized, tmp_path / "int8.onnx")
    np.testing.assert_array_equal(executable(x)["y"], by_onnxruntime(onnx.load(tmp_path / "int8.onnx"), x)[0])


@pytest.mark.parametrize(
    ("node", "inputs", "constants"),
    [
        (
            make_node("RotaryEmbedding", ["x", "c", "s"], ["y"], num_heads=2),
            {"x": (1, 3, 16)},
            {"c": np.cos(np.arange(12.0)).reshape(1, 3, 4), "s": np.sin(np.arange(12.0)).reshape(1, 3, 4)},
        ),
        (
            make_node("Attention", ["q", "k", "v", "", "past_k", "past_v"], ["y", "all_k", "all_v"], is_causal=1, softcap=5.0),
            {"q": (1, 4, 3, 8), "k": (1, 2, 3, 8), "v": (1, 2, 3, 8), "past_k": (1, 2, 2, 8), "past_v": (1, 2, 2, 8)},
            {},
        ),
    ],
)
def test_ops_that_onnx_defines_by_others(node, inputs, constants, make_onnx, run):
    rng = np.random.default_rng(7)
    tensors = {name: value.astype(np.float32) for name, value in constants.items()}
    proto = make_onnx([node], inputs, dict.fromkeys(node.output), tensors, opset=23)
    arrays = [rng.normal(size=shape).astype(np.float32) for shape in inputs.values()]
    for ours, theirs in zip(run(load(proto).bound(), *arrays), by_onnxruntime(proto, *arrays), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
