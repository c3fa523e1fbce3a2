"""Exported .tflite files: LiteRT computes what Octavo does, names and metadata stay, and what cannot be is one clear error."""

from __future__ import annotations

import io
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tflite
from ai_edge_litert.interpreter import Interpreter

import octavo
from apply_steps import with_steps
from float_networks import OPS, FloatNetwork, branches, mixed
from octavo.cli.main import main
from octavo.errors import OctavoError
from octavo.export import tflite as tflite_export
from octavo.frontends.tflite.flatbuffer import Table, read_tables, write_tables
from octavo.numerics.statistics.metrics import sqnr_db
from reference_sessions import reference_session
from small_file import write_small_net
from tflite_writer import Op

PLAIN = octavo.Recipe(equalization="none", weight_rounding="nearest", bias_correction=False)
OP_NAMES = {code: name for name, code in vars(tflite.BuiltinOperator).items() if isinstance(code, int)}


def litert(content: bytes, samples: np.ndarray) -> list[np.ndarray]:
    interpreter = Interpreter(model_content=content, num_threads=1)
    interpreter.allocate_tensors()
    [given], made = interpreter.get_input_details(), interpreter.get_output_details()
    results = []
    for sample in samples:
        interpreter.set_tensor(given["index"], sample[None].astype(given["dtype"]))
        interpreter.invoke()
        results.append([interpreter.get_tensor(each["index"]) for each in made])
    return [np.concatenate(each) for each in zip(*results, strict=True)]


def run(model: octavo.Model, samples: np.ndarray) -> list[np.ndarray]:
    executable = octavo.compile(model)
    results = [executable(sample[None]).values() for sample in samples]
    return [np.concatenate(each) for each in zip(*results, strict=True)]


def loaded(content: bytes, folder: Path) -> octavo.Model:
    (folder / "m.tflite").write_bytes(content)
    return octavo.load(folder / "m.tflite")


def graph_of(content: bytes) -> Table:
    [graph] = read_tables(content)["Subgraphs"]
    return graph


def ops_of(content: bytes) -> list[tuple[str, list[int]]]:
    """Each op with the element types of what it reads and makes."""
    root, graph = read_tables(content), graph_of(content)
    codes = [OP_NAMES[code.number("BuiltinCode")] for code in root["OperatorCodes"]]
    types = [tensor.number("Type") for tensor in graph["Tensors"]]
    return [
        (codes[op.number("OpcodeIndex")], [types[index] for index in (*op["Inputs"], *op["Outputs"])])
        for op in graph["Operators"]
    ]


def float_ops(content: bytes) -> set[str]:
    """The ops that compute in float."""
    between = ("QUANTIZE", "DEQUANTIZE")
    return {name for name, types in ops_of(content) if tflite.TensorType.FLOAT32 in types and name not in between}


def samples_for(rng: np.random.Generator, size: int, count: int = 6) -> np.ndarray:
    return rng.normal(0, 1, (count, size, size, 3)).astype(np.float32)


def test_a_network_gives_what_litert_and_octavo_compute(rng: np.random.Generator, tmp_path: Path) -> None:
    content, samples = mixed(rng), samples_for(rng, 12, 12)
    model = loaded(content, tmp_path)
    quantized = tflite_export.quantize(model, octavo.profile(model, samples, keep_samples=8))
    assert quantized.plan.corrections.bias_shifts, "samples were kept"
    data = tflite_export.tflite_bytes(quantized)
    [expected] = litert(data, samples)
    # Softmax is float, whose last digit is each runtime's own.
    assert np.allclose(run(loaded(data, tmp_path), samples)[0], expected, rtol=0, atol=1e-7)
    assert np.allclose(run(quantized, samples)[0], expected, rtol=0, atol=1e-7)
    assert sqnr_db(litert(content, samples)[0], expected) > 40
    assert float_ops(data) == {"L2_NORMALIZATION", "SOFTMAX"}
    names = [tensor["Name"].decode() for tensor in graph_of(data)["Tensors"]]
    assert len(names) == len(set(names))
    assert {"x0", "x0_int8", "depthwise_conv_2d8", "softmax27"} <= set(names)
    assert len(data) < len(content) + 4096
    quantized.plan.save(tmp_path / "plan.json")
    again = tflite_export.quantize(model, plan=tmp_path / "plan.json")
    assert tflite_export.tflite_bytes(again) == data


