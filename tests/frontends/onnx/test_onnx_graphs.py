"""What an ONNX graph becomes beyond its single ops: inputs, aliases, constants, folding, names."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto
from onnx.helper import make_node
from tvm import relax

import octavo
from octavo.errors import ModelError
from octavo.frontends import load
from reference_sessions import reference_session


def ids(model):
    return [str(tensor_id) for tensor_id in model.tensors]


def in_module(model):
    return [str(entry.id) for entry in model.tensors.values() if entry.in_module]


def test_symbolic_batch_becomes_one(make_onnx):
    proto = make_onnx([make_node("Relu", ["x"], ["y"])], {"x": ("N", 3)}, {"y": ("N", 3)})
    model = load(proto)
    assert model.tensors["x"].shape == (1, 3)
    assert model.tensors["y"].shape == (1, 3)
    assert proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "N", "the caller's proto is left alone"
    assert model.source.proto is proto


def test_shapes_override_what_the_model_states(make_onnx):
    proto = make_onnx([make_node("Relu", ["x"], ["y"])], {"x": ("N", "C", 4)}, {"y": ("N", "C", 4)})
    assert load(proto, shapes={"x": (2, 3, 4)}).tensors["y"].shape == (2, 3, 4)
    fixed = make_onnx([make_node("Relu", ["x"], ["y"])], {"x": (1, 4)}, {"y": (1, 4)})
    assert load(fixed, shapes={"x": (8, 4)}).tensors["y"].shape == (8, 4)


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ({"z": (1, 4)}, "there is no input 'z' to give a shape; the inputs are x"),
        ({"x": (1, 4, 4)}, "has 3 dimensions, the model states 2"),
        ({"x": (-1, 4)}, "must hold no negative sizes"),
    ],
)
def test_shapes_that_do_not_fit(make_onnx, shapes, message):
    proto = make_onnx([make_node("Relu", ["x"], ["y"])], {"x": ("N", 4)}, {"y": ("N", 4)})
    with pytest.raises(ModelError, match=message):
        load(proto, shapes=shapes)


def test_identity_and_dropout_are_aliases(make_onnx):
    nodes = [
        make_node("Relu", ["x"], ["r"], name="act"),
        make_node("Identity", ["r"], ["i"]),
        make_node("Dropout", ["i"], ["d"]),
        make_node("Sigmoid", ["d"], ["s"], name="sig"),
        make_node("Identity", ["s"], ["out"]),
    ]
    model = load(make_onnx(nodes, {"x": (1, 3)}, {"out": (1, 3)}))
    assert in_module(model) == ["x", "r", "out"]
    assert model.tensors["r"].aliases == ("i", "d")
    out = model.tensors["out"]
    assert (out.source_name, out.aliases, out.op, out.layer, out.is_output) == ("out", ("s",), "Sigmoid", "sig", True)
    assert [model.tensors.find(name) for name in ("i", "d", "s", "out")] == ["r", "r", "out", "out"]


def test_input_returned_as_output(make_onnx, run):
    nodes = [make_node("Identity", ["x"], ["same"]), make_node("Relu", ["x"], ["y"])]
    model = load(make_onnx(nodes, {"x": (1, 3)}, {"same": (1, 3), "y": (1, 3)}))
    assert model.output_ids == ("x", "y")
    x = np.float32([[-1, 0, 1]])
    same, y = run(model.bound(), x)
    np.testing.assert_array_equal(same, x)
    np.testing.assert_array_equal(y, np.maximum(x, 0))


def test_shape_arithmetic_folds_and_stays_listed(make_onnx, run):
    """What PyTorch writes for x.view(x.size(0), -1, x.size(3) // 2 * 2)."""
    nodes = [
        make_node("Shape", ["x"], ["shape"]),
        make_node("Gather", ["shape", "zero"], ["batch"]),
        make_node("Gather", ["shape", "three"], ["width"]),
        make_node("Div", ["width", "two"], ["half"]),
        make_node("Mul", ["half", "two"], ["even"]),
        make_node("Unsqueeze", ["batch", "axes"], ["batch1"]),
        make_node("Unsqueeze", ["even", "axes"], ["even1"]),
        make_node("Concat", ["batch1", "minus", "even1"], ["target"], axis=0),
        make_node("Reshape", ["x", "target"], ["y"]),
    ]
    scalars = {"zero": 0, "three": 3, "two": 2}
    constants = {name: np.asarray(value, np.int64) for name, value in scalars.items()}
    constants |= {"axes": np.asarray([0]), "minus": np.asarray([-1])}
    model = load(make_onnx(nodes, {"x": ("N", 4, 3, 6)}, {"y": None}, constants))
    assert in_module(model) == ["x", "y"]
    assert len(model.tensors) == 15
    assert not model.params
    assert model.tensors["y"].shape == (1, 12, 6)
    assert (model.tensors["target"].op, model.tensors["target"].shape) == ("Concat", (3,))


def test_folded_tensor_that_is_read_becomes_a_parameter(make_onnx):
    nodes = [make_node("Transpose", ["w"], ["wt"], perm=[1, 0]), make_node("MatMul", ["x", "wt"], ["y"])]
    w = np.arange(6, dtype=np.float32).reshape(2, 3)
    model = load(make_onnx(nodes, {"x": (1, 3)}, {"y": (1, 2)}, {"w": w}))
    assert list(model.params) == ["wt"]
    np.testing.assert_array_equal(model.params["wt"], w.T)
    assert (model.tensors["wt"].kind, model.tensors["wt"].op) == ("constant", "Transpose")
    assert not model.tensors["w"].in_module


def test_constant_nodes_are_constants(make_onnx):
    value = onnx.numpy_helper.from_array(np.float32([1, 2, 3]), "any")
    nodes = [
        make_node("Constant", [], ["c"], value=value, name="const"),
        make_node("Constant", [], ["low"], value_float=0.0),
        make_node("Constant", [], ["unread"], value_ints=[1, 2]),
        make_node("Add", ["x", "c"], ["a"]),
        make_node("Clip", ["a", "low"], ["y"]),
    ]
    model = load(make_onnx(nodes, {"x": (1, 3)}, {"y": (1, 3)}))
    assert list(model.params) == ["c"]
    entry = model.tensors["c"]
    assert (entry.kind, entry.op, entry.layer, entry.shape, entry.dtype) == ("constant", "Constant", "const", (3,), "float32")
    assert [model.tensors[name].in_module for name in ("low", "unread")] == [False, False]
    assert model.tensors["unread"].dtype == "int64"


def test_dead_branch_is_listed_but_not_built(make_onnx):
    nodes = [make_node("Relu", ["x"], ["y"]), make_node("Mul", ["x", "w"], ["dead"])]
    model = load(make_onnx(nodes, {"x": (1, 3)}, {"y": (1, 3)}, {"w": np.ones(3, np.float32)}))
    assert in_module(model) == ["x", "y"]
    assert ids(model) == ["x", "y", "w", "dead"]


def test_initializers_listed_as_inputs_are_constants(make_onnx):
    proto = make_onnx(
        [make_node("Add", ["x", "w"], ["y"])], {"x": (1, 3), "w": (3,)}, {"y": (1, 3)}, {"w": np.ones(3, np.float32)}
    )
    model = load(proto)
    assert model.input_ids == ("x",)
    assert list(model.params) == ["w"]


def test_functions_are_inlined(make_onnx, run):
    body = [make_node("Relu", ["a"], ["t"]), make_node("Sigmoid", ["t"], ["b"])]
    function = onnx.helper.make_function("local", "Act", ["a"], ["b"], body, [onnx.helper.make_opsetid("", 17)])
    proto = make_onnx([make_node("Act", ["x"], ["y"], domain="local")], {"x": (1, 3)}, {"y": (1, 3)}, domains=("local",))
    proto.functions.append(function)
    model = load(proto)
    (y,) = run(model.bound(), np.float32([[-1, 0, 2]]))
    np.testing.assert_allclose(y, 1 / (1 + np.exp(-np.float32([[0, 0, 2]]))), rtol=1e-6)
    assert model.tensors["y"].op == "Sigmoid"


def test_functions_take_attributes(make_onnx, run):
    proto = make_onnx([make_node("Leaky", ["x"], ["y"], domain="own", slope=0.5)], {"x": (2,)}, {"y": (2,)}, domains=("own",))
    node = make_node("LeakyRelu", ["a"], ["b"])
    node.attribute.append(onnx.AttributeProto(name="alpha", ref_attr_name="slope", type=onnx.AttributeProto.FLOAT))
    opsets = [onnx.helper.make_opsetid("", 17)]
    proto.functions.append(onnx.helper.make_function("own", "Leaky", ["a"], ["b"], [node], opsets, attributes=["slope"]))
    (y,) = run(load(proto).bound(), np.float32([-2, 3]))
    np.testing.assert_array_equal(y, np.float32([-1, 3]))


def sparse(name, places, dims):
    places = np.asarray(places, np.int64)
    values = onnx.helper.make_tensor(name, TensorProto.FLOAT, [len(places)], [1.5] * len(places))
    return onnx.helper.make_sparse_tensor(values, onnx.numpy_helper.from_array(places), dims)


@pytest.mark.parametrize("places", [[1, 7], [[0, 1], [2, 1]]])
@pytest.mark.parametrize("is_constant", [False, True])
def test_sparse_tensors_are_dense_ones(places, is_constant, make_onnx, run):
    product, w = make_node("MatMul", ["x", "w"], ["y"]), sparse("w", places, [4, 3])
    made = [make_node("Constant", [], ["w"], sparse_value=w)] if is_constant else []
    proto = make_onnx([*made, product], {"x": (2, 4)}, {"y": (2, 3)})
    proto.graph.sparse_initializer.extend([] if is_constant else [w])
    x = np.random.default_rng(3).standard_normal((2, 4)).astype(np.float32)
    (y,) = run(load(proto).bound(), x)
    np.testing.assert_allclose(y, reference_session(proto).run(None, {"x": x})[0], rtol=1e-6)


def test_a_sparse_tensor_of_any_size_claimed(make_onnx):
    size = 1 << 20
    proto = make_onnx([make_node("MatMul", ["x", "w"], ["y"])], {"x": (2, size)}, {"y": None})
    proto.graph.sparse_initializer.append(sparse("w", [0], [size, size]))
    with pytest.raises(ModelError, match=r"sparse tensor 'w' of shape .* is too large"):
        load(proto)


def test_batch_norm_is_kept_and_named(make_onnx):
    names = ["gamma", "beta", "mean", "var"]
    node = make_node("BatchNormalization", ["x", *names], ["y"])
    model = load(make_onnx([node], {"x": (1, 2, 3, 3)}, {"y": None}, {name: np.ones(2, np.float32) for name in names}))
    bindings = model.module["main"].body.blocks[0].bindings
    assert bindings[0].value.op.name == "relax.nn.batch_norm"
    assert isinstance(bindings[1].value, relax.TupleGetItem)
    assert [b.var.name for b in bindings] == ["y_batch_norm", "y"]
    assert list(model.params) == names


def test_split_names_each_output(make_onnx, run):
    nodes = [make_node("Split", ["x", "sizes"], ["a", "b"], axis=1), make_node("Concat", ["b", "a"], ["y"], axis=1)]
    model = load(make_onnx(nodes, {"x": (1, 5)}, {"y": (1, 5)}, {"sizes": np.asarray([2, 3])}))
    assert in_module(model) == ["x", "a", "b", "y"]
    (y,) = run(model.bound(), np.float32([[0, 1, 2, 3, 4]]))
    np.testing.assert_array_equal(y, [[2, 3, 4, 0, 1]])


def test_steps_are_named_after_the_tensor_they_lead_to(make_onnx):
    constants = {"w": np.ones((2, 1, 1, 1), np.float32), "b": np.ones(2, np.float32), "y_conv2d": np.ones(1, np.float32)}
    nodes = [make_node("Conv", ["x", "w", "b"], ["y"]), make_node("Add", ["y", "y_conv2d"], ["z"])]
    model = load(make_onnx(nodes, {"x": (1, 1, 3, 3)}, {"z": None}, constants))
    names = [binding.var.name for binding in model.module["main"].body.blocks[0].bindings]
    assert names == ["y_conv2d_2", "y_reshape", "y", "z"], "a step never takes the name of a source tensor"


def quantized(tmp_path, *, per_channel):
    """A QDQ file as ONNX Runtime's quantizer writes it, of a network with conv, depthwise, clip, add, pooling and dense."""
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

    rng = np.random.default_rng(0)
    shapes = {"w1": (8, 3, 3, 3), "b1": (8,), "w2": (8, 1, 3, 3), "b2": (8,), "w3": (5, 8), "b3": (5,)}
    constants = {name: (rng.standard_normal(shape) * 0.2).astype(np.float32) for name, shape in shapes.items()}
    constants |= {"low": np.float32(0), "high": np.float32(6)}
    nodes = [
        make_node("Conv", ["x", "w1", "b1"], ["c1"], pads=[1] * 4),
        make_node("Relu", ["c1"], ["r1"]),
        make_node("Conv", ["r1", "w2", "b2"], ["c2"], pads=[1] * 4, group=8),
        make_node("Clip", ["c2", "low", "high"], ["k2"]),
        make_node("Add", ["k2", "r1"], ["a"]),
        make_node("GlobalAveragePool", ["a"], ["g"]),
        make_node("Flatten", ["g"], ["f"]),
        make_node("Gemm", ["f", "w3", "b3"], ["y"], transB=1),
    ]
    values = [onnx.numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()]
    info = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        nodes, "g", [info("x", TensorProto.FLOAT, (1, 3, 12, 12))], [info("y", TensorProto.FLOAT, (1, 5))], values
    )
    proto = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(proto, tmp_path / "float.onnx")

    class Reader(CalibrationDataReader):
        def __init__(self):
            self.batches = iter([{"x": rng.standard_normal((1, 3, 12, 12)).astype(np.float32)} for _ in range(4)])

        def get_next(self):
            return next(self.batches, None)

    quantize_static(
        tmp_path / "float.onnx",
        tmp_path / "int8.onnx",
        Reader(),
        quant_format=QuantFormat.QDQ,
        per_channel=per_channel,
        weight_type=QuantType.QInt8,
        activation_type=QuantType.QUInt8,
    )
    return tmp_path / "int8.onnx"


