"""Plans and encodings on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import octavo
from octavo.cli.main import main


def command(line: str) -> int:
    return main(line.split())


def test_a_plan_gives_the_same_file_without_the_profile(workplace: Path) -> None:
    assert command("quantize m.onnx --profile profile.json --save-plan plan.json -o first.onnx") == 0
    Path("profile.json").unlink()
    assert command("quantize m.onnx --plan plan.json --save-plan again.json -o second.onnx") == 0
    assert Path("first.onnx").read_bytes() == Path("second.onnx").read_bytes() == Path("m.int8.onnx").read_bytes()
    assert Path("plan.json").read_bytes() == Path("again.json").read_bytes()
    assert command("compile m.onnx --plan plan.json -o plan.so") == 0
    assert command("run plan.so --input x.npz -o plan.npz") == 0
    assert Path("plan.npz").read_bytes() == Path("y.npz").read_bytes()


def test_an_edited_plan_reaches_every_command(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command("quantize m.onnx --profile profile.json --save-plan plan.json -o first.onnx") == 0
    data = json.loads(Path("plan.json").read_text())
    data["activations"]["pixels"]["scale"] = 0.25
    data["layers"] = [layer for layer in data["layers"] if layer["output"] != "block_relu"]
    data["float_ops"].append({"op": "add", "tensor": "block_relu", "reason": "it has a core of its own"})
    Path("plan.json").write_text(json.dumps(data))
    assert command("quantize m.onnx --plan plan.json -o second.onnx") == 1
    assert (
        "block_add is no layer's and cannot stay float: what it reads and what reads it is quantized" in capsys.readouterr().err
    )
    data["layers"] = [layer for layer in data["layers"] if layer["output"] != "head_pool"]
    Path("plan.json").write_text(json.dumps(data))
    assert command("quantize m.onnx --plan plan.json --save-plan again.json -o second.onnx") == 0
    assert octavo.QuantizationPlan.load("again.json").activations[octavo.load("m.onnx").input_ids[0]].to_json()["scale"] == 0.25
    capsys.readouterr()
    assert command("explain m.onnx --plan plan.json") == 0
    assert "it has a core of its own" in capsys.readouterr().out


def test_encodings_come_in_and_go_out(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command("quantize m.onnx --profile profile.json --save-plan plan.json --save-encodings enc.json -o first.onnx") == 0
    data = json.loads(Path("enc.json").read_text())
    assert data["version"] == "1.0.0"
    data["activation_encodings"][0]["scale"] = [0.015625]
    data["activation_encodings"].append({**data["activation_encodings"][0], "name": "stranger"})
    del data["param_encodings"][0]
    Path("enc.json").write_text(json.dumps(data))
    capsys.readouterr()
    assert command("quantize m.onnx --plan plan.json --encodings enc.json --save-plan again.json -o second.onnx") == 0
    said = capsys.readouterr().err
    assert "enc.json: not taken: stranger: the plan gives no parameters to a tensor of this name" in said
    assert "enc.json: says nothing of 1 tensors: stem_conv_weight" in said
    before, after = (octavo.QuantizationPlan.load(name) for name in ("plan.json", "again.json"))
    assert {key for key in before.activations if before.activations[key] != after.activations[key]} == {"pixels"}
    assert command("quantize m.onnx --plan plan.json --save-encodings t.cache --encodings-format tensorrt -o third.onnx") == 0
    assert Path("t.cache").read_text().startswith("TRT-")
    assert "t.cache: 3 weights have no place there" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        ("quantize m.onnx -o new.onnx", 2, "needs --profile FILE, which `octavo profile` writes, --data FILE"),
        ("quantize m.onnx --profile profile.json --plan profile.json -o new.onnx", 2, "--plan says all"),
        ("quantize m.onnx --plan profile.json --per-tensor -o new.onnx", 2, "--plan says all"),
        ("compile m.onnx --plan profile.json --precision float16 -o new.so", 2, "--plan says all"),
        ("quantize m.onnx --plan profile.json -o new.onnx", 1, "profile.json: not a valid plan: it has no"),
        ("quantize m.onnx --plan none.json -o new.onnx", 1, "none.json: cannot read the plan: No such file"),
        ("quantize m.onnx --profile profile.json --save-plan new.onnx -o new.onnx", 2, "new.onnx is to be written twice"),
        ("quantize m.onnx --profile profile.json --save-plan profile.json -o new.onnx", 1, "it is an input of this command"),
        ("quantize m.onnx --profile profile.json --encodings-format tensorrt -o new.onnx", 2, "--save-encodings FILE"),
        ("quantize m.onnx --profile profile.json --encodings m.onnx -o new.onnx", 1, "m.onnx: "),
    ],
)
def test_what_makes_no_sense_is_one_line_and_no_file(
    line: str, code: int, said: str, workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(line) == code
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert not list(workplace.glob("new.*"))
