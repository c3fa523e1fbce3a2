"""Kernels in the cache of machine code: compiled once, found again, never taken for others, never used damaged."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from child_python import run_python
from octavo.compiler.backends.cuda import compiler
from octavo.compiler.backends.cuda.compiler import DEVICE, compile_kernels
from octavo.compiler.backends.cuda.isa import ISAS
from octavo.compiler.backends.cuda.kernels.move.copy import copy
from octavo.errors import CompileError

ISA = ISAS["cuda.sm_80"]
KERNELS = [copy(size, ISA) for size in (160, 320, 160)]


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """An empty cache of this test's own."""
    monkeypatch.setenv("OCTAVO_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "objects-2"


@pytest.fixture
def compilations(monkeypatch) -> list[str]:
    """The translation units that NVRTC gets."""
    seen: list[str] = []
    compiled = compiler._compiled
    compiler._release(ISA)

    def seen_and_compiled(text: str, *rest):
        seen.append(text)
        return compiled(text, *rest)

    monkeypatch.setattr(compiler, "_compiled", seen_and_compiled)
    return seen


def entries(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("*/*") if path.is_file())


def test_equal_kernels_are_compiled_once_and_found_again(folder, compilations) -> None:
    first = compile_kernels(KERNELS, ISA)
    assert len(first) == len(compilations) == len(entries(folder)) == 2
    assert all(usage.registers > 0 for code in first for usage in code.usage.values())
    again = [*compile_kernels(KERNELS[:1], ISA), *compile_kernels(KERNELS[1:2], ISA)]
    by_symbol = {symbol: code for code in first for symbol in code.usage}
    assert again == [by_symbol[kernel.symbol] for kernel in KERNELS[:2]]
    assert len(compilations) == 2


def test_nothing_but_the_answers_is_written_by_nvrtc() -> None:
    """In a process of its own: bytes of one are shared by all of it, and an empty log is one byte."""
    program = """
from octavo.compiler.backends.cuda import compiler
from octavo.compiler.backends.cuda.isa import ISAS
kept = [bytes([value]) for value in range(256)]
compiler._release(ISAS["cuda.sm_80"])
assert [each[0] for each in kept] == list(range(256)), [value for value, each in enumerate(kept) if each[0] != value]
assert " ".encode()[0] == 32
"""
    done = run_python(program)
    assert done.returncode == 0, done.stderr


def test_what_decides_machine_code_is_in_the_key(folder, compilations, monkeypatch, tmp_path) -> None:
    compile_kernels(KERNELS[:1], ISA)
    changed = tmp_path / "device"
    shutil.copytree(DEVICE, changed)
    with (changed / "base.cuh").open("a") as header:
        header.write("// changed\n")
    compile_kernels(KERNELS[:1], ISA, device=changed)
    compile_kernels(KERNELS[:1], ISAS["cuda.sm_90a"])
    monkeypatch.setattr(compiler, "_release", lambda isa: "another NVRTC")
    compile_kernels(KERNELS[:1], ISA)
    options = compiler._options
    monkeypatch.setattr(compiler, "_options", lambda arch: [*options(arch), b"--device-debug"])
    compile_kernels(KERNELS[:1], ISA)
    compile_kernels([replace(KERNELS[0], least_blocks=2)], ISA)
    # Beside them, what the first one for another ISA asked NVRTC for: its release.
    assert len([text for text in compilations if text]) == len(entries(folder)) == 6


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty"])
def test_a_damaged_entry_is_compiled_anew(folder, compilations, damage: str) -> None:
    expected = compile_kernels(KERNELS[:1], ISA)
    (path,) = entries(folder)
    good = path.read_bytes()
    path.write_bytes({"cut": good[:-9], "flipped": good[:-9] + bytes([good[-9] ^ 1]) + good[-8:], "empty": b""}[damage])
    assert compile_kernels(KERNELS[:1], ISA) == expected
    assert len(compilations) == 2
    assert path.read_bytes() == good


def test_without_a_cache_the_code_is_the_same(folder, compilations, monkeypatch) -> None:
    expected = compile_kernels(KERNELS, ISA)
    monkeypatch.setenv("OCTAVO_CACHE", "off")
    assert compile_kernels(KERNELS, ISA) == expected
    assert len(compilations) == 4


def test_a_kernel_that_is_rejected_is_not_kept(folder) -> None:
    with pytest.raises(CompileError, match=r"NVRTC rejects a kernel for cuda\.sm_80: .*error"):
        compile_kernels([KERNELS[0], replace(KERNELS[0], function="nothing")], ISA)
    assert len(entries(folder)) <= 1


def test_the_release_names_version_and_build() -> None:
    release = compiler._release(ISA)
    assert "Cuda compilation tools, release 12" in release
    assert "Compiler Build ID" in release
