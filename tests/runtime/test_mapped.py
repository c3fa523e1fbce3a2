"""Large files are mapped: constants lie in the file's own pages, of one executable and of several in a file."""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import octavo
from nets import residual_net
from octavo.compiler.backends.cpu.kernels import PORTABLE_TARGETS
from octavo.errors import ExecutableError
from octavo.export.multiversion import save_versions
from octavo.ir.graph.inputs import random_inputs
from octavo.runtime import file as executable_file
from octavo.runtime import mapped


@pytest.fixture
def mapping(monkeypatch: pytest.MonkeyPatch) -> None:
    """Map files of any size."""
    monkeypatch.setattr(mapped, "MAPPED_BYTES", 1)
    monkeypatch.setattr(executable_file, "MAPPED_BYTES", 1)


@pytest.fixture(scope="module")
def compiled() -> octavo.Executable:
    return octavo.compile(residual_net(), target=PORTABLE_TARGETS[-1])


@pytest.fixture(scope="module")
def inputs() -> dict[str, Any]:
    return random_inputs(residual_net())


def is_mapped(executable: octavo.Executable) -> bool:
    array: Any = executable.code.constants
    while isinstance(array, np.ndarray):
        array = array.base
    return isinstance(getattr(array, "obj", array), mmap.mmap)


@pytest.mark.needs_isa("x86.avx2")
@pytest.mark.usefixtures("mapping")
@pytest.mark.parametrize("several", [False, True])
def test_constants_stay_in_the_file(compiled: octavo.Executable, inputs: dict[str, Any], tmp_path: Path, several: bool) -> None:
    path = tmp_path / "m.so"
    if several:
        save_versions([compiled, compiled], path)
    else:
        compiled.save(path)
    loaded = octavo.Executable.load(path)
    assert is_mapped(loaded)
    assert mapped.can_share(loaded.code.constants)
    np.testing.assert_array_equal(*loaded(inputs).values(), *compiled(inputs).values())
    path.unlink()  # the file stays until nobody maps it
    np.testing.assert_array_equal(*loaded(inputs).values(), *compiled(inputs).values())


@pytest.mark.usefixtures("mapping")
def test_code_and_description_are_still_checked(compiled: octavo.Executable, tmp_path: Path) -> None:
    path = tmp_path / "m.so"
    compiled.save(path)
    content = path.read_bytes()
    for place in (100, len(content) - 200):
        changed = bytearray(content)
        changed[place] ^= 1
        path.write_bytes(changed)
        with pytest.raises(ExecutableError, match="checksum"):
            octavo.Executable.load(path)
    path.write_bytes(content[:4000] + content[4096:])
    with pytest.raises(ExecutableError, match="checksum"):
        octavo.Executable.load(path)


def test_small_files_are_read(compiled: octavo.Executable, tmp_path: Path) -> None:
    compiled.save(tmp_path / "m.so")
    assert not is_mapped(octavo.Executable.load(tmp_path / "m.so"))


def test_constants_start_at_a_page(compiled: octavo.Executable, tmp_path: Path) -> None:
    compiled.save(tmp_path / "m.so")
    assert executable_file.read_executable(tmp_path / "m.so").library % mmap.PAGESIZE == 0


def test_a_file_of_another_version_says_so(compiled: octavo.Executable, tmp_path: Path) -> None:
    path = tmp_path / "m.so"
    compiled.save(path)
    path.write_bytes(path.read_bytes()[:-16] + b"OCTAVO-EXE-0002\n")
    with pytest.raises(ExecutableError, match=r"m\.so: executable file 0002, this version reads 0003; recompile$"):
        octavo.Executable.load(path)


@pytest.mark.usefixtures("mapping")
def test_bytes_at_any_address_become_ones_that_tensors_share(tmp_path: Path) -> None:
    data = np.random.default_rng(0).integers(0, 256, 40_000).astype(np.uint8)
    (tmp_path / "x").write_bytes(data.tobytes())
    with (tmp_path / "x").open("rb") as opened:
        contents = mapped.contents(opened)
    assert isinstance(contents, mmap.mmap)
    for start in (0, 1, 64, 4096, 4100):
        values = mapped.MappedBytes(contents, start, 30_000)
        copied = values.align(64)
        np.testing.assert_array_equal(copied, data[start : start + 30_000])
        assert mapped.can_share(copied)
        assert values.align(64) is copied
    np.testing.assert_array_equal(np.frombuffer(contents, np.uint8), data)  # pages that were given back are read again


def test_pages_of_files_go_once_many_were_read(monkeypatch: pytest.MonkeyPatch) -> None:
    happened: list[str] = []
    monkeypatch.setattr(mapped, "MAPPED_BYTES", 100)
    monkeypatch.setattr(mapped, "forget_pages", lambda: happened.append("forgotten"))
    pages = mapped.Pages()
    for _ in range(5):
        pages.read(40)
        happened.append("read")
    assert happened == ["read", "read", "forgotten", "read", "read", "read"]
