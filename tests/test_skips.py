"""In CI a skip is a failure, but where the machine lacks an ISA or a device; a run ends with how many it lacked which for."""

import os
from pathlib import Path

import pytest

from child_python import run_python

LACKING = """
import pytest
from missing import MachineLacks

@pytest.mark.needs_isa("x86.avx512_vnni")
@pytest.mark.parametrize("number", [0, 1])
def test_wide(number):
    raise AssertionError("it ran")

@pytest.mark.needs_isa("generic")
def test_anywhere():
    pass

@pytest.mark.needs_device("gpu")
@pytest.mark.needs_device("no gpu")
def test_gpu():
    raise AssertionError("it ran")

def test_found_out_later():
    raise MachineLacks("a second ISA")

@pytest.mark.xfail(raises=AssertionError)
def test_known():
    raise AssertionError("as is known")
"""

AVOIDABLE = """
import pytest
from missing import needs_programs

@pytest.fixture
def asleep():
    pytest.skip("from a fixture")

def test_program():
    needs_programs("gcc", "no-such-program")

def test_fixture(asleep):
    pass

@pytest.mark.skipif(True, reason="by a mark")
def test_mark():
    pass

@pytest.mark.parametrize("number", [])
def test_of_nothing(number):
    pass

def test_module():
    pytest.importorskip("no_such_module")
"""

WHOLE_FILE = 'import pytest\npytest.importorskip("no_such_module")\n'


def outcome(folder: Path, ci: str, **texts: str) -> tuple[int, list[str]]:
    """Run files of tests as ours are run; return pytest's exit status and what it printed."""
    for name, text in texts.items():
        (folder / f"test_{name}.py").write_text(text)
    root = Path(__file__).resolve().parents[1]
    words = ("-p", "no:cacheprovider", "-p", "conftest", "-c", root / "pyproject.toml", "--continue-on-collection-errors", folder)
    paths = [str(root / "tests"), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"OCTAVO_TARGET": "generic", "CI": ci, "PYTHONPATH": os.pathsep.join(paths)}
    done = run_python("import pytest; sys.exit(pytest.main(sys.argv[1:]))", *words, cwd=root, env=environment)
    return done.returncode, done.stdout.splitlines()


def test_what_this_machine_lacks_is_skipped_in_ci_and_counted(tmp_path: Path) -> None:
    code, lines = outcome(tmp_path, "true", lacking=LACKING)
    assert code == 0, lines
    assert any("needs x86.avx512_vnni" in line for line in lines)
    assert lines[-1].startswith("1 passed, 4 skipped, 1 xfailed"), "pytest's own line is the last"
    (said,) = [line for line in lines if line.startswith("tests that need an ISA or a device")]
    assert "1 a second ISA (1 skipped)" in said
    assert said.endswith("2 x86.avx512_vnni (2 skipped)")
    assert "gpu (1 skipped)" in said


@pytest.mark.parametrize(("ci", "told"), [("", "6 skipped in "), ("true", "2 failed, 4 errors in ")])
def test_what_could_be_installed_is_skipped_elsewhere_and_fails_in_ci(tmp_path: Path, ci: str, told: str) -> None:
    """By `pytest.skip` in a test or a fixture, by a mark, for want of parameters, by `importorskip` in a test or a file."""
    code, lines = outcome(tmp_path, ci, avoidable=AVOIDABLE, atomic_write=WHOLE_FILE)
    assert code == bool(ci), lines
    assert lines[-1].startswith(told)
    assert any("no no-such-program: make programs" in line for line in lines)
