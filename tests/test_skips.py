"""In CI a skip is a failure, but where the machine lacks an ISA or a device; a run ends with how many it lacked which for."""

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from child_python import run_python
from missing import find_program

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


RUN = """
import pytest
for ci in ("true", ""):
    os.environ["CI"] = ci
    print("pytest exits with", int(pytest.main(sys.argv[1:])), flush=True)
"""


def outcomes(folder: Path, **texts: str) -> Iterator[tuple[int, list[str]]]:
    """Run files of tests as ours are run, in CI and elsewhere; return pytest's exit status and what it printed, of each."""
    for name, text in texts.items():
        (folder / f"test_{name}.py").write_text(text)
    root = Path(__file__).resolve().parents[1]
    words = ("-p", "no:cacheprovider", "-p", "conftest", "-c", root / "pyproject.toml", "--continue-on-collection-errors", folder)
    paths = [str(root / "tests"), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"OCTAVO_TARGET": "generic", "PYTHONPATH": os.pathsep.join(paths)}
    done = run_python(f"import os{RUN}", *words, cwd=root, env=environment)
    assert done.returncode == 0, done.stderr
    lines: list[str] = []
    for line in done.stdout.splitlines():
        if line.startswith("pytest exits with "):
            yield int(line.split()[-1]), lines
            lines = []
        else:
            lines.append(line)


def test_in_ci_only_what_this_machine_lacks_is_skipped_and_it_is_counted(tmp_path: Path) -> None:
    """What is skipped otherwise fails: in a test, a fixture, a file, by a mark, for want of parameters, by an import."""
    in_ci, elsewhere = outcomes(tmp_path, lacking=LACKING, avoidable=AVOIDABLE, atomic_write=WHOLE_FILE)
    code, lines = in_ci
    assert code == 1, lines
    assert any("needs x86.avx512_vnni" in line for line in lines)
    assert lines[-1].startswith("2 failed, 1 passed, 4 skipped, 1 xfailed, 4 errors in "), "pytest's own line is the last"
    (said,) = [line for line in lines if line.startswith("tests that need an ISA or a device")]
    assert "1 a second ISA (1 skipped)" in said
    assert said.endswith("2 x86.avx512_vnni (2 skipped)")
    assert "gpu (1 skipped)" in said
    assert any("no no-such-program: make programs" in line for line in lines)

    code, lines = elsewhere
    assert code == 0, lines
    assert lines[-1].startswith("1 passed, 10 skipped, 1 xfailed in ")
    assert any("no no-such-program: make programs" in line for line in lines)


def test_a_program_that_is_being_installed_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "installing").touch()
    monkeypatch.setenv("OCTAVO_INSTALLING", str(tmp_path / "installing"))
    there: list[str] = []
    monkeypatch.setattr(time, "sleep", lambda _: (there and (tmp_path / "installing").unlink()) or there.append("b"))
    monkeypatch.setattr(shutil, "which", lambda name: name if name in there else None)
    assert find_program("a", "b") == "b"
    assert not (tmp_path / "installing").exists(), "one that is there may still lack what it needs"
