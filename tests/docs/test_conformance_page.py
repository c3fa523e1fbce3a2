"""docs/conformance.md: its commands and its code run, with hardware that has one op."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pages import DOCS, run

from octavo.target import OpSupport, TargetDescription

NPU = TargetDescription(name="npu", ops=(OpSupport(op="reshape", activations=("int8",), same_params=True),))
SIMULATOR = """\
#!{python}
import json, sys
import numpy as np
case, output = sys.argv[1:]
with np.load(case + "/inputs.npz") as inputs:
    np.savez(output, y=inputs["x"].reshape(json.load(open(case + "/case.json"))["outputs"]["y"]["shape"]))
"""


def my_npu(description: Mapping[str, Any], _: object, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {"y": inputs["x"].reshape(description["outputs"]["y"]["shape"])}


def test_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("my-npu.json").write_text(json.dumps(NPU.to_json()), encoding="utf-8")
    simulator = Path("simulator")
    simulator.write_text(SIMULATOR.format(python=sys.executable), encoding="utf-8")
    simulator.chmod(0o755)
    list(run(DOCS / "conformance.md", my_npu=my_npu))
    assert Path("report.html").exists()