WIDE = ("DEPTHWISE_CONV_2D", "BATCH_MATMUL", "ADD constant", "MUL constant", "LOGISTIC", "CONCATENATION", "SPLIT", "MEAN")


@pytest.mark.parametrize(
    ("dtype", "names", "floats"),
    [
        ("int8", [name for name in OPS if name not in ("MAXIMUM", "PRELU", "SQUARE")], set()),
        ("int8", ["MAXIMUM", "PRELU", "SQUARE"], {"MAXIMUM", "PRELU", "SQUARE"}),
        ("int16", WIDE, set()),
    ],
    ids=["int8", "floats", "int16"],
)
def test_each_op_equals_litert(dtype: str, names: list[str], floats: set[str], rng: np.random.Generator, tmp_path: Path) -> None:
    content, samples = branches(rng, names), samples_for(rng, 8)
    model = loaded(content, tmp_path)
    recipe = replace(PLAIN, activation_dtype=dtype)
    quantized = tflite_export.quantize(model, octavo.profile(model, samples, keep_samples=0), recipe=recipe)
    data = tflite_export.tflite_bytes(quantized)
    assert float_ops(data) == floats
    results = (litert(data, samples), run(loaded(data, tmp_path), samples), run(quantized, samples), litert(content, samples))
    for name, expected, found, simulated, real in zip(names, *results, strict=True):
        # LiteRT's HARD_SWISH has a fixed point of its own.
        allowed = 0.02 if name == "HARD_SWISH" else 0
        assert np.mean(found != expected) <= allowed, name
        assert np.mean(simulated != expected) <= allowed, name
        assert sqnr_db(real, expected) > (22 if dtype == "int8" else 35), name


@pytest.fixture
def small(rng: np.random.Generator, tmp_path: Path) -> tuple[octavo.Model, octavo.Profile, np.ndarray]:
    net = FloatNetwork(rng=rng)
    content = net.write(net.dense(net.mean(net.conv(net.input((1, 6, 6, 3)), 4)), 5))
    samples, model = samples_for(rng, 6), loaded(_with_metadata(content), tmp_path)
    return model, octavo.profile(model, samples, keep_samples=0), samples


def _with_metadata(content: bytes) -> bytes:
    """Add what tools write beside the graph: a description, a signature, a buffer of metadata, an archive of labels."""
    root = read_tables(content)
    root["Description"] = b"a small one"
    root["Buffers"].append(Table(kind="Buffer", fields={"Data": np.arange(7, dtype=np.uint8)}))
    root["Metadata"] = [Table(kind="Metadata", fields={"Name": b"TFLITE_METADATA", "Buffer": len(root["Buffers"]) - 1})]
    [graph] = root["Subgraphs"]
    graph["Name"] = b"main"
    maps = [
        [Table(kind="TensorMap", fields={"Name": name, "TensorIndex": int(graph[side][0])})]
        for name, side in ((b"image", "Inputs"), (b"scores", "Outputs"))
    ]
    signature = {"Inputs": maps[0], "Outputs": maps[1], "SignatureKey": b"serving_default", "SubgraphIndex": 0}
    root["SignatureDefs"] = [Table(kind="SignatureDef", fields=signature)]
    result = io.BytesIO(write_tables(root))
    with zipfile.ZipFile(result, "a") as archive:
        archive.writestr("labels.txt", "cat\ndog\n")
    return result.getvalue()