@pytest.mark.parametrize("per_channel", [False, True])
def test_qdq_file_of_onnx_runtime(tmp_path, run, per_channel):
    path = quantized(tmp_path, per_channel=per_channel)
    model = load(path)
    dtypes = {str(name): str(value.dtype) for name, value in model.params.items()}
    assert dtypes == {f"{kind}{n}_quantized": t for n in (1, 2, 3) for kind, t in (("w", "int8"), ("b", "int32"))}
    for binding in model.module["main"].body.blocks[0].bindings:
        value = binding.value
        if value.op.name in ("relax.quantize", "relax.dequantize"):
            scale, zero_point = (arg.value.numpy() for arg in value.args[1:])
            assert (scale.dtype, zero_point.dtype) == (np.float32, np.int32)
            assert scale.shape == zero_point.shape
            of_weight = isinstance(value.args[0], relax.Var) and str(value.args[0].name) in model.params
            # ONNX Runtime keeps the dense weight per-axis too; a bias follows its weight.
            assert scale.ndim == (1 if of_weight and per_channel else 0)
    x = np.random.default_rng(9).standard_normal((1, 3, 12, 12)).astype(np.float32)
    (expected,) = reference_session(path, optimized=False).run(None, {"x": x})
    (actual,) = run(model.bound(), x)
    step = float(model.module["main"].body.blocks[0].bindings[-1].value.args[1].value.numpy())
    assert np.abs(actual - expected).max() <= 1.001 * step


