"""The tables of C libraries and of emulated machines: a small network's row of each, and what the checks do."""

from __future__ import annotations

from pathlib import Path

import pytest

import c_libraries
import emulated_models
import octavo
from missing import find_program, needs_programs

DSCNN = "tflite/dscnn_kws_int8.tflite"


@pytest.mark.parametrize("file", [DSCNN, "onnx/dscnn_kws_qoperator.onnx"])
def test_a_program_of_the_library_beside_a_peer_s(shared: Path, tmp_path: Path, file: str) -> None:
    row = c_libraries.measure(shared / "models" / file, tmp_path, rounds=1)
    assert (row.different, row.peer) == (0, "litert" if file == DSCNN else "onnxruntime")
    assert 0 < row.weights < row.library
    assert min(row.octavo_ms, row.peer_ms) > 0
    # The peer's program ran the model, too: its values are of the same size, and not all of them zero.
    ours, theirs = (tmp_path / "output").read_bytes(), (tmp_path / "theirs").read_bytes()
    assert len(ours) == len(theirs)
    assert any(theirs)
    assert row.model in c_libraries.table([row])


def test_many_calls_two_threads_and_valgrind(shared: Path, tmp_path: Path) -> None:
    find_program("valgrind")  # which may be being installed; it is asked for where it is there
    called, called_twice, *checked = c_libraries.check(octavo.load(shared / "models" / DSCNN), tmp_path, 200)
    assert (called, called_twice) == ("200 calls", "2 x 200 calls of two threads")
    needs_programs("valgrind")
    assert checked == ["3 calls under valgrind"]


@pytest.mark.usefixtures("shared")
def test_models_on_emulated_machines() -> None:
    tools = ("qemu-aarch64", "aarch64-linux-gnu-gcc", "qemu-riscv64", "riscv64-linux-gnu-gcc")
    needs_programs(*tools, installed_by="make emulation")
    rows = emulated_models.measure([DSCNN], ["neon", "riscv64"])
    assert [row.different for row in rows] == [{"C library": 0}] * 2
    assert [row.isas for row in rows] == [("arm.neon",), ("generic",)]
    assert " 0 of 12 |" in emulated_models.table(rows)