def test_signatures_and_metadata_are_kept(small: tuple[octavo.Model, octavo.Profile, np.ndarray], tmp_path: Path) -> None:
    model, profile, _ = small
    data = tflite_export.tflite_bytes(tflite_export.quantize(model, profile, recipe=PLAIN), inputs="int8")
    runner = Interpreter(model_content=data).get_signature_runner("serving_default")
    assert runner.get_input_details()["image"]["dtype"] == np.int8
    assert runner.get_output_details()["scores"]["dtype"] == np.float32
    root = read_tables(data)
    assert root["Description"] == b"a small one"
    [metadata] = root["Metadata"]
    assert metadata["Name"] == b"TFLITE_METADATA"
    assert root["Buffers"][metadata.number("Buffer")]["Data"].tolist() == list(range(7))
    assert graph_of(data)["Name"] == b"main"
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        assert archive.read("labels.txt") == b"cat\ndog\n"


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_inputs_and_outputs_can_be_integers(
    dtype: str, small: tuple[octavo.Model, octavo.Profile, np.ndarray], tmp_path: Path
) -> None:
    model, profile, samples = small
    quantized = tflite_export.quantize(model, profile, recipe=PLAIN)
    [expected] = litert(tflite_export.tflite_bytes(quantized), samples)
    data = tflite_export.tflite_bytes(quantized, inputs=dtype, outputs=dtype)
    interpreter = Interpreter(model_content=data)
    [given], [made] = interpreter.get_input_details(), interpreter.get_output_details()
    assert given["dtype"] == made["dtype"] == np.dtype(dtype)
    (scale, zero_point), (out_scale, out_zero_point) = given["quantization"], made["quantization"]
    limits = np.iinfo(dtype)
    integers = np.clip(np.rint(samples / np.float32(scale)) + zero_point, limits.min, limits.max).astype(dtype)
    [found] = litert(data, integers)
    assert np.array_equal((found.astype(np.float32) - out_zero_point) * np.float32(out_scale), expected)
    assert np.array_equal(run(loaded(data, tmp_path), integers)[0], found)


def test_what_cannot_be_written_is_one_error(small: tuple[octavo.Model, octavo.Profile, np.ndarray], tmp_path: Path) -> None:
    model, profile, _ = small
    write_small_net(tmp_path / "m.onnx")
    quantized = tflite_export.quantize(model, profile, recipe=PLAIN)
    unsigned = octavo.quantize(model, profile, recipe=PLAIN)
    nowhere = tmp_path / "no" / "o.tflite"
    refused = {
        "this one came from onnx": lambda: tflite_export.export_tflite(octavo.load(tmp_path / "m.onnx"), tmp_path / "o.tflite"),
        "the model is not quantized": lambda: tflite_export.tflite_bytes(model),
        "activations are uint8; TFLite has int8": lambda: tflite_export.tflite_bytes(unsigned),
        "TFLite's activations are int8 or int16, the recipe asks for uint8": lambda: tflite_export.quantize(
            model, profile, recipe=replace(PLAIN, activation_dtype="uint8")
        ),
        "is int8 within the model: it can be float32 or int8, not int16": lambda: tflite_export.tflite_bytes(
            quantized, outputs="int16"
        ),
        "cannot write the .tflite file: No such file": lambda: tflite_export.export_tflite(quantized, nowhere),
    }
    for message, call in refused.items():
        with pytest.raises(OctavoError, match=message):
            call()
    left_float = replace(PLAIN, exclude=("FULLY_CONNECTED",))
    with pytest.raises(OctavoError, match="has no scale and zero point"):
        tflite_export.tflite_bytes(tflite_export.quantize(model, profile, recipe=left_float), outputs="int8")
    assert not list(tmp_path.glob(".*"))