def test_qdq_without_zero_point_and_with_negative_axis(make_onnx):
    constants = {"q": np.int8([[1, 2], [3, 4]]), "s": np.float32([0.5, 0.25]), "one": np.float32([0.1])}
    nodes = [
        make_node("DequantizeLinear", ["q", "s"], ["w"], axis=-1),
        make_node("MatMul", ["x", "w"], ["m"]),
        make_node("QuantizeLinear", ["m", "one"], ["mq"]),
        make_node("DequantizeLinear", ["mq", "one"], ["y"]),
    ]
    model = load(make_onnx(nodes, {"x": (1, 2)}, {"y": None}, constants))
    weight, _, quantize, _ = (binding.value for binding in model.module["main"].body.blocks[0].bindings)
    assert int(weight.attrs.axis) == 1
    np.testing.assert_array_equal(weight.args[2].value.numpy(), [0, 0])
    assert (str(quantize.attrs.out_dtype), quantize.args[1].value.numpy().shape) == ("uint8", ())
    assert model.tensors["mq"].dtype == "uint8"
    assert not model.tensors["s"].in_module


def test_an_empty_first_dimension_is_no_open_batch(make_onnx):
    proto = make_onnx([make_node("Relu", ["x"], ["y"])], {"x": (0, 3)}, {"y": (0, 3)})
    with pytest.raises(ModelError, match=r"input 'x' of shape \(0, 3\) has no elements; where a dimension of 0 .* shapes="):
        load(proto)
    assert load(proto, shapes={"x": (2, 3)}).tensors["y"].shape == (2, 3)


