"""The examples of docs/extending.md: each patch applied to a copy of the source, and what the page then runs."""

from __future__ import annotations

import contextlib
import io
import os
import re
import runpy
import shutil
import subprocess
from pathlib import Path

from child_python import run_python

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")


def section(title: str) -> str:
    return PAGE.split(f"## {title}\n")[1].split("\n## ")[0]


def block(text: str, language: str) -> str:
    found = re.search(rf"```{language}\n(.*?)```", text, re.DOTALL)
    assert found is not None, f"the section shows {language}"
    return found[1]


EXAMPLES: dict[str, tuple[set[str], list[str], list[str]]] = {
    "Add an elementwise op": (
        {"src/octavo/numerics/floats/elementwise.py"},
        ["0/1 ops integer, 0.0% of MACs", "True"],
        ["1/1 ops integer, 0.0% of MACs", "True"],
    ),
    "Add a pass": (
        {"src/octavo/compiler/partition/cancel_transposes.py", "src/octavo/compiler/partition/pipeline.py"},
        ["decompose_batch_norm", "['move', 'move', 'lookup']"],
        ["cancel_transposes", "['lookup']"],
    ),
    "Add an instruction set": (
        {"src/octavo/compiler/backends/cpu/kernels/language/isa.py"},
        ["('generic',)", "generic True"],
        ["('riscv.v', 'generic')", "riscv.v True"],
    ),
}
"""Title of each example with a patch: the files that it touches, what the example's program prints before and after."""

RUN = """
import runpy
for path in sys.argv[1:]:
    print(path, flush=True)
    runpy.run_path(path, run_name='__main__')
"""


def programs(folder: Path) -> dict[str, str]:
    """Write the programs of all examples; return the title of each by its path."""
    paths: dict[str, str] = {}
    for number, title in enumerate(EXAMPLES):
        # From files: TVM's parser reads the source of the module that a decorator stands on.
        path = folder / f"program{number}.py"
        path.write_text(block(section(title), "python"), encoding="utf-8")
        paths[str(path)] = title
    return paths


def before(folder: Path) -> dict[str, list[str]]:
    """Run the programs of all examples here, with this source; return what each prints."""
    printed: dict[str, list[str]] = {}
    for path, title in programs(folder).items():
        with contextlib.redirect_stdout(io.StringIO()) as out:
            runpy.run_path(path, run_name="__main__")
        printed[title] = out.getvalue().splitlines()
    return printed


def after(source: Path) -> dict[str, list[str]]:
    """Run the programs of all examples in one process with that source; return what each prints."""
    paths = programs(source)
    done = run_python(RUN, *paths, env={**os.environ, "PYTHONPATH": str(source)})
    assert done.returncode == 0, done.stderr
    printed: dict[str, list[str]] = {}
    for line in done.stdout.splitlines():
        if line in paths:
            lines = printed[paths[line]] = []
        else:
            lines.append(line)
    return printed


def test_the_patches_of_the_page_do_what_the_page_says(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("*.egg-info"))  # with what Python compiled
    assert before(tmp_path) == {title: printed for title, (_, printed, _) in EXAMPLES.items()}
    patch = tmp_path / "example.patch"
    for title, (files, _, _) in EXAMPLES.items():
        patch.write_text(block(section(title), "diff"), encoding="utf-8")
        assert {line.removeprefix("+++ b/") for line in patch.read_text().splitlines() if line.startswith("+++ ")} == files
        subprocess.run(["git", "apply", "--unsafe-paths", f"--directory={tmp_path}", str(patch)], cwd=tmp_path, check=True)
    assert after(tmp_path / "src") == {title: printed for title, (_, _, printed) in EXAMPLES.items()}


def test_the_page_lists_what_each_example_touches() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("| ")]
    for title in ("elementwise op", "range estimator", "step of quantizing", "pass", "instruction set", "back end"):
        assert any(title in row for row in rows)
        assert re.search(rf"^## Add an? {title}$", PAGE, re.MULTILINE)