def test_an_int8_file_is_written_as_onnx(rng: np.random.Generator, tmp_path: Path) -> None:
    samples = samples_for(rng, 12)
    model = loaded(mixed(rng), tmp_path)
    quantized = tflite_export.quantize(model, octavo.profile(model, samples, keep_samples=0), recipe=PLAIN)
    integers = loaded(tflite_export.tflite_bytes(quantized), tmp_path)
    octavo.export_onnx(integers, tmp_path / "m.onnx")
    session = reference_session(tmp_path / "m.onnx")
    found = np.concatenate([session.run(None, {"x0": sample[None]})[0] for sample in samples])
    [expected] = run(integers, samples)
    # ONNX has no word for TFLite's rounding of ties.
    assert sqnr_db(expected, found) > 50
    [again] = run(octavo.load(tmp_path / "m.onnx"), samples)
    assert sqnr_db(found, again) > 50
    small = FloatNetwork(rng=rng)
    model = loaded(small.write(small.dense(small.pool(small.conv(small.input((1, 12, 12, 3)), 4), "MAX_POOL_2D"), 5)), tmp_path)
    quantized = tflite_export.quantize(model, octavo.profile(model, samples, keep_samples=0), recipe=PLAIN)
    integers = loaded(tflite_export.tflite_bytes(quantized), tmp_path)
    octavo.export_onnx(integers, tmp_path / "m.onnx")
    session = reference_session(tmp_path / "m.onnx")
    found = np.concatenate([session.run(None, {"x0": sample[None]})[0] for sample in samples])
    assert np.array_equal(found, run(integers, samples)[0])
    folded = FloatNetwork(rng=rng)
    x = folded.input((1, 8, 8, 3))
    made = OPS["RESIZE_BILINEAR"](folded, folded.conv(x, 4))
    model = loaded(folded.write(made), tmp_path)
    quantized = tflite_export.quantize(model, octavo.profile(model, samples[:, :8, :8], keep_samples=0), recipe=PLAIN)
    integers = loaded(tflite_export.tflite_bytes(quantized), tmp_path)
    with pytest.raises(OctavoError, match=r"image.resize2d of a model that came from tflite has no form in ONNX here"):
        octavo.export_onnx(integers, tmp_path / "none.onnx")


def test_weights_that_a_file_keeps_in_fewer_bits_are_quantized(rng: np.random.Generator, tmp_path: Path) -> None:
    net = FloatNetwork(rng=rng)
    conv = net.conv(net.input((1, 6, 6, 3)), 4)
    half = net.tensors[1]
    halves = net.add("half", half.shape, half.value.astype(np.float16), "float16")
    half.value = None
    net.ops.insert(0, Op(name="DEQUANTIZE", inputs=(halves,), outputs=(1,)))
    dense = net.dense(conv, 5)
    weight = net.tensors[net.ops[-1].inputs[1]]
    weight.scale, weight.zero_point = (float(np.abs(weight.value).max()) / 127,), (0,)
    weight.value, weight.dtype = np.rint(weight.value / np.float32(weight.scale[0])).astype(np.int8), "int8"
    samples, content = samples_for(rng, 6), net.write(dense)
    model = loaded(content, tmp_path)
    quantized = tflite_export.quantize(model, octavo.profile(model, samples, keep_samples=0), recipe=PLAIN)
    data = tflite_export.tflite_bytes(quantized)
    assert [name for name, _ in ops_of(data)] == ["QUANTIZE", "CONV_2D", "FULLY_CONNECTED", "DEQUANTIZE"]
    assert tflite.TensorType.FLOAT16 not in {tensor.number("Type") for tensor in graph_of(data)["Tensors"]}
    [expected] = litert(data, samples)
    assert np.array_equal(run(loaded(data, tmp_path), samples)[0], expected)
    assert sqnr_db(litert(content, samples)[0], expected) > 30


def test_layers_of_a_file_are_paired_with_the_model_s(rng: np.random.Generator, tmp_path: Path) -> None:
    samples = samples_for(rng, 12, 3)
    model = loaded(mixed(rng), tmp_path)
    quantized = tflite_export.quantize(model, octavo.profile(model, samples, keep_samples=0), recipe=PLAIN)
    tflite_export.export_tflite(quantized, tmp_path / "int8.tflite")
    expected = {row.id: row.sqnr_db for row in octavo.layer_errors(model, quantized, samples, target="cpu")}
    found = {row.id: row.sqnr_db for row in octavo.layer_errors(model, octavo.load(tmp_path / "int8.tflite"), samples)}
    # The padding that was folded into a convolution is an op of the file.
    assert found.keys() - expected.keys() == {"pad2"}
    assert {name: found[name] for name in expected} == pytest.approx(expected, abs=1e-3)


