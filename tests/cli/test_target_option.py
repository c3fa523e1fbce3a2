"""--target: every command that lowers a model takes the same spellings, and refuses the same ones with the same words."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from octavo.cli.main import main
from octavo.target import OpSupport, TargetDescription

DENSE = TargetDescription(
    name="dense", ops=tuple(OpSupport(op=op, weights=("int8",)) for op in ("matmul", "quantize", "dequantize"))
)
COMMANDS = (
    "quantize m.onnx --profile profile.json -o new.onnx",
    "compile m.onnx --profile profile.json -o new.so",
    "explain m.onnx --profile profile.json",
    "bench m.onnx --profile profile.json --layers",
    "tune m.onnx --profile profile.json --seconds 0.01 -o t.json",
    "trace m.onnx --profile profile.json --pipeline octavo --tensor logits",
)


SPELLINGS = ("cpu", "generic", "llvm", "dense.json", "dense.json --target cpu")
SPELLED = [(line, SPELLINGS[(2 * number + i) % len(SPELLINGS)]) for number, line in enumerate(COMMANDS) for i in range(2)]
"""Two spellings for each command, each spelling for two commands or more: one function reads them for all."""


@pytest.mark.parametrize(("line", "target"), SPELLED)
def test_each_command_takes_each_spelling(line: str, target: str, workplace: Path) -> None:
    (workplace / "dense.json").write_text(json.dumps(DENSE.to_json()))
    assert main(shlex.split(f"{line} --target {target}")) == 0


def test_bench_passes_the_target_on(workplace: Path) -> None:
    assert main(shlex.split("bench m.int8.onnx --seconds 0.01 --target generic")) == 0


@pytest.mark.parametrize("line", [*COMMANDS, "bench m.onnx --profile profile.json"])
def test_each_command_refuses_with_the_same_words(line: str, workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*shlex.split(line), "--target", "abacus"]) == 1
    assert capsys.readouterr().err.startswith("octavo: error: unknown target 'abacus': give 'cpu', an ISA (x86.avx512_vnni, ")


def test_the_description_decides_what_is_integer(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (workplace / "dense.json").write_text(json.dumps(DENSE.to_json()))
    assert main(shlex.split("explain m.onnx --profile profile.json --json --target dense.json")) == 0
    ops = json.loads(capsys.readouterr().out)["ops"]
    assert {op["op"] for op in ops if op["macs"] and op["integer"]} <= {"matmul"}
    assert any(op["macs"] and not op["integer"] for op in ops), "convolutions stay float"


def test_each_op_goes_to_the_first_target_that_takes_it(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fused = TargetDescription(name="dense", ops=(replace(DENSE.ops[0], fusions=("bias", "nn.relu")), *DENSE.ops[1:]))
    (workplace / "dense.json").write_text(json.dumps(fused.to_json()))
    explain = "explain m.onnx --profile profile.json --json --target dense.json --target cpu"
    assert main(shlex.split(explain)) == 0
    ops = [op for op in json.loads(capsys.readouterr().out)["ops"] if op["macs"]]
    assert {(op["op"], op["backend"]) for op in ops} == {("matmul", "dense"), ("conv2d", "")}
    assert all(op["integer"] for op in ops)
    assert main(shlex.split("explain m.onnx --profile profile.json --target cpu --target dense.json")) == 1
    assert "targets[0]: expected a Backend, a TargetDescription or the path of one" in capsys.readouterr().err
