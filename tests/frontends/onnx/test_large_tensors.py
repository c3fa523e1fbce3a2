"""Large tensors of ONNX models lie where the file has them, and count like any other."""

import json

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import octavo
from child_python import run_python
from octavo import load
from octavo.errors import ModelError
from octavo.frontends.onnx import large_tensors, source, wire_format
from octavo.runtime import mapped

SIZE = 768  # 1.2 MB of float16


@pytest.fixture
def weights(rng):
    return [rng.standard_normal((SIZE, SIZE)).astype(np.float32) for _ in range(2)]


def chain(tensors, constants=()):
    nodes = [
        *constants,
        helper.make_node("MatMul", ["x", "w0"], ["h"]),
        helper.make_node("MatMul", ["h", "w1"], ["y"]),
    ]
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, SIZE]) for name in "xy"]
    graph = helper.make_graph(nodes, "chain", values[:1], values[1:], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def of_values(values, dtype=None):
    return [numpy_helper.from_array(each.astype(dtype or each.dtype), f"w{index}") for index, each in enumerate(values)]


def external(tensors, location="chain.data", *, alignment=4096):
    """Return tensors whose data lie in a file, and its bytes."""
    data = b""
    for tensor in tensors:
        data += bytes(-len(data) % alignment)
        place = {"location": location, "offset": len(data), "length": len(tensor.raw_data)}
        data += tensor.raw_data
        tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in place.items():
            tensor.external_data.add(key=key, value=str(value))
    return tensors, data


def without_large_tensors(proto, monkeypatch):
    """Load with everything in the message."""
    with monkeypatch.context() as patched:
        patched.setattr(source, "LARGE_BYTES", 1 << 40)
        return load(proto)


def test_wherever_tensors_lie_the_model_is_the_same(weights, tmp_path, monkeypatch):
    proto = chain(of_values(weights))
    expected = without_large_tensors(proto, monkeypatch)
    (tmp_path / "inline.onnx").write_bytes(proto.SerializeToString())
    tensors, data = external(of_values(weights))
    (tmp_path / "chain.data").write_bytes(data)
    (tmp_path / "beside.onnx").write_bytes(chain(tensors).SerializeToString())
    constants = [helper.make_node("Constant", [], [each.name], value=each) for each in of_values(weights)]
    (tmp_path / "nodes.onnx").write_bytes(chain([], constants).SerializeToString())
    for mapped_bytes in (mapped.MAPPED_BYTES, 0):
        monkeypatch.setattr(mapped, "MAPPED_BYTES", mapped_bytes)
        for given in (proto, tmp_path / "inline.onnx", tmp_path / "beside.onnx"):
            model = load(given)
            assert model.fingerprint == expected.fingerprint
            assert [(name, value.tobytes()) for name, value in model.params.items()] == [
                (name, value.tobytes()) for name, value in expected.params.items()
            ]
            assert all(large_tensors.is_outside(tensor) for tensor in model.source.proto.graph.initializer)
            complete = model.source.complete()
            onnx.checker.check_model(complete)
            assert [each.raw_data for each in complete.graph.initializer] == [each.tobytes() for each in weights]
        model = load(tmp_path / "nodes.onnx")
        np.testing.assert_array_equal(list(model.params.values()), weights)


def safetensors_of(tensors):
    """Return tensors whose data lie in a file of safetensors, and its bytes: values at multiples of 8 behind a header."""
    tensors, data = external(tensors, "chain.safetensors", alignment=8)
    places = [{entry.key: entry.value for entry in tensor.external_data} for tensor in tensors]
    spans = [(int(place["offset"]), int(place["offset"]) + int(place["length"])) for place in places]
    entries = {
        tensor.name: {"dtype": "F32", "shape": list(tensor.dims), "data_offsets": span}
        for tensor, span in zip(tensors, spans, strict=True)
    }
    text = json.dumps(entries).encode()
    text += b" " * (-len(text) % 64)
    header = len(text).to_bytes(8, "little") + text
    for tensor, (start, _) in zip(tensors, spans, strict=True):
        next(entry for entry in tensor.external_data if entry.key == "offset").value = str(len(header) + start)
    return tensors, header + data


@pytest.mark.parametrize(
    ("name", "written", "is_aligned"),
    [
        ("chain.data", external, True),
        ("chain.safetensors", safetensors_of, False),
    ],
)
def test_tensors_of_mapped_files_are_not_copied(weights, tmp_path, monkeypatch, name, written, is_aligned):
    monkeypatch.setattr(mapped, "MAPPED_BYTES", 0)
    tensors, data = written(of_values(weights))
    (tmp_path / name).write_bytes(data)
    (tmp_path / "chain.onnx").write_bytes(chain(tensors).SerializeToString())
    model = load(tmp_path / "chain.onnx")
    for value, held in zip(model.params.values(), model.source.values, strict=True):
        assert np.shares_memory(value, held.values)
        assert mapped.can_share(value) == is_aligned
    x = np.ones((2, SIZE), np.float32)
    [found] = octavo.compile(model)(x).values()
    [expected] = octavo.compile(load(chain(of_values(weights))))(x).values()
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("stored", ["float16", "bfloat16"])
def test_narrow_floats_are_widened(weights, stored, monkeypatch):
    narrow = [each.astype(np.float16) for each in weights]
    tensors = of_values(narrow)
    if stored == "bfloat16":
        tensors = [helper.make_tensor(f"w{i}", TensorProto.BFLOAT16, v.shape, v.reshape(-1)) for i, v in enumerate(narrow)]
        tensors = [numpy_helper.from_array(numpy_helper.to_array(each), each.name) for each in tensors]
    proto = chain(tensors)
    for value in (*proto.graph.input, *proto.graph.output):
        value.type.tensor_type.elem_type = tensors[0].data_type
    expected, model = without_large_tensors(proto, monkeypatch), load(proto)
    assert model.source.values
    assert model.fingerprint == expected.fingerprint
    np.testing.assert_array_equal(list(model.params.values()), list(expected.params.values()))


def test_integers_of_four_bits(rng, monkeypatch):
    values = rng.integers(-8, 8, (2048, 2048)).astype(np.int8)
    weight = helper.make_tensor("q", TensorProto.INT4, values.shape, values.reshape(-1))
    weight = numpy_helper.from_array(numpy_helper.to_array(weight), "q")
    nodes = [helper.make_node("DequantizeLinear", ["q", "s"], ["w"]), helper.make_node("MatMul", ["x", "w"], ["y"])]
    info = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 2048]) for name in "xy"]
    scale = numpy_helper.from_array(np.float32(0.25), "s")
    graph = helper.make_graph(nodes, "narrow", info[:1], info[1:], [weight, scale])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    expected, model = without_large_tensors(proto, monkeypatch), load(proto)
    assert model.source.values
    assert model.fingerprint == expected.fingerprint
    np.testing.assert_array_equal(model.params["q"], values)


