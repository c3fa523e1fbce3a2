"""A test that needs an ISA is skipped where it is missing, and the run's closing lines count it."""

import os
from pathlib import Path

from child_python import run_python

TESTS = """
import pytest


@pytest.mark.needs_isa("x86.avx512_vnni")
@pytest.mark.parametrize("number", [0, 1])
def test_wide(number):
    raise AssertionError("it ran")


@pytest.mark.needs_isa("generic")
def test_anywhere():
    pass
"""


def test_a_run_ends_with_what_this_machine_could_not_run(tmp_path: Path) -> None:
    (tmp_path / "test_isas.py").write_text(TESTS)
    root = Path(__file__).resolve().parents[1]
    words = ("-p", "no:cacheprovider", "-p", "conftest", "-c", root / "pyproject.toml", tmp_path / "test_isas.py")
    paths = [str(root / "tests"), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"OCTAVO_TARGET": "generic", "PYTHONPATH": os.pathsep.join(paths)}
    done = run_python("import pytest; sys.exit(pytest.main(sys.argv[1:]))", *words, cwd=root, env=environment)
    assert done.returncode == 0, done.stdout
    assert "needs x86.avx512_vnni" in done.stdout
    *_, last = done.stdout.splitlines()
    assert last.startswith("1 passed, 2 skipped"), "pytest's own line is the last"
    (said,) = [line for line in done.stdout.splitlines() if line.startswith("tests that need an ISA")]
    assert said.endswith(": 2 x86.avx512_vnni (2 skipped)")
