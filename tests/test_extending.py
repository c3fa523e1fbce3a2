"""The examples of docs/extending.md: each patch applied to a copy of the source, and what the page then runs."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from child_python import run_python

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")


def section(title: str) -> str:
    return PAGE.split(f"## {title}\n")[1].split("\n## ")[0]


def block(text: str, language: str) -> str:
    found = re.search(rf"```{language}\n(.*?)```", text, re.DOTALL)
    assert found is not None, f"the section shows {language}"
    return found[1]


def run(program: str, source: Path) -> list[str]:
    environment = {**os.environ, "PYTHONPATH": str(source)}
    # From a file: TVM's parser reads the source of the module that a decorator stands on.
    path = source / "program.py"
    path.write_text(program, encoding="utf-8")
    done = run_python("import runpy; runpy.run_path(sys.argv[1], run_name='__main__')", path, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize(
    ("title", "files", "before", "after"),
    [
        (
            "Add an elementwise op",
            {"src/octavo/numerics/floats/elementwise.py"},
            ["0/1 ops integer, 0.0% of MACs", "True"],
            ["1/1 ops integer, 0.0% of MACs", "True"],
        ),
        (
            "Add a pass",
            {"src/octavo/partition/cancel_transposes.py", "src/octavo/partition/pipeline.py"},
            ["decompose_batch_norm", "['move', 'move', 'lookup']"],
            ["cancel_transposes", "['lookup']"],
        ),
        (
            "Add an instruction set",
            {"src/octavo/backends/cpu/kernels/isa.py"},
            ["('generic',)", "generic True"],
            ["('riscv.v', 'generic')", "riscv.v True"],
        ),
    ],
)
def test_a_patch_of_the_page_does_what_the_page_says(
    tmp_path: Path, title: str, files: set[str], before: list[str], after: list[str]
) -> None:
    text = section(title)
    patch = tmp_path / "example.patch"
    patch.write_text(block(text, "diff"), encoding="utf-8")
    assert {line.removeprefix("+++ b/") for line in patch.read_text().splitlines() if line.startswith("+++ ")} == files
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("*.egg-info"))  # with what Python compiled
    assert run(block(text, "python"), tmp_path / "src") == before
    subprocess.run(["git", "apply", "--unsafe-paths", f"--directory={tmp_path}", str(patch)], cwd=tmp_path, check=True)
    assert run(block(text, "python"), tmp_path / "src") == after


def test_the_page_lists_what_each_example_touches() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("| ")]
    for title in ("elementwise op", "range estimator", "pass", "instruction set", "back end"):
        assert any(title in row for row in rows)
        assert re.search(rf"^## Add an? {title}$", PAGE, re.MULTILINE)
