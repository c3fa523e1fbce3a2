"""docs/vendors.md runs as it is written: its JSON saved, its blocks of Python one after the other."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[1] / "docs" / "vendors.md"


def test_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    text = PAGE.read_text(encoding="utf-8")
    (description,) = re.findall(r"^```json\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    (tmp_path / "my_npu.json").write_text(description, encoding="utf-8")
    (tmp_path / "page.py").write_text(
        "\n".join(re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)), encoding="utf-8"
    )
    monkeypatch.chdir(tmp_path)
    runpy.run_path("page.py", run_name="__main__")
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line.startswith(("conv2d", "nn.conv2d"))], lines
    assert lines[-1] == "[('conv2d', 'my_npu'), ('conv2d', 'my_npu')]"
