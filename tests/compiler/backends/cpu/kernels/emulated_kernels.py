"""Runs kernels for a machine that QEMU emulates against their oracles, bit for bit, through the C program `run_kernels.c`.

A machine needs QEMU's user mode and a cross compiler, which `make emulation` installs; without them its tests are skipped.
"""

from __future__ import annotations

import atexit
import os
import shutil
import subprocess
import tempfile
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import tvm
from tvm_ffi import StructuralKey

import octavo
from missing import needs_programs
from octavo.compiler.codegen.tir_passes import llvm_module
from octavo.ir.graph.kernel_attributes import KERNEL_ATTR
from octavo.runtime.file import read_executable
from octavo.runtime.shapes import evaluated
from octavo.runtime.size import Size
from plain_code import plain_code

PROGRAM = Path(__file__).parent / "run_kernels.c"
GUARD, FILLER = 256, 77
OPTIMIZES = bool(os.environ.get("OCTAVO_OPTIMIZE"))
"""Whether LLVM is to optimize all that runs there: `make test-arm` says so."""


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
        needs_programs(self.emulator, self.compiler, installed_by="make emulation")


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

MACHINES = {"arm.neon": NEON, "arm.dotprod": DOTPROD, "arm.i8mm": I8MM, "riscv64": RISCV}
"""By the ISA that is best there, or by what it is called."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """A kernel's function with its operands, and what it must write."""

    function: tvm.tirx.PrimFunc
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


class EmulatedCode:
    """Kernels compiled for a machine and linked to one program; each is called as a function of TVM tensors, a process a call."""

    def __init__(self, functions: Mapping[str, tvm.tirx.PrimFunc], machine: Emulated) -> None:
        machine.skip_unless_installed()
        self._machine = machine
        self._numbers = {name: number for number, name in enumerate(functions)}
        self._folder = folder = Path(tempfile.mkdtemp(prefix="octavo-emulated-"))
        weakref.finalize(self, shutil.rmtree, folder)
        named = {symbol: function.with_attr(KERNEL_ATTR, symbol) for symbol, function in functions.items()}
        llvm_module(named, machine.llvm).write_to_file(str(folder / "kernels.o"))
        _link(machine, folder, list(functions), [str(folder / "kernels.o"), "-static", "-lm"])

    def __getitem__(self, name: str) -> Callable[..., None]:
        def call(*tensors: tvm.runtime.Tensor) -> None:
            ((*values, _),) = self.run([(name, [tensor.numpy() for tensor in tensors])])
            for tensor, value in zip(tensors, values, strict=True):
                tensor.copyfrom(value.reshape(tensor.shape))

        return call

    def run(self, calls: Iterable[tuple[str, Sequence[np.ndarray]]]) -> list[list[np.ndarray]]:
        """Call kernels on operands in one process; return for each call its operands as they are then, and what lies behind."""
        numbered = [(self._numbers[name], operands) for name, operands in calls]
        return _run(self._machine, self._folder, numbered)


def check_emulated(calls: Iterable[Call], machine: Emulated, *, is_optimized: bool = False) -> int:
    """Compile every kernel for a machine, run all in one process of its emulator, and compare; return how many there were.

    To optimize the long code of these machines takes LLVM most of a test's time. It is done for each kind of window, for whole
    networks (test_emulated_executables.py), and for all where OPTIMIZES.
    """
    calls = list(calls)
    names: dict[StructuralKey, str] = {}
    named = [names.setdefault(StructuralKey(call.function), f"kernel_{len(names)}") for call in calls]
    functions = {name: call.function for name, call in zip(named, calls, strict=True)}
    with nullcontext() if is_optimized or OPTIMIZES else plain_code():
        code = EmulatedCode(functions, machine)
    results = code.run((name, [*call.operands, _filler(call.expected)]) for name, call in zip(named, calls, strict=True))
    wrong: list[object] = []
    for call, (*given, got, guard) in zip(calls, results, strict=True):
        assert (guard == FILLER).all(), f"written behind the end: {call.about}"
        assert all(map(_same_bytes, given, call.operands)), f"an input was written: {call.about}"
        if not _same_bytes(got, call.expected):
            wrong.append(call.about)
    assert not wrong, f"{len(wrong)} of {len(calls)} kernels differ from the oracle, the first: {wrong[0]}"
    return len(calls)


def _filler(like: np.ndarray) -> np.ndarray:
    """Bytes of which a kernel that leaves one as it was is found out."""
    return np.full(like.nbytes, FILLER, np.uint8).view(like.dtype)


def _same_bytes(value: np.ndarray, other: np.ndarray) -> bool:
    return _bytes(value).tobytes() == _bytes(other).tobytes()


