"""Kernels on a CPU: their own CUDA C, compiled by the host's compiler, each thread of a block a fiber.

What runs is the source that the GPU gets. Only instructions that a CPU lacks have stand-ins, written from their definition in the
PTX ISA: a warp's matrix product takes its fragments lane by lane, an asynchronous copy is made when it is waited for.
"""

from __future__ import annotations

import atexit
import hashlib
import math
import os
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from missing import find_program
from octavo.compiler.backends.cuda import kernel as cuda_kernel
from octavo.compiler.backends.cuda.kernel import Kernel, translation_unit
from octavo.errors import CompileError, ExecutableError

HERE = Path(__file__).parent
DEVICE = Path(cuda_kernel.__file__).parent / "device"

Check = Literal["none", "races", "addresses"]
"""What is looked for beside the result: two threads at one place of which one writes and none waited; reads and writes beyond a
buffer or the shared memory."""

_FLAGS: dict[Check, tuple[str, ...]] = {
    "none": ("-fno-exceptions", "-fno-rtti", "-fno-asynchronous-unwind-tables"),
    "races": ("-fsanitize=thread", "-DOCTAVO_RACES", "-g1"),
    "addresses": ("-fsanitize=address", "-DOCTAVO_ADDRESSES", "-g1"),
}
"""-g1 knows the lines that reports name, and no variables."""
_ALWAYS = ("-std=c++17", "-ffp-contract=off", "-fno-strict-aliasing", "-fwrapv", "-DOCTAVO_EMULATED", "-w")
_MANY_THREADS = 300_000
"""From so many on, of all kernels together, which trained networks have, optimized code takes less time with its compiler. Others
run for a tenth of the time that it takes to compile them without optimizing, and -O1 takes three times that."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """One launch of a kernel; each of `arguments` is the number of a buffer and an offset into it, in bytes."""

    kernel: Kernel
    arguments: tuple[tuple[int, int], ...]


class Emulator:
    """Kernels compiled for this CPU, to be launched on buffers in its memory.

    Parameters
    ----------
    kernels
        All that calls will name.
    check
        What to look for while they run.
    device
        Folder of the headers; another one tries changed kernels.

    Raises
    ------
    CompileError
        There is no C++ compiler, or it rejects the kernels.
    """

    def __init__(self, kernels: Sequence[Kernel], *, check: Check = "none", device: Path = DEVICE) -> None:
        self._entries = {symbol: number for number, symbol in enumerate(sorted({kernel.symbol for kernel in kernels}))}
        self._check: Check = check
        # TVM's kernels may call any function of these.
        first = ["#include <algorithm>", "#include <cmath>"] if any(kernel.text for kernel in kernels) else []
        text = "\n".join([*first, translation_unit(kernels), _table(kernels)])
        is_long = sum(math.prod(kernel.grid) * kernel.threads for kernel in kernels) >= _MANY_THREADS
        self._program = _program_of(text, check, device, "-O1" if is_long else "-O0")

    def run(
        self, calls: Sequence[Call], buffers: Sequence[npt.NDArray[np.uint8]], returned: Sequence[int], seed: int = 0
    ) -> list[npt.NDArray[np.uint8]]:
        """Launch kernels one after the other.

        Parameters
        ----------
        buffers
            Bytes of each before the first launch.
        returned
            Numbers of the buffers that are returned.
        seed
            The order in which threads take turns, and what shared memory holds at first; 0 is their own order.

        Raises
        ------
        ExecutableError
            Threads wait for each other, one returned too early, or the check found something.
        """
        parts = [struct.pack("<qq", seed, len(buffers))]
        for number, buffer in enumerate(buffers):
            parts += [struct.pack("<qq", buffer.nbytes, number in returned), buffer.tobytes()]
        parts.append(struct.pack("<q", len(calls)))
        for call in calls:
            kernel = call.kernel
            entry = self._entries[kernel.symbol]
            head = (entry, *kernel.grid, *kernel.block, kernel.shared_bytes, len(call.arguments))
            parts += [struct.pack(f"<{len(head)}q", *head), *(struct.pack("<qq", *each) for each in call.arguments)]
        with tempfile.TemporaryDirectory(prefix="octavo-emulation-") as folder:
            job, result = Path(folder) / "job", Path(folder) / "result"
            job.write_bytes(b"".join(parts))
            options = {
                # At its end it would wait a second for threads that race on, and takes the fibers for such.
                "TSAN_OPTIONS": "exitcode=66 halt_on_error=1 history_size=0 atexit_sleep_ms=0",
                "ASAN_OPTIONS": "detect_stack_use_after_return=0:detect_leaks=0",
            }
            found = subprocess.run(
                [str(self._program), str(job), str(result)], capture_output=True, text=True, env={**os.environ, **options}
            )
            if found.returncode:
                raise ExecutableError(f"emulated kernels failed ({found.returncode}): {_why(found.stderr)}")
            data = np.fromfile(result, np.uint8)
        sizes = [buffers[number].nbytes for number in sorted(returned)]
        parts_of = np.split(data, np.cumsum(sizes)[:-1]) if sizes else []
        by_number = dict(zip(sorted(returned), parts_of, strict=True))
        return [by_number[number] for number in returned]


def _why(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("====")]
    return " | ".join(lines[:30]) or "no reason was given"


def _table(kernels: Sequence[Kernel]) -> str:
    """Return the table by which the emulator finds kernels, in the order of their symbols."""
    by_symbol = {kernel.symbol: kernel for kernel in kernels}
    rows: list[str] = []
    for symbol, kernel in sorted(by_symbol.items()):
        passed = ", ".join(f"({each.c_type})a[{number}]" for number, each in enumerate(kernel.arguments))
        rows.append(f'  {{"{symbol}", [](void** a) {{ {symbol}({passed}); }}}},')
    return "\n".join(
        [
            "namespace octavo_emulation {",
            "struct Entry { const char* symbol; void (*call)(void**); };",
            "extern const Entry entries[];",
            "extern const int entry_count;",
            "const Entry entries[] = {",
            *rows,
            "};",
            f"const int entry_count = {len(rows)};",
            "}",
        ]
    )


def _program_of(text: str, check: Check, device: Path, optimization: str) -> Path:
    """Return the program of these kernels, compiled where it is not yet."""
    compiler = _compiler(check)
    headers = (path.read_text() for path in sorted(device.glob("*.cuh")))
    digest = hashlib.sha256("\0".join([check, optimization, text, *headers]).encode())
    program = _folder() / digest.hexdigest()[:32]
    if program.exists():
        return program
    linker = ("-fuse-ld=gold",) if shutil.which("ld.gold") else ()  # a third of the usual one's time
    flags = (*_ALWAYS, optimization, *_FLAGS[check], *linker, f"-I{device}", f"-I{HERE}")
    with tempfile.TemporaryDirectory(dir=_folder(), prefix="build-") as build:
        source, draft = Path(build) / "kernels.cpp", Path(build) / "program"
        source.write_text(text)
        _compile([compiler, *flags, str(source), str(_runtime(compiler, check)), "-o", str(draft)])
        os.replace(draft, program)
    return program


@cache
def _compiler(check: Check) -> str:
    """Return the path of a compiler: clang++ compiles long programs unoptimized in half the time, g++ brings its sanitizers."""
    names = ("clang++", "g++", "c++") if check == "none" else ("g++", "c++", "clang++")
    found = find_program(*names)
    if found is None:
        raise CompileError("kernels for CUDA are emulated by the host's C++ compiler: install g++ or clang++, and put it on PATH")
    return found


@cache
def _folder() -> Path:
    """Return where programs lie while this process lives."""
    folder = tempfile.TemporaryDirectory(prefix="octavo-emulation-")
    atexit.register(folder.cleanup)
    return Path(folder.name)


@cache
def _runtime(compiler: str, check: Check) -> Path:
    """Return the scheduler, compiled once. It is not watched: what it moves between threads is no memory of theirs."""
    flags = (*_ALWAYS, "-O2", *(flag for flag in _FLAGS[check] if not flag.startswith("-fsanitize")), f"-I{HERE}")
    _compile([compiler, *flags, "-c", str(HERE / "emulation.cpp"), "-o", str(_folder() / f"runtime-{check}.o")])
    return _folder() / f"runtime-{check}.o"


def _compile(command: list[str]) -> None:
    found = subprocess.run(command, capture_output=True, text=True)
    if found.returncode:
        raise CompileError(f"the host's compiler rejects a kernel: {_why(found.stderr)}")
