"""Each command does its work, on a small network."""

import json
import os
import shlex
import subprocess
from pathlib import Path

import numpy as np
import onnx
import pytest

import octavo
from child_python import OCTAVO
from octavo.cli.main import main
from octavo.profiling import samples_path


def command(line: str) -> int:
    return main(shlex.split(line))


def read(path: Path | str) -> dict[str, np.ndarray]:
    with np.load(path) as archive:
        return dict(archive.items())


def test_the_chain_leaves_what_it_says_and_nothing_else(finished: Path) -> None:
    assert set(os.listdir(finished)) == {
        "m.onnx", "calib.npz", "x.npz", "profile.json", "m.int8.onnx", "m.so", "y.npz",
    }  # fmt: skip
    assert octavo.Profile.load(finished / "profile.json").samples == 100
    onnx.checker.check_model(str(finished / "m.int8.onnx"), full_check=True)


def test_run_gives_what_the_executable_gives_in_python(finished: Path) -> None:
    executable = octavo.load_executable(finished / "m.so")
    samples = read(finished / "x.npz")["x"]
    want = np.concatenate([executable(samples[i : i + 1])["logits"] for i in range(len(samples))])
    got = read(finished / "y.npz")
    assert list(got) == ["logits"]
    assert np.array_equal(got["logits"], want)