def _bytes(value: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(value).reshape(-1).view(np.uint8)


def run_executable(
    executable: octavo.Executable, inputs: Mapping[str, np.ndarray], expected: np.ndarray, machine: Emulated
) -> None:
    """Run a model of one output from its file, and compare with what is expected, byte for byte."""
    [got] = results_of(executable, [(inputs, {}, [expected])], machine)[0]
    assert _same_bytes(got, expected)


def results_of(
    executable: octavo.Executable,
    calls: Sequence[tuple[Mapping[str, np.ndarray], Mapping[str, int], Sequence[np.ndarray]]],
    machine: Emulated,
) -> list[list[np.ndarray]]:
    """Run a model from its file, once for each call: inputs, the sizes of open dimensions, and what the results are like."""
    machine.skip_unless_installed()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        file = folder / "model.so"
        executable.save(file)
        held = read_executable(file)
        # What it takes from TVM's runtime is the program's.
        _link(machine, folder, ["octavo_main"], [str(file), "-rdynamic", f"-Wl,-rpath,{folder}"])
        given: list[tuple[int, list[np.ndarray]]] = []
        for inputs, sizes, results in calls:
            own = [np.array([sizes[name] for name in sorted(sizes)], np.int64)] if sizes else []
            workspace = np.zeros(max(*evaluated([Size.parse(held.description["workspace"])], sizes), 1), np.uint8)
            arrays = [inputs[spec.source_name] for spec in executable.inputs]
            given.append((0, [*own, *arrays, held.constants, workspace, *map(_filler, results)]))
        found: list[list[np.ndarray]] = []
        for (*operands, guard), (_, _, results) in zip(_run(machine, folder, given), calls, strict=True):
            assert (guard == FILLER).all()
            found.append([got.reshape(like.shape) for got, like in zip(operands[-len(results) :], results, strict=True)])
        return found


def _link(machine: Emulated, folder: Path, symbols: list[str], linked: list[str]) -> None:
    """Link the program with code that defines these symbols."""
    (folder / "kernels.c").write_text(_table(symbols))
    made = [_compiled_program(machine.compiler), str(folder / "kernels.c")]
    subprocess.run([machine.compiler, "-O0", *made, *linked, "-o", str(folder / "run_kernels")], check=True)


@cache
def _compiled_program(compiler: str) -> str:
    """Return the object file of PROGRAM, which all tests of a machine share."""
    folder = tempfile.mkdtemp(prefix="octavo-emulated-")
    atexit.register(shutil.rmtree, folder)
    subprocess.run([compiler, "-O1", "-c", str(PROGRAM), "-o", f"{folder}/run_kernels.o"], check=True)
    return f"{folder}/run_kernels.o"


def _run(machine: Emulated, folder: Path, calls: Sequence[tuple[int, Sequence[np.ndarray]]]) -> list[list[np.ndarray]]:
    """Run calls of the linked program; return of each its operands, and the bytes behind the last one."""
    (folder / "input").write_bytes(b"".join(_record(number, operands) for number, operands in calls))
    root = Path("/usr") / machine.compiler.removesuffix("-gcc")
    command = [machine.emulator, "-L", str(root), "-cpu", machine.cpu, str(folder / "run_kernels")]
    done = subprocess.run([*command, str(folder / "input"), str(folder / "output")], capture_output=True, text=True, check=False)
    last = (done.stderr.strip().splitlines() or [""])[-1]
    assert done.returncode == 0, f"{machine.cpu}: exit code {done.returncode}: {last}"
    written, start = np.fromfile(folder / "output", np.uint8), 0
    results: list[list[np.ndarray]] = []
    for _, operands in calls:
        results.append([])
        for operand in (*operands, np.empty(GUARD, np.uint8)):
            end = start + operand.nbytes
            results[-1].append(written[start:end].view(operand.dtype))
            start = end
    assert start == written.size
    return results


def _table(symbols: list[str]) -> str:
    """Return C that defines what PROGRAM calls."""
    kind = "int {}(void *, const void *, int, void *)"
    declared = [kind.format(f"__tvm_ffi_{symbol}") + ";" for symbol in symbols]
    names = ", ".join(f"__tvm_ffi_{symbol}" for symbol in symbols)
    return "\n".join([*declared, f"{kind.format('(*const CALLS[])')} = {{{names}}};", f"const int KERNELS = {len(symbols)};", ""])


def _record(number: int, operands: Sequence[np.ndarray]) -> bytes:
    parts = [np.array([number, len(operands)], np.int64).tobytes()]
    for value in operands:
        kind = tvm.DataType(str(value.dtype))
        parts.append(np.array([int(kind.type_code), int(kind.bits), value.size, value.nbytes], np.int64).tobytes())
        parts.append(np.ascontiguousarray(value).tobytes())
    return b"".join(parts)