def test_a_negative_first_dimension_is_an_open_batch(make_onnx):
    proto = make_onnx([make_node("Relu", ["x"], ["y"])], {"x": (-1, 3)}, {"y": None})
    model = load(proto)
    assert model.tensors["x"].shape == (1, 3)
    assert model.any_batch


@pytest.mark.parametrize(
    ("shape", "said"),
    [
        ((1, -5, 3), "has -5 along axis 1, which is no size"),
        ((2**31,) * 3, r"of shape \(2147483648, .*more elements than any memory"),
    ],
)
def test_sizes_that_no_tensor_has(make_onnx, shape, said):
    proto = make_onnx([make_node("Relu", ["x"], ["y"])], {"x": shape}, {"y": None})
    with pytest.raises(ModelError, match=said):
        load(proto)


def test_control_characters_of_names_are_escaped(make_onnx):
    proto = make_onnx([make_node("Relu", ["x\x1b[31m\n"], ["y"])], {"x\x1b[31m\n": (2, 3)}, {"y": None})
    with pytest.raises(ModelError) as caught:
        load(proto, shapes={"z": (1,)})
    assert str(caught.value).isprintable()
    assert "x\\x1b[31m\\n" in str(caught.value)
    explained = octavo.explain(load(proto))
    assert "x\\x1b[31m" in str(explained)
    for said in (str(explained), *map(str, explained.inputs), *map(str, octavo.compile(load(proto)).inputs)):
        assert said.replace("\n", "").isprintable()


def test_an_input_without_an_element_type(make_onnx):
    proto = make_onnx([make_node("Relu", ["x"], ["y"])], {"x": (1, 3)}, {"y": None}, dtype=onnx.TensorProto.UNDEFINED)
    with pytest.raises(ModelError, match="input 'x' states no element type"):
        load(proto)
