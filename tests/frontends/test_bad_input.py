"""Bad input: one clear error, one line, nothing on stdout or stderr, nothing executed, no crash."""

import random
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx.helper import make_node

from octavo.errors import ModelError, OctavoError, UnsupportedOpError
from octavo.frontends import load
from tflite_writer import Op, Tensor, write


@pytest.fixture
def small(make_onnx):
    constants = {"w": np.ones((2, 1, 3, 3), np.float32), "b": np.ones(2, np.float32)}
    nodes = [make_node("Conv", ["x", "w", "b"], ["c"], name="conv"), make_node("Relu", ["c"], ["y"])]
    return make_onnx(nodes, {"x": (1, 1, 5, 5)}, {"y": None}, constants)


def expect(source, capfd, *parts, error=ModelError):
    with pytest.raises(error) as caught:
        load(source)
    message = str(caught.value)
    assert "\n" not in message
    for part in parts:
        assert part in message
    captured = capfd.readouterr()
    assert (captured.out, captured.err) == ("", "")


def test_no_such_file(tmp_path, capfd):
    expect(tmp_path / "no.onnx", capfd, "no.onnx: no such file")


def test_folder(tmp_path, capfd):
    expect(str(tmp_path), capfd, "is a folder")


def test_empty_file(tmp_path, capfd):
    (tmp_path / "m.tflite").write_bytes(b"")
    expect(tmp_path / "m.tflite", capfd, "m.tflite: the file is empty")


@pytest.mark.parametrize("name", ["m.onnx", "m.tflite"])
@pytest.mark.parametrize("data", [b"this is a text file, not a model\n" * 20, bytes(1000), b"\x00", b"{}", b"TFL3"])
def test_no_model_at_all(tmp_path, capfd, name, data):
    (tmp_path / name).write_bytes(data)
    expect(tmp_path / name, capfd, name)


def test_random_bytes(tmp_path, capfd):
    for seed in range(20):
        data = random.Random(seed).randbytes(seed * 100 + 8)
        (tmp_path / "m.onnx").write_bytes(data)
        expect(tmp_path / "m.onnx", capfd, "m.onnx")
        (tmp_path / "m.tflite").write_bytes(data[:4] + b"TFL3" + data[8:])
        expect(tmp_path / "m.tflite", capfd, "m.tflite")


def test_wrong_object(capfd):
    expect(42, capfd, "cannot load a int")
    expect(b"bytes\0", capfd)


def test_content_decides_not_the_name(small, shared, tmp_path):
    onnx.save(small, tmp_path / "a.tflite")
    assert load(tmp_path / "a.tflite").source_format == "onnx"
    (tmp_path / "b.onnx").write_bytes((shared / "models/tflite/dscnn_kws_int8.tflite").read_bytes())
    assert load(tmp_path / "b.onnx").source_format == "tflite"


