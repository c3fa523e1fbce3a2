"""docs/howto/hugging_face.md: its code exports BERT and LLaMA, quantizes them and writes with the second in a session."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
from pages import DOCS, blocks


def test_hugging_face_md_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for package in ("torch", "onnxscript", "transformers"):
        pytest.importorskip(package, reason="needs PyTorch and transformers: make torch")
    monkeypatch.chdir(tmp_path)
    capsys.readouterr()
    for block in blocks(DOCS / "howto/hugging_face.md"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PyTorch's exporter tells of its own code
            exec(compile(block.text, "docs/howto/hugging_face.md", "exec"), {"__name__": "page"})
    printed = capsys.readouterr().out.splitlines()
    assert [line for line in printed if line in ("(2, 2)", "20")] == ["(2, 2)", "20"]
