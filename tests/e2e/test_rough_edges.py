"""What stood in the way of a first user, and does no longer: one test for each."""

import gzip
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import octavo
from octavo.cli.main import main
from octavo.profiling import from_table, write_table
from octavo.quantizer.ranges import QuantScheme, range_estimator
from small_file import digits, write_small_net


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("net") / "m.onnx"
    write_small_net(found)
    return found


@pytest.fixture(scope="module")
def profiled(path: Path) -> tuple[octavo.Model, octavo.Profile]:
    model = octavo.load(path)
    return model, octavo.profile(model, [digits(0, 20)], keep_samples=0)


@pytest.fixture(scope="module")
def exported(profiled: tuple[octavo.Model, octavo.Profile], path: Path) -> Path:
    octavo.export_onnx(octavo.quantize(*profiled), path.with_name("m.int8.onnx"))
    return path.with_name("m.int8.onnx")


def said(capsys: pytest.CaptureFixture[str], line: str) -> str:
    assert main(line.split()) in (1, 2)
    text = capsys.readouterr().err
    assert len(text.splitlines()) == 1
    return text


def test_a_profile_and_an_explanation_print_as_what_they_say(profiled: tuple[octavo.Model, octavo.Profile]) -> None:
    assert len(str(profiled[1])) == len(repr(profiled[1])) < 100
    assert "15 tensors, 20 samples, 0 kept" in str(profiled[1])
    lines = str(octavo.explain(octavo.quantize(*profiled))).splitlines()
    assert lines[:2] == ["takes pixels: float32 [1,1,8,8]", "gives logits: float32 [1,10]"]
    assert lines[2].split() == ["quantize", "pixels", "integer", "quantize"]
    assert lines[-1].startswith("5/5 ops integer")


def test_ranges_alone_are_refused_to_what_needs_histograms(profiled: tuple[octavo.Model, octavo.Profile], tmp_path: Path) -> None:
    model, profile = profiled
    estimator, scheme = range_estimator("min_max"), QuantScheme(dtype="uint8")
    write_table(profile, tmp_path / "t.json", "aimet-1.0.0", range_of=lambda tensor: estimator.range_of(tensor, scheme))
    imported, _ = from_table(model, tmp_path / "t.json")
    imported.save(tmp_path / "p.json")
    imported = octavo.Profile.load(tmp_path / "p.json")
    octavo.quantize(model, imported)
    for recipe in (octavo.Recipe(range_estimator="percentile:99"), octavo.Recipe(overrides={"Conv": {"range_estimator": "mse"}})):
        with pytest.raises(octavo.OctavoError, match=r"ranges alone, from AIMET's encodings, and .* needs histograms"):
            octavo.quantize(model, imported, recipe=recipe)


def test_an_exported_file_explains_by_the_source_s_names(exported: Path, profiled: tuple[octavo.Model, octavo.Profile]) -> None:
    names = [op.source_name for op in octavo.explain(octavo.load(exported)).ops]
    assert names == [op.source_name for op in octavo.explain(octavo.quantize(*profiled)).ops]


def test_a_file_that_is_quantized_already_is_written_as_it_is(exported: Path, tmp_path: Path) -> None:
    octavo.export_onnx(octavo.load(exported), tmp_path / "again.onnx")
    assert onnx.load(tmp_path / "again.onnx").graph == onnx.load(exported).graph


def test_layers_of_an_exported_file_are_those_of_the_model(exported: Path, profiled: tuple[octavo.Model, octavo.Profile]) -> None:
    expected = octavo.layer_errors(profiled[0], octavo.quantize(*profiled), [digits(0, 5)])
    assert octavo.layer_errors(profiled[0], octavo.load(exported), [digits(0, 5)]) == expected


def test_an_exported_file_is_not_to_be_quantized_first(exported: Path) -> None:
    assert not [op.reason for op in octavo.explain(octavo.load(exported)).ops if "quantize it first" in op.reason]


