"""docs/plan.md: its code runs, and it names every field of a plan's file."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import numpy as np
import pytest

import octavo
from nets import residual_net
from octavo.cli.main import main
from octavo.export.encodings import write_encodings
from octavo.numerics import QuantParams
from octavo.target import OpSupport
from small_file import digits, write_small_net

PAGE = (Path(__file__).resolve().parents[1] / "docs" / "plan.md").read_text(encoding="utf-8")
DENSE = ("matmul", "quantize", "dequantize")
NPU = Path(__file__).resolve().parents[1] / "examples" / "toynpu" / "toynpu.json"


def test_its_code_runs_and_its_tables_name_every_field(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    model, npu = residual_net(), octavo.TargetDescription.load(NPU)
    profile = octavo.profile(model, [rng.normal(size=(1, 3, 8, 8)).astype(np.float32) for _ in range(4)])
    write_encodings(octavo.quantize(model, profile, target=npu).plan, "aimet.encodings", "aimet-1.0.0")
    scope = {"octavo": octavo, "np": np, "QuantParams": QuantParams, "model": model, "profile": profile, "npu": npu}
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 3
    for block in blocks:
        exec(compile(block, "docs/plan.md", "exec"), scope)
    assert scope["again"].fingerprint

    data = json.loads((tmp_path / "plan.json").read_text())
    named = set(re.findall(r"`(\w+)`", "\n".join(line for line in PAGE.splitlines() if line.startswith("|"))))
    tensor, layer = next(iter(data["activations"].values())), data["layers"][0]
    assert {*data, *tensor, *layer, *data["derived"], "activation_dtype", "exclude", "float_ops"} <= named


def test_its_commands_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    write_small_net(Path("m.onnx"))
    model = octavo.load("m.onnx")
    profile = octavo.profile(model, [digits(0, 8)])
    profile.save("profile.json")
    write_encodings(octavo.quantize(model, profile).plan, "aimet.encodings", "aimet-1.0.0")
    dense = octavo.TargetDescription(name="npu", ops=tuple(OpSupport(op=op, weights=("int8",)) for op in DENSE))
    Path("npu.json").write_text(json.dumps(dense.to_json()), encoding="utf-8")
    lines = [line for block in re.findall(r"^```bash\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL) for line in block.splitlines()]
    assert len(lines) == 5
    for line in lines:
        assert main(shlex.split(line)[1:]) == 0, capsys.readouterr().err