def test_equalized_tensors_are_named_so_and_paired_with_the_model_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def equalized_anyway(model: octavo.Model, profile: octavo.Profile | None = None, **given: Any) -> octavo.QuantizedModel:
        if profile is None:
            return octavo.quantize(model, **given)
        return with_steps(model, profile, target=given["target"], recipe=given["recipe"])

    monkeypatch.setattr("octavo.export.tflite.restrict.quantize_model", equalized_anyway)
    rng = np.random.default_rng(41909408)  # whose numbers equalization helps
    samples = samples_for(rng, 12, 12)
    model = loaded(mixed(rng), tmp_path)
    quantized = tflite_export.quantize(model, octavo.profile(model, samples, keep_samples=8))
    equalized = {model.tensors[each].source_name for each in quantized.plan.equalization.factors if each in model.tensors}
    assert equalized
    tflite_export.export_tflite(quantized, tmp_path / "int8.tflite")
    names = {tensor["Name"].decode() for tensor in graph_of((tmp_path / "int8.tflite").read_bytes())["Tensors"]}
    assert {f"{name}_divided" for name in equalized} <= names
    assert names.isdisjoint(equalized)
    expected = {row.id: row.sqnr_db for row in octavo.layer_errors(model, quantized, samples, target="cpu")}
    found = {row.id: row.sqnr_db for row in octavo.layer_errors(model, octavo.load(tmp_path / "int8.tflite"), samples)}
    assert {name: found[name] for name in expected} == pytest.approx(expected, abs=1e-3)


def test_the_command_line_takes_samples(
    small: tuple[octavo.Model, octavo.Profile, np.ndarray],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", small[2])
    Path("cut.tflite").write_bytes(Path("m.tflite").read_bytes()[:1000])
    line = "quantize m.tflite --data x.npy -o m.int8.tflite --inputs int8 --outputs int8"
    assert main(line.split()) == 0
    assert "verdict: " in capsys.readouterr().out
    data = Path("m.int8.tflite").read_bytes()
    assert not float_ops(data)
    assert not {"QUANTIZE", "DEQUANTIZE"} & {name for name, _ in ops_of(data)}
    assert main(["evaluate", "m.tflite", "m.int8.tflite", "--data", "x.npy"]) in (0, 1)
    capsys.readouterr()
    wrong = {
        "quantize m.tflite --data x.npy -o m.onnx": "m.tflite is tflite: give -o a name that ends in .tflite",
        "quantize m.tflite --data x.npy --target cpu -o o.tflite": "is quantized for LiteRT's kernels; leave it out",
        "quantize m.tflite -o o.tflite": "quantize needs --profile FILE, which `octavo profile` writes, --data FILE",
        "quantize m.tflite --data x.npy --inputs int8 -o o.onnx": "--inputs and --outputs are of .tflite files",
        "quantize cut.tflite --data x.npy -o o.tflite": "truncated or corrupt .tflite file",
    }
    for line, message in wrong.items():
        assert main(line.split()) != 0
        said = capsys.readouterr().err
        assert message in said, said
        assert said.count("\n") == 1
    assert not Path("o.tflite").exists()


def test_a_product_by_a_computed_weight_is_float_in_the_model_too(rng: np.random.Generator, tmp_path: Path) -> None:
    """LiteRT has no integer FULLY_CONNECTED of it: what is quantized is what the file says, and comes back as it was."""
    net = FloatNetwork(rng=rng)
    flat = net.op("RESHAPE", (net.conv(net.input((1, 4, 4, 3)), 4), net.constant(np.int32([16, 4]))), (16, 4), "ReshapeOptions")
    x = net.op("FULLY_CONNECTED", (flat, net.op("ABS", (flat,), (16, 4)), -1), (16, 16), "FullyConnectedOptions")
    y = net.op("FULLY_CONNECTED", (x, *net.weights((3, 16), 16)), (16, 3), "FullyConnectedOptions")
    content, samples = net.write(y), samples_for(rng, 4)
    model = loaded(content, tmp_path)
    quantized = tflite_export.quantize(model, octavo.profile(model, samples), recipe=PLAIN)
    data = tflite_export.tflite_bytes(quantized)
    assert "FULLY_CONNECTED" in float_ops(data)
    assert all(layer.weight is not None for layer in quantized.plan.layers if "matmul" in layer.op)
    [ours], [again], [theirs] = run(quantized, samples), run(loaded(data, tmp_path), samples), litert(data, samples)
    np.testing.assert_array_equal(ours, again)
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5)