def test_an_executable_takes_the_batches_that_a_profile_takes(profiled: tuple[octavo.Model, octavo.Profile]) -> None:
    executable, samples = octavo.compile(octavo.quantize(*profiled)), digits(0, 3)
    together = executable(samples)["logits"]
    assert np.array_equal(together, np.concatenate([executable(sample[None])["logits"] for sample in samples]))
    with pytest.raises(octavo.OctavoError, match=r"must have shape \[1,1,8,8\]"):
        executable(np.zeros((3, 1, 8, 9), np.float32))


def test_compressed_files_and_other_formats_are_named(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    packed = tmp_path / "m.onnx.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert "is compressed; unpack it first: gunzip m.onnx.gz" in said(capsys, f"explain {packed}")
    line = f"quantize {path} --profile p.json -o {tmp_path}/m.tflite"
    assert "is onnx: give -o a name that ends in .onnx" in said(capsys, line)


def test_exclude_takes_the_wildcards_of_tensors(
    profiled: tuple[octavo.Model, octavo.Profile], path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    profiled[1].save(tmp_path / "p.json")
    written: list[bytes] = []
    for names in (["*/re?u"], ["stem/relu", "block/relu"], ["no*"]):
        excluded = " ".join(f"--exclude {name}" for name in names)
        line = f"quantize {path} --profile {tmp_path}/p.json {excluded} -o {tmp_path}/m.int8.onnx"
        if names == ["no*"]:
            assert "the model has no such op" in said(capsys, line)
            break
        assert main(line.split()) == 0
        assert "5/5 ops integer" not in capsys.readouterr().out
        written.append((tmp_path / "m.int8.onnx").read_bytes())
    assert written[0] == written[1]


def carrying(path: Path) -> None:
    """Write y = (x + s) * rate, next = y: a scalar input, and state."""
    shapes = {"x": (1, 2), "s": (1, 2), "rate": ()}
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()]
    outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, (1, 2)) for name in ("y", "next")]
    nodes = [
        helper.make_node("Add", ["x", "s"], ["sum"]),
        helper.make_node("Mul", ["sum", "rate"], ["y"]),
        helper.make_node("Mul", ["y", "one"], ["next"]),
    ]
    one = numpy_helper.from_array(np.ones((1, 2), np.float32), "one")
    graph = helper.make_graph(nodes, "carrying", inputs, outputs, [one])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), path)


@pytest.mark.parametrize("rate", [np.float32(2), np.full(3, 2, np.float32)])
def test_scalars_and_state_are_profiled_from_the_command_line(rate: np.ndarray, tmp_path: Path) -> None:
    carrying(tmp_path / "m.onnx")
    np.savez(tmp_path / "x.npz", x=np.array([[1, 0], [1, 0], [1, 0]], np.float32), rate=rate)
    assert main(f"profile {tmp_path}/m.onnx --data {tmp_path}/x.npz --state next=s -o {tmp_path}/p.json".split()) == 0
    profile = octavo.Profile.load(tmp_path / "p.json")
    by_name = {value.source_name: (value.minimum, value.maximum) for value in profile.values()}
    assert profile.samples == 3
    assert by_name["rate"] == (2, 2)
    assert by_name["s"] == (0, 6), "of 0, 2 and 6"
    assert by_name["y"] == (0, 14)


def test_state_that_is_none_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    carrying(tmp_path / "m.onnx")
    np.savez(tmp_path / "x.npz", x=np.zeros((1, 2), np.float32), rate=np.float32(1))
    line = f"profile {tmp_path}/m.onnx --data {tmp_path}/x.npz -o {tmp_path}/p.json --state gone=s"
    assert "state names the output gone, which the model does not have; it has y, next" in said(capsys, line)


def test_sizes_are_asked_for_as_the_command_line_takes_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ("N", "T")) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "open", ends[:1], ends[1:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), tmp_path / "m.onnx")
    assert "--size N=N --size T=N on the command line" in said(capsys, f"bench {tmp_path}/m.onnx")


def test_a_shape_that_does_not_fit_is_said_without_tvm_s_words(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys, f"explain {path} --shape pixels=1,2,8,8")
    assert "T.int64" not in text
    assert "stem/conv" in text
    assert "--shape pixels=" in text
