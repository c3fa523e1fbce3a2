"""The page for those who debug a TVM pipeline and quantize nothing is one program: it runs and shows what it says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[3] / "docs" / "tvm_pipelines.md"


def test_the_page_runs(capsys: pytest.CaptureFixture[str]) -> None:
    code = "\n\n".join(re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL))
    names: dict[str, object] = {}
    exec(compile(code, "docs/tvm_pipelines.md", "exec"), names)
    printed = capsys.readouterr().out
    assert "FoldBatchnormToConv2D | rescaled; scaled along axis 1 by 8 factors" in printed
    assert "active was lost by DropRelu" in printed
    assert not re.search(r"\bFalse\b", printed)
    [ratio] = re.findall(r"(\S+) dB", printed)
    assert float(ratio) > 100  # the layout changed, and with it the order of sums, nothing else
    assert not re.search(r"quanti[sz]|scale\b|zero_point", code)
