"""The notebook of the main path, docs/tutorials/main_path.ipynb: runs its cells, keeps what they print, shows it as a page.

    python benchmarks/notebook.py

Cells run here, one after the other in one namespace, as Jupyter would run them: no Jupyter is needed, and a test runs the same.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

NOTEBOOK = Path(__file__).resolve().parents[1] / "docs" / "tutorials" / "main_path.ipynb"
Cell = dict[str, Any]


def read(path: Path = NOTEBOOK) -> dict[str, Any]:
    """Return a notebook, nbformat 4."""
    return json.loads(path.read_text(encoding="utf-8"))


def text_of(lines: list[str] | str) -> str:
    """Return what a notebook keeps as a list of lines, or as one string."""
    return lines if isinstance(lines, str) else "".join(lines)


def shown(cell: Cell) -> str:
    """Return the text that a cell shows: what it printed, then the value of its last line."""
    texts = [output["text"] if output["output_type"] == "stream" else output["data"]["text/plain"] for output in cell["outputs"]]
    return "".join(map(text_of, texts))


def executed(notebook: dict[str, Any]) -> Iterator[tuple[Cell, str, str]]:
    """Run the cells in the current folder; yield each cell of code, what it printed, and its last line's value, if it is one."""
    names: dict[str, Any] = {"__name__": "notebook"}
    for cell in notebook["cells"]:
        if cell["cell_type"] != "code":
            continue
        tree = ast.parse(text_of(cell["source"]))
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        with contextlib.redirect_stdout(io.StringIO()) as out:
            exec(compile(tree, "cell", "exec"), names)
            value = None if last is None else eval(compile(ast.Expression(last.value), "cell", "eval"), names)
        yield cell, out.getvalue(), "" if value is None else repr(value)


def outputs(count: int, printed: str, value: str) -> list[dict[str, Any]]:
    """Return what a cell shows, as a notebook keeps it."""
    data = {"text/plain": value.splitlines(keepends=True)}
    stream = {"output_type": "stream", "name": "stdout", "text": printed.splitlines(keepends=True)}
    result = {"output_type": "execute_result", "execution_count": count, "metadata": {}, "data": data}
    return [*([stream] if printed else []), *([result] if value else [])]


def page(notebook: dict[str, Any]) -> str:
    """Return the notebook as MyST Markdown: cells of code with what they show beneath."""
    parts: list[str] = []
    for cell in notebook["cells"]:
        source = text_of(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"```python\n{source}\n```")
        if shown(cell):
            parts.append(f"```text\n{shown(cell).rstrip()}\n```")
    return "\n\n".join(parts) + "\n"


def main() -> int:
    notebook = read()
    with tempfile.TemporaryDirectory() as folder:
        here = Path.cwd()
        os.chdir(folder)
        try:
            for count, (cell, printed, value) in enumerate(executed(notebook), start=1):
                cell["execution_count"] = count
                cell["outputs"] = outputs(count, printed, value)
        finally:
            os.chdir(here)
    NOTEBOOK.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