@pytest.mark.parametrize("share", [0.3, 0.6, 0.99999])
def test_a_file_that_is_cut_off(weights, tmp_path, share):
    data = chain(of_values(weights)).SerializeToString()
    path = tmp_path / "cut.onnx"
    path.write_bytes(data[: int(len(data) * share)])
    with pytest.raises(ModelError, match=r"cut\.onnx: not a complete ONNX model \(.*\); is it truncated\?$"):
        load(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"offset": "9999999"}, r"bytes 9999999 to .* of 'chain\.data', which has"),
        ({"length": "9999999"}, r"bytes 0 to 9999999 of 'chain\.data', which has"),
        ({"length": str(4 * SIZE * SIZE - 4)}, rf"'w0' of shape \({SIZE}, {SIZE}\) takes {4 * SIZE * SIZE} bytes, and"),
        ({"offset": "-4"}, "offset must be non-negative"),
        ({"offset": "four"}, "invalid literal"),
        ({"location": "other.data"}, "put it beside the model"),
        ({"location": "../chain.data"}, "put it beside the model"),
        ({"location": "/chain.data"}, "put it beside the model"),
    ],
)
def test_external_data_that_is_not_there(weights, tmp_path, change, message):
    tensors, data = external(of_values(weights))
    folder = tmp_path / "model"
    folder.mkdir()
    for place in (folder, tmp_path):
        (place / "chain.data").write_bytes(data)
    for entry in tensors[0].external_data:
        entry.value = change.get(entry.key, entry.value)
    (folder / "chain.onnx").write_bytes(chain(tensors).SerializeToString())
    with pytest.raises(ModelError, match=message) as caught:
        load(folder / "chain.onnx")
    assert str(caught.value).count("\n") == 0
    assert "w0" in str(caught.value)


def test_a_key_that_a_file_makes_up_is_a_path(weights, tmp_path):
    tensors, _ = external(of_values(weights), "octavo:0")
    (tmp_path / "chain.onnx").write_bytes(chain(tensors).SerializeToString())
    with pytest.raises(ModelError, match="cannot read the external data"):
        load(tmp_path / "chain.onnx")


def test_a_message_is_left_whole_but_for_large_tensors(weights):
    small = numpy_helper.from_array(np.arange(7), "small")
    data = chain([*of_values(weights), small]).SerializeToString()
    places = []
    light = onnx.ModelProto.FromString(wire_format.split_large(data, lambda *place: places.append(place) or f"k{len(places)}"))
    assert [data[start : start + length] for start, length in places] == [each.tobytes() for each in weights]
    for key, tensor, value in zip(("k1", "k2"), light.graph.initializer, of_values(weights), strict=False):
        assert tensor.external_data[0].value == key
        tensor.CopyFrom(value)
    assert light.SerializeToString() == data


@pytest.mark.parametrize("data", [b"\x3a", b"\x3a\xff", b"\x3a\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", b"\x3b", b"\x08"])
def test_bytes_that_are_no_message(data):
    with pytest.raises(wire_format.WireError):
        wire_format.split_large(data, lambda *_: "")


@pytest.mark.parametrize("layout", ["beside", "inline"])
def test_loading_takes_little_more_memory_than_the_file(rng, tmp_path, layout):
    tensors = [numpy_helper.from_array(rng.standard_normal((4096, 4096), np.float32), f"w{index}") for index in range(4)]
    size = sum(len(tensor.raw_data) for tensor in tensors)
    if layout == "beside":
        tensors, data = external(tensors)
        (tmp_path / "chain.data").write_bytes(data)
    nodes = [helper.make_node("MatMul", [f"h{i}" if i else "x", f"w{i}"], ["y" if i == 3 else f"h{i + 1}"]) for i in range(4)]
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 4096]) for name in "xy"]
    graph = helper.make_graph(nodes, "chain", values[:1], values[1:], tensors)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    (tmp_path / "chain.onnx").write_bytes(proto.SerializeToString())
    code = """
import json, sys, octavo
def peak():
    return int(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1]) * 1024
octavo.load  # imports what it needs
before = peak()
model = octavo.load(sys.argv[1])
print(json.dumps([before, peak()]))
"""
    before, after = json.loads(run_python(code, tmp_path / "chain.onnx", check=True).stdout)
    assert after - before < 1.3 * size