def test_truncated_tflite(shared, tmp_path, capfd):
    data = (shared / "models/tflite/mobilenet_v2_1.0_224_uint8.tflite").read_bytes()
    # The last 64 kB are a zip of labels behind the model.
    for size in (8, 100, len(data) // 2, len(data) - 70_000):
        (tmp_path / "m.tflite").write_bytes(data[:size])
        expect(tmp_path / "m.tflite", capfd, "m.tflite: ", "truncated or corrupt")


def test_truncated_onnx(shared, tmp_path, capfd):
    data = (shared / "models/onnx/squeezenet1.1_224_fp32.onnx").read_bytes()
    for size in (100, len(data) // 2, len(data) - 1):
        (tmp_path / "m.onnx").write_bytes(data[:size])
        expect(tmp_path / "m.onnx", capfd, "not a complete ONNX model", "truncated")


def test_external_data_missing(small, tmp_path, capfd):
    onnx.save(small, tmp_path / "m.onnx", save_as_external_data=True, location="weights.bin", size_threshold=0)
    assert load(tmp_path / "m.onnx").params["w"].shape == (2, 1, 3, 3)
    (tmp_path / "weights.bin").unlink()
    expect(tmp_path / "m.onnx", capfd, "cannot read the external data of 'w'")
    expect(onnx.load(tmp_path / "m.onnx", load_external_data=False), capfd, "lie in another file")


def test_external_data_outside_the_folder(small, tmp_path, capfd):
    (tmp_path / "secret.bin").write_bytes(bytes(72))
    (tmp_path / "inner").mkdir()
    tensor = small.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="../secret.bin")
    (tmp_path / "inner/m.onnx").write_bytes(small.SerializeToString())
    expect(tmp_path / "inner/m.onnx", capfd, "cannot read the external data of 'w'")


def test_unsupported_op(make_onnx, capfd):
    nodes = [make_node("Relu", ["x"], ["r"]), make_node("Bernoulli", ["r"], ["y"], name="dice")]
    proto = make_onnx(nodes, {"x": (1, 3)}, {"y": None})
    expect(proto, capfd, "op Bernoulli (node 'dice', output tensor 'y')", error=UnsupportedOpError)


def test_an_unknown_quantized_operator_of_onnx_is_named(make_onnx, capfd):
    node = make_node("QLinearSqueezeEverything", ["x"], ["y"], domain="com.microsoft")
    model = make_onnx([node], {"x": (1, 3)}, {"y": (1, 3)}, domains=("com.microsoft",))
    expect(model, capfd, "op com.microsoft.QLinearSqueezeEverything", "output tensor 'y'", error=UnsupportedOpError)


def test_control_flow(make_onnx, capfd):
    """A loop of as many steps as data says."""
    kinds = {"i": onnx.TensorProto.INT64, "go": onnx.TensorProto.BOOL, "a": onnx.TensorProto.FLOAT}
    kinds |= {"go_on": onnx.TensorProto.BOOL, "b": onnx.TensorProto.FLOAT}
    values = {
        name: onnx.helper.make_tensor_value_info(name, kind, (1, 3) if name in "ab" else ()) for name, kind in kinds.items()
    }
    body = onnx.helper.make_graph(
        [make_node("Relu", ["a"], ["b"]), make_node("Identity", ["go"], ["go_on"])],
        "body",
        [values["i"], values["go"], values["a"]],
        [values["go_on"], values["b"]],
    )
    node = make_node("Loop", ["n", "", "x"], ["y"], name="again", body=body)
    count = [make_node("ReduceMax", ["x"], ["most"], keepdims=0), make_node("Cast", ["most"], ["n"], to=onnx.TensorProto.INT64)]
    proto = make_onnx([*count, node], {"x": (1, 3)}, {"y": None})
    expect(proto, capfd, "op Loop (node 'again', output tensor 'y')", error=UnsupportedOpError)


def test_custom_domain(make_onnx, capfd):
    node = make_node("Relu", ["x"], ["y"], domain="my.ops")
    proto = make_onnx([node], {"x": (1, 3)}, {"y": None}, domains=("my.ops",))
    expect(proto, capfd, "op my.ops.Relu (output tensor 'y') belongs to a custom operator set", error=UnsupportedOpError)
    with pytest.raises(UnsupportedOpError) as caught:  # shapes make no op known, and are not to blame
        load(proto, shapes={"x": (1, 5)})
    assert "shapes" not in str(caught.value)


def test_conversion_that_fails_inside_tvm(make_onnx, capfd):
    constants = {"w": np.ones((2, 3, 3, 3), np.float32)}
    proto = make_onnx([make_node("Conv", ["x", "w"], ["y"])], {"x": (1, 5, 8, 8)}, {"y": None}, constants)
    expect(proto, capfd, "op Conv (output tensor 'y') cannot be imported", error=UnsupportedOpError)


def test_an_input_that_an_op_cannot_be_without(make_onnx, capfd):
    """TVM's tuples take none for a tensor: the process ended."""
    proto = make_onnx([make_node("Concat", ["", "x", "x"], ["y"], axis=0)], {"x": (1, 3)}, {"y": None})
    expect(proto, capfd, "op Concat (output tensor 'y'): its inputs (input 0) is missing", error=UnsupportedOpError)


def test_invalid_graph(make_onnx, capfd):
    expect(make_onnx([make_node("Relu", ["nowhere"], ["y"])], {"x": (1, 3)}, {"y": None}), capfd, "invalid ONNX model", "nowhere")


def tflite_file(tmp_path, tensors, ops, **options):
    path = tmp_path / "m.tflite"
    path.write_bytes(write(tensors, ops, (0,), (len(tensors) - 1,), **options))
    return path


@pytest.mark.parametrize(
    ("name", "fields", "message"),
    [
        ("HASHTABLE_FIND", {}, "op HASHTABLE_FIND (output tensor 'y') cannot be imported"),
        (
            "UNIQUE",
            {},
            "op UNIQUE (output tensor 'y'): a result whose size follows from values, which is not supported; convert the model "
            "with other ops in its place, or end it before this op at 'x' and compute the op yourself",
        ),
        (
            "CUSTOM",
            {},
            "op CUSTOM  (output tensor 'y') is not supported by the importer; only the runtime that it was made for knows",
        ),
        ("DELEGATE", {}, "op DELEGATE (output tensor 'y')"),
        ("CUMSUM", {"dtype": "int8", "scale": (0.1,), "zero_point": (0,)}, "not supported by the importer on quantized tensors"),
    ],
)
def test_tflite_unsupported_op(tmp_path, capfd, name, fields, message):
    other = {**fields, "scale": (0.2,)} if fields else {}
    tensors = [Tensor(name="x", shape=(1, 2), **fields), Tensor(name="y", shape=(1, 2), **other)]
    path = tflite_file(tmp_path, tensors, [Op(name=name, inputs=(0,), outputs=(1,))])
    expect(path, capfd, message, error=UnsupportedOpError)


def test_tflite_of_text(tmp_path, capfd):
    tensors = [Tensor(name="x", shape=(1, 2), dtype="string"), Tensor(name="y", shape=(1, 2))]
    path = tflite_file(tmp_path, tensors, [Op(name="TANH", inputs=(0,), outputs=(1,))])
    expect(path, capfd, "tensor 'x' holds string, which is not supported; convert the part", error=UnsupportedOpError)


def test_tflite_nobody_computes_an_input(tmp_path, capfd):
    tensors = [Tensor(name=name, shape=(1, 2)) for name in ("x", "loose", "y")]
    path = tflite_file(tmp_path, tensors, [Op(name="TANH", inputs=(1,), outputs=(2,))])
    expect(path, capfd, "op TANH reads tensor 'loose'")


def test_shapes_for_tflite(tmp_path):
    tensors = [Tensor(name="x", shape=(1, 2)), Tensor(name="y", shape=(1, 2))]
    path = tflite_file(tmp_path, tensors, [Op(name="TANH", inputs=(0,), outputs=(1,))])
    with pytest.raises(ModelError, match=r"shape \(2, 2, 2\) for input 'x' does not fit \(1, 2\), the file's"):
        load(path, shapes={"x": (2, 2, 2)})
    with pytest.raises(ModelError, match="there is no dimension 'batch' to give a size; all dimensions are fixed"):
        load(path, sizes={"batch": 2})
    with pytest.raises(ModelError, match="there is no input 'z' to give a shape; the inputs are x"):
        load(path, shapes={"z": (2, 2)})


def damaged(data, seed):
    """A truncated file, or one with one to four bytes changed, mostly where the structure is."""
    rng = random.Random(seed)
    changed = bytearray(data)
    if seed % 4 == 0:
        return bytes(changed[: rng.randrange(len(changed))])
    at = rng.choice(
        [rng.randrange(len(data)), rng.randrange(min(len(data), 3000)), rng.randrange(max(0, len(data) - 3000), len(data))]
    )
    for position in range(at, min(at + (4 if seed % 4 == 3 else 1), len(changed))):
        changed[position] = rng.choice([changed[position] ^ 1 << rng.randrange(8), 0, 0x7F, 0x80, 0xFF])
    return bytes(changed)


@pytest.mark.parametrize("which", ["onnx", "resnet8_cifar10_int8", "dscnn_kws_fp32"])
def test_damaged_files(which, small, shared, tmp_path, capfd):
    data = small.SerializeToString() if which == "onnx" else (shared / f"models/tflite/{which}.tflite").read_bytes()
    path: Path = tmp_path / "m"
    messages = []
    for seed in range(60):
        path.write_bytes(damaged(data, seed))
        try:
            load(path)
        except OctavoError as error:
            messages.append(str(error))
    assert len(messages) > 10
    assert [message for message in messages if "\n" in message] == []
    captured = capfd.readouterr()
    assert (captured.out, captured.err) == ("", "")


@pytest.mark.parametrize("op", ["Add", "Mul", "Where", "Greater"])
def test_shapes_that_do_not_fit_are_named_and_tvms_ops_are_not_printed(make_onnx, capfd, op):
    kinds = {"c": np.ones((2, 4), bool)} if op == "Where" else {}
    graph = make_onnx(
        [make_node(op, [*kinds, "x", "w"], ["y"])], {"x": (2, 3)}, {"y": None}, {**kinds, "w": np.ones((2, 4), np.float32)}
    )
    with pytest.raises(OctavoError) as caught:
        load(graph)
    said = str(caught.value)
    assert f"op {op}" in said
    assert "ir.Op" not in said
    assert "3" in said
    assert "4" in said