def test_run_in_a_new_process_gives_the_same_bytes(workplace: Path) -> None:
    words = [*OCTAVO, "run", "m.so", "--input", "x.npz", "-o", "again.npz"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "again.npz: logits float32 [20, 10]\n"
    assert Path("again.npz").read_bytes() == Path("y.npz").read_bytes()


def test_profile_is_the_same_bytes_from_one_file_or_two(workplace: Path, with_samples: Path) -> None:
    samples = read("calib.npz")["x"]
    np.save("first.npy", samples[60:])
    np.savez("second.npz", pixels=samples[:60])
    assert command("profile m.onnx --data first.npy --data second.npz -o other.json") == 0
    assert Path("other.json").read_bytes() == with_samples.read_bytes()
    assert Path("other.json.samples").read_bytes() == samples_path(with_samples).read_bytes()


def test_profile_keeps_as_many_samples_as_it_is_asked_to(
    workplace: Path, with_samples: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert len(octavo.Profile.load(with_samples).kept_samples) == 64
    for keep, where in ((3, " in few.json.samples"), (0, "")):
        assert command(f"profile m.onnx --data calib.npz -o few.json --keep-samples {keep}") == 0
        assert capsys.readouterr().out.endswith(f"100 samples, {keep} kept{where}\n")
        assert Path("few.json.samples").exists() == bool(keep)
        profile = octavo.Profile.load("few.json")
        assert (profile.samples, profile.keep_samples, len(profile.kept_samples)) == (100, keep, keep)
    for keep in ("-1", "2.5", "all"):
        with pytest.raises(SystemExit):
            command(f"profile m.onnx --data calib.npz -o other.json --keep-samples={keep}")
        assert f"expected a number of samples, 0 or more, got '{keep}'" in capsys.readouterr().err
        assert not Path("other.json").exists()


def test_the_profile_lists_the_tensors_in_the_order_of_the_graph(workplace: Path) -> None:
    listed = list(octavo.Profile.load("profile.json"))
    assert listed == [key for key in octavo.load("m.onnx").tensors if key in set(listed)]
    assert listed != sorted(listed), "or this test shows nothing"


def test_report_writes_one_page(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command("report profile.json -o report.html") == 0
    assert capsys.readouterr().out.startswith(f"report.html: {len(octavo.Profile.load('profile.json'))} tensors, ")
    page = Path("report.html").read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>")
    assert all(name in page for name in octavo.Profile.load("profile.json"))


def test_compile_from_the_float_model_and_its_profile_computes_the_same(workplace: Path) -> None:
    assert command("compile m.onnx --profile profile.json -o direct.so") == 0
    assert command("run direct.so --input x.npz -o direct.npz") == 0
    assert np.array_equal(read("direct.npz")["logits"], read("y.npz")["logits"])
    model, profile = octavo.load("m.onnx"), octavo.Profile.load("profile.json")
    [x] = read("x.npz").values()
    assert np.array_equal(octavo.compile(model, profile=profile)(x[:1])["logits"], read("y.npz")["logits"][:1])
    assert octavo.explain(model, profile=profile) == octavo.explain(octavo.quantize(model, profile))


def test_options_reach_the_recipe_of_compile(workplace: Path) -> None:
    assert command("compile m.onnx --profile profile.json --activation int8 --exclude Gemm -o i8.so") == 0
    model, profile = octavo.load("m.onnx"), octavo.Profile.load("profile.json")
    recipe = octavo.Recipe(activation_dtype="int8", exclude=("Gemm",))
    built = octavo.explain(octavo.load_executable("i8.so"))
    assert [(op.op, op.integer) for op in built.ops] == [
        (op.op, op.integer) for op in octavo.explain(octavo.compile(model, profile=profile, recipe=recipe)).ops
    ]
    assert built != octavo.explain(model, profile=profile)


def test_a_float_model_is_downcast(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command("compile m.onnx --precision bfloat16 --profile profile.json -o half.so") == 0
    assert " ops bfloat16, " in capsys.readouterr().out
    assert command("run half.so --input x.npz -o half.npz") == 0
    exact = octavo.compile(octavo.load("m.onnx"))
    expected = np.concatenate([exact(sample[None])["logits"] for sample in read("x.npz")["x"]])
    error = np.abs(read("half.npz")["logits"] - expected).max() / np.abs(expected).max()
    assert 0 < error < 2**-7, "bfloat16 has 8 significant bits"
    capsys.readouterr()
    assert command("explain m.onnx --precision float16") == 0
    assert "| float16 |" in capsys.readouterr().out
    assert command("bench m.onnx --precision bfloat16 --seconds 0.05") == 0
    assert command("compile m.onnx --precision float16 --per-tensor -o half.so") == 2
    assert "--precision float16 quantizes nothing" in capsys.readouterr().err


def test_threads_and_isa_change_no_byte_of_the_result(workplace: Path) -> None:
    assert command("compile m.int8.onnx --target generic --threads 2 -o generic.so") == 0
    assert command("run generic.so --input x.npz -o generic.npz") == 0
    assert Path("generic.npz").read_bytes() == Path("y.npz").read_bytes()
    executable = octavo.load_executable("generic.so")
    assert executable.threads == 2
    assert {op.isa for op in octavo.explain(executable).ops if op.kernel} == {"generic"}


@pytest.mark.parametrize(
    ("options", "largest"),
    [
        ("--weight-bits 4", {7}),
        ("--weight-bits 5 --weight-bits stem/conv=8", {15, 127}),
        ("--weight-bits Gemm=3", {3, 127}),
        ("--weight-bits 4 --wide-weights 0.3", {7, 127}),
    ],
)
def test_weights_get_the_width_that_is_asked_for(workplace: Path, options: str, largest: set[int]) -> None:
    assert command(f"quantize m.onnx --profile profile.json --save-plan plan.json -o narrow.onnx {options}") == 0
    plan = octavo.QuantizationPlan.load("plan.json")
    assert {params.qmax for params in plan.weights.values()} == largest
    weights = [onnx.numpy_helper.to_array(entry) for entry in onnx.load("narrow.onnx").graph.initializer]
    narrow = [each.astype(np.int64) for each in weights if each.dtype.name in ("int4", "int8") and each.ndim > 1]
    assert {int(np.abs(each).max()) for each in narrow} == largest


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--weight-bits 9", "a whole number from 2 to 8"),
        ("--weight-bits stem/con=4", "did you mean stem/conv"),
        ("--wide-weights 2", "a share from 0 to 1, got 2.0"),
    ],
)
def test_a_width_that_cannot_be_is_an_error(
    workplace: Path, capsys: pytest.CaptureFixture[str], options: str, message: str
) -> None:
    assert command(f"quantize m.onnx --profile profile.json -o narrow.onnx {options}") == 1
    assert message in capsys.readouterr().err
    assert not Path("narrow.onnx").exists()


def test_the_recipe_reaches_the_model(workplace: Path) -> None:
    assert command("quantize m.onnx --profile profile.json -o i8.onnx --activation int8 --per-tensor") == 0
    graph = onnx.load("i8.onnx").graph
    constants = {entry.name: onnx.numpy_helper.to_array(entry) for entry in graph.initializer}
    activations = [node for node in graph.node if node.op_type == "QuantizeLinear"]
    assert activations
    assert {constants[node.input[2]].dtype for node in activations} == {np.dtype(np.int8)}
    assert all(constants[node.input[1]].size == 1 for node in graph.node if node.op_type == "DequantizeLinear")


def test_percentile_narrows_ranges(workplace: Path) -> None:
    def scales(path: str) -> float:
        graph = onnx.load(path).graph
        constants = {entry.name: onnx.numpy_helper.to_array(entry) for entry in graph.initializer}
        return sum(float(constants[node.input[1]]) for node in graph.node if node.op_type == "QuantizeLinear")

    spelled = ("--method percentile --percentile 99", "--method percentile:99", "--percentile 99")
    for number, options in enumerate(spelled):
        assert command(f"quantize m.onnx --profile profile.json -o p{number}.onnx {options}") == 0
    assert scales("p0.onnx") < 0.9 * scales("m.int8.onnx")
    assert scales("p0.onnx") == scales("p1.onnx") == scales("p2.onnx")


def test_an_exported_table_takes_a_range_estimator(workplace: Path) -> None:
    for name, options in (("all", ""), ("cut", "--method percentile:90"), ("short", "--percentile 90")):
        assert command(f"profile export profile.json --format ort-json -o {name} {options}") == 0
    assert Path("cut").read_bytes() == Path("short").read_bytes() != Path("all").read_bytes()


def test_excluded_ops_stay_float(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command("explain m.onnx --profile profile.json --exclude Gemm --json") == 0
    ops = json.loads(capsys.readouterr().out)["ops"]
    floats = [op for op in ops if not op["integer"] and op["macs"]]
    assert [op["macs"] for op in floats] == [320]
    assert floats[0]["reason"]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("compile m.onnx -o new.so --exclude Conv", "give --profile too"),
        ("explain m.onnx --method percentile", "give --profile too"),
        ("explain m.onnx --percentile 99", "give --profile too"),
        (
            "quantize m.onnx --profile profile.json -o new.onnx --method min-max --percentile 99",
            "--percentile goes with --method percentile, not with min_max; leave one out",
        ),
        ("profile m.onnx --data calib.npz -o new.json --ray --target cuda", "--ray spreads samples over CPUs; leave it out"),
    ],
)
def test_options_that_would_do_nothing_are_bad_usage(
    line: str, said: str, workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(line) == 2
    assert said in capsys.readouterr().err
    assert not list(workplace.glob("new.*"))


def test_an_executable_is_known_by_its_content(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("m.so").rename("renamed.bin")
    assert command("explain renamed.bin") == 0
    assert "ops integer" in capsys.readouterr().out


def test_explain_prints_each_op_and_a_summary(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shown: list[str] = []
    for source in ("m.int8.onnx", "m.so"):
        assert command(f"explain {finished / source}") == 0
        shown.append(capsys.readouterr().out)
    assert shown[0] == shown[1]
    interface, _, shown[0] = shown[0].partition("\n\n")
    assert [row.split() for row in interface.replace("|", " ").splitlines()[2:]] == [
        ["input", "pixels", "float32", "[1,1,8,8]"],
        ["output", "logits", "float32", "[1,10]"],
    ]
    lines = shown[0].splitlines()
    assert [title.strip() for title in lines[0].split("|")[1:-1]] == ["op", "tensor", "runs in", "kernel", "isa"]
    assert sum("| conv2d" in line for line in lines) == 2
    assert lines[-1].endswith("ops integer, 100.0% of MACs")


def test_explain_of_a_float_model_gives_reasons(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(f"explain {finished}/m.onnx --json") == 0
    explanation = json.loads(capsys.readouterr().out)
    assert explanation["summary"].startswith("0/")
    assert all(op["reason"] for op in explanation["ops"])
    assert explanation["inputs"] == [{"name": "pixels", "shape": [1, 1, 8, 8], "dtype": "float32"}]
    assert explanation["outputs"] == [{"name": "logits", "shape": [1, 10], "dtype": "float32"}]


def test_quantize_says_that_a_ratio_is_not_reached(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said: list[str] = []
    assert command("profile m.onnx --data calib.npz --keep-samples 16 -o kept.json") == 0
    for least in ("1", "200"):
        assert command(f"quantize m.onnx --profile kept.json --min-sqnr {least} -o q.onnx") == 0
        said.append(capsys.readouterr().out)
    assert "asks for" not in said[0]
    assert "less than the 200 dB that --min-sqnr asks for" in said[1]


def test_explain_of_a_float_model_says_once_that_it_is(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(f"explain {finished}/m.onnx") == 0
    shown = capsys.readouterr().out
    assert shown.count("the model is float") == 1
    assert "reason" not in shown
    explanation = octavo.explain(octavo.load(finished / "m.onnx"))
    assert str(explanation).count("the model is float") == 1
    assert str(explanation).startswith("takes pixels: float32 [1,1,8,8]\ngives logits: float32 [1,10]\n")


def step_of_logits(folder: Path) -> float:
    """Return what a step of the logits would be, had they 8 bits."""
    [logits] = octavo.load(folder / "m.onnx").output_ids
    seen = octavo.Profile.load(folder / "profile.json")[logits]
    return (max(seen.maximum, 0) - min(seen.minimum, 0)) / 255


def test_bench_prints_a_row_for_each_runtime_and_thread_count(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = str(finished / "m.int8.onnx")
    assert command(f"bench {model} --against litert,onnxruntime --threads 1,2 --seconds 0.05 --json") == 0
    report = json.loads(capsys.readouterr().out)
    assert [(row["runtime"], row["threads"]) for row in report["rows"]] == [
        (name, threads) for threads in (1, 2) for name in ("Octavo", "LiteRT", "ONNX Runtime")
    ]
    for row in report["rows"]:
        if row["runtime"] == "LiteRT":
            assert row["note"] == "reads no .onnx file"
            assert row["median_ms"] is None
        else:
            assert row["median_ms"] > 0
            assert row["ratio"] > 0
    errors = [row["max_abs_error"] for row in report["rows"] if row["runtime"] == "ONNX Runtime"]
    step = step_of_logits(finished)
    assert max(errors) < 2.5 * step, "the same quantized network, rounded in other places: two quantization steps at most"


def test_bench_times_layers_against_the_peak(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(f"bench {finished}/m.onnx --profile {finished}/profile.json --layers --json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["float_peak"] > 0
    assert any(layer["macs"] for layer in told["layers"])
    assert command(f"bench {finished}/m.onnx --layers --html {finished}/layers.html") == 0
    assert '"rows":[]' in (finished / "layers.html").read_text(encoding="utf-8")
    assert "of peak" in capsys.readouterr().out


def test_bench_quantizes_for_the_peers_too(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = "bench {0}/m.onnx --profile {0}/profile.json --against onnxruntime --seconds 0.05 --html {0}/bench.html"
    assert command(line.format(finished)) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("m.int8.onnx on ")
    assert "| ONNX Runtime |" in shown


def test_bench_reads_tflite(shared: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = str(shared / "models" / "tflite" / "autoencoder_ad01_int8.tflite")
    assert command(f"bench {model} --against litert,openvino --seconds 0.05 --json") == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["runtime"] for row in rows if row["median_ms"]] == ["Octavo", "LiteRT", "OpenVINO"]


def test_profile_of_some_tensors_tells_of_what_is_not_finite(
    finished: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(finished)
    samples = read("calib.npz")["x"][:20].copy()
    samples[17, 0, 3, 4] = np.nan
    np.savez("bad.npz", x=samples)
    try:
        assert command("profile m.onnx --data bad.npz -o some.json --tensors pixels --tensors Relu") == 0
        assert "pixels held 1 values that are NaN or infinite, the first in sample 17 at [0, 0, 3, 4]" in capsys.readouterr().out
        profile = octavo.Profile.load("some.json")
        assert {entry.op for entry in profile.values()} == {"", "Relu"}
    finally:
        for name in ("bad.npz", "some.json"):
            Path(name).unlink(missing_ok=True)


def test_trace_tells_a_story_and_dumps_the_ir(finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tensor = octavo.load(finished / "m.onnx").input_ids[0]
    folder = tmp_path / "ir"
    assert command(f"trace {finished}/m.onnx --tensor {tensor} --dump-ir {folder} --json") == 0
    story = json.loads(capsys.readouterr().out)["story"]
    assert (story[0]["pass"], story[0]["kind"]) == ("(source)", "kept")
    dumped = sorted(path.name for path in folder.iterdir())
    assert dumped[0] == "000_source.py"
    assert any(name.endswith("LegalizeOps.py") for name in dumped)
    assert str(tensor) in (folder / dumped[0]).read_text()
    assert (folder / dumped[-1]).read_text().startswith(f"# {tensor}: kept; held by {tensor}")
    assert command(f"trace {finished}/m.onnx --tensor {tensor} --dump-ir {tmp_path}/no/ir") == 1
    assert "there is no folder" in capsys.readouterr().err
    assert command(f"trace {finished}/m.onnx --tensor nothing") == 1
    assert "the model has no tensor 'nothing'" in capsys.readouterr().err


def test_trace_through_the_integer_kernels(finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = octavo.load(finished / "m.onnx")
    tensor = next(entry for entry in model.tensors.values() if entry.op == "Relu")
    profile = f"--profile {finished}/profile.json"
    line = f"trace {finished}/m.onnx --tensor {tensor.source_name} --pipeline octavo"
    assert command(f"{line} {profile} --dump-ir {tmp_path} --json") == 0
    story = json.loads(capsys.readouterr().out)["story"]
    assert [step["pass"] for step in story][1:4] == ["octavo.quantize", "octavo.outline_integer", "octavo.lower"]
    assert story[-1]["kind"] == "inside"
    last = max(tmp_path.iterdir()).read_text()
    assert f"# {tensor.id}: inside octavo_" in last
    assert "held by alloc" in last
    assert command(f"{line.replace('octavo', 'tvm')} {profile}") == 2
    assert "give --pipeline octavo" in capsys.readouterr().err


def test_tune_writes_what_compile_reads(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command("tune m.int8.onnx --seconds 0.5 -o tuning.json") == 0
    said = capsys.readouterr()
    assert "ms before" in said.out
    assert said.err == ""
    assert command("compile m.int8.onnx --tuning tuning.json -o tuned.so") == 0
    assert command("run tuned.so --input x.npz -o tuned.npz") == 0
    assert np.array_equal(read("tuned.npz")["logits"], read("y.npz")["logits"])
    capsys.readouterr()
    assert command("tune m.onnx --profile profile.json --seconds 0.1 -o tuning.json --json") == 0
    assert {"isa", "processor", "before_ms", "after_ms", "kernels"} < set(json.loads(capsys.readouterr().out))
