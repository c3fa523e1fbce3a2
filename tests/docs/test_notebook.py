"""The notebook of the main path: its cells run, and show what it says."""

from __future__ import annotations

from pathlib import Path

import pytest
from pages import is_shown

import notebook


def test_the_cells_run_and_show_what_stands_beneath(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    count = 0
    for number, (cell, printed, value) in enumerate(notebook.executed(notebook.read()), start=1):
        kept, now = notebook.shown(cell), printed + value
        assert is_shown(kept, now), f"cell {number} shows\n{kept}\nwhere it gives\n{now}"
        assert is_shown(now, kept), f"cell {number} gives\n{now}\nwhere it shows\n{kept}"
        assert cell["execution_count"] == number
        count += bool(kept)
    assert count >= 7


def test_the_page_holds_every_cell() -> None:
    found = notebook.read()
    text = notebook.page(found)
    assert (found["nbformat"], found["nbformat_minor"]) == (4, 5)
    assert len({cell["id"] for cell in found["cells"]}) == len(found["cells"])
    for cell in found["cells"]:
        assert notebook.text_of(cell["source"]) in text
        assert cell["cell_type"] == "markdown" or notebook.shown(cell).rstrip() in text
