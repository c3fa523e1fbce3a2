"""Runs kernels for a machine that QEMU emulates against their oracles, bit for bit, through the C program `run_kernels.c`.

A machine needs QEMU's user mode and a cross compiler, which `make test-arm` installs; without them its tests are skipped.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import tvm
from tvm_ffi import StructuralKey

import octavo
from octavo.build import llvm_module
from octavo.build.file import read_executable
from octavo.graph.kernel_attributes import KERNEL_ATTR

PROGRAM = Path(__file__).parent / "run_kernels.c"
GUARD, FILLER = 256, 77


@dataclass(frozen=True, kw_only=True, slots=True)
class Emulated:
    """A CPU: what LLVM and QEMU call it."""

    emulator: str
    compiler: str
    target: Mapping[str, object]
    cpu: str

    @property
    def llvm(self) -> tvm.target.Target:
        """The target of its code."""
        return tvm.target.Target({"kind": "llvm", **self.target})

    def skip_unless_installed(self) -> None:
        """Skip the test where a tool is missing."""
        missing = [tool for tool in (self.emulator, self.compiler) if shutil.which(tool) is None]
        if missing:
            pytest.skip(f"needs {' and '.join(missing)}: make test-arm installs them")


def aarch64(cpu: str, **target: object) -> Emulated:
    """An ARM64 machine."""
    return Emulated(
        emulator="qemu-aarch64",
        compiler="aarch64-linux-gnu-gcc",
        target={"mtriple": "aarch64-linux-gnu", **target},
        cpu=cpu,
    )


NEON = aarch64("cortex-a53", mcpu="cortex-a53")
DOTPROD = aarch64("neoverse-n1", mcpu="cortex-a76")
I8MM = aarch64("max", mattr=["+dotprod", "+i8mm"])
RISCV = Emulated(
    emulator="qemu-riscv64",
    compiler="riscv64-linux-gnu-gcc",
    target={"mtriple": "riscv64-linux-gnu", "mattr": ["+m", "+a", "+f", "+d", "+c"], "mabi": "lp64d"},
    cpu="rv64",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """A kernel's function with its operands, and what it must write."""

    function: tvm.tirx.PrimFunc | None
    operands: tuple[np.ndarray, ...]
    expected: np.ndarray
    about: object


def call_of(case: object) -> Call:
    """A case of kernel_runner.py as a call."""
    return Call(
        function=case.kernel.func,
        operands=(*case.inputs, *case.kernel.constants),
        expected=case.expected,
        about=case.about,
    )


def check_emulated(calls: Iterable[Call], machine: Emulated) -> int:
    """Compile every kernel for a machine, run all in one process of its emulator, and compare; return how many there were."""
    machine.skip_unless_installed()
    calls = list(calls)
    numbers: dict[StructuralKey, int] = {}
    numbered = [numbers.setdefault(StructuralKey(call.function), len(numbers)) for call in calls]
    functions = {f"kernel_{number}": call.function for number, call in zip(numbered, calls, strict=True)}
    results = _run(machine, functions, list(zip(numbered, calls, strict=True)))
    wrong: list[object] = []
    for call in calls:
        expected = np.ascontiguousarray(call.expected)
        got, guard, results = np.split(results, [expected.nbytes, expected.nbytes + GUARD])
        assert (guard == FILLER).all(), f"written behind the end: {call.about}"
        if not np.array_equal(got, expected.reshape(-1).view(np.uint8)):
            wrong.append(call.about)
    assert not results.size
    assert not wrong, f"{len(wrong)} of {len(calls)} kernels differ from the oracle, the first: {wrong[0]}"
    return len(calls)


def _run(machine: Emulated, functions: Mapping[str, tvm.tirx.PrimFunc], calls: list[tuple[int, Call]]) -> np.ndarray:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        named = {symbol: function.with_attr(KERNEL_ATTR, symbol) for symbol, function in functions.items()}
        llvm_module(named, machine.llvm).write_to_file(str(folder / "kernels.o"))
        records = b"".join(_record(number, call) for number, call in calls)
        return _linked_run(machine, folder, list(functions), [str(folder / "kernels.o"), "-static", "-lm"], records)


def run_executable(
    executable: octavo.Executable, inputs: Mapping[str, np.ndarray], expected: np.ndarray, machine: Emulated
) -> None:
    """Run a model of one output from its file, and compare with what is expected, byte for byte."""
    machine.skip_unless_installed()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        file = folder / "model.so"
        executable.save(file)
        constants, description = read_executable(file)
        workspace = np.zeros(max(description["workspace"], 1), np.uint8)
        arrays = [inputs[spec.source_name] for spec in executable.inputs]
        call = Call(function=None, operands=(*arrays, constants, workspace), expected=expected, about=str(file))
        linked = [str(file), "-rdynamic", f"-Wl,-rpath,{folder}"]  # what it takes from TVM's runtime is the program's
        results = _linked_run(machine, folder, ["octavo_main"], linked, _record(0, call))
        assert np.array_equal(results[:-GUARD], np.ascontiguousarray(expected).reshape(-1).view(np.uint8))


def _linked_run(machine: Emulated, folder: Path, symbols: list[str], linked: list[str], records: bytes) -> np.ndarray:
    """Link the program with code that defines these symbols, run it, and return the bytes that it writes."""
    (folder / "kernels.h").write_text(_header(symbols))
    (folder / "input").write_bytes(records)
    program = folder / "run_kernels"
    subprocess.run([machine.compiler, "-O1", "-I", str(folder), str(PROGRAM), *linked, "-o", str(program)], check=True)
    root = Path("/usr") / machine.compiler.removesuffix("-gcc")
    command = [machine.emulator, "-L", str(root), "-cpu", machine.cpu, str(program)]
    done = subprocess.run([*command, str(folder / "input"), str(folder / "output")], capture_output=True, text=True, check=False)
    last = (done.stderr.strip().splitlines() or [""])[-1]
    assert done.returncode == 0, f"{machine.cpu}: exit code {done.returncode}: {last}"
    return np.fromfile(folder / "output", np.uint8)


def _header(symbols: list[str]) -> str:
    kind = "int {}(void *, const void *, int32_t, void *)"
    declared = [kind.format(f"__tvm_ffi_{symbol}") + ";" for symbol in symbols]
    names = ", ".join(f"__tvm_ffi_{symbol}" for symbol in symbols)
    table = f"static {kind.format('(*CALLS[])')} = {{{names}}};"
    return "\n".join([*declared, f"enum {{ KERNELS = {len(symbols)} }};", table, ""])


def _record(number: int, call: Call) -> bytes:
    operands = [np.ascontiguousarray(value) for value in (*call.operands, call.expected)]
    parts = [np.array([number, len(operands)], np.int64).tobytes()]
    for index, value in enumerate(operands):
        kind = tvm.DataType(str(value.dtype))
        parts.append(np.array([int(kind.type_code), int(kind.bits), value.size, value.nbytes], np.int64).tobytes())
        parts.append(value.tobytes() if index + 1 < len(operands) else b"")
    return b"".join(parts)
