"""From CUDA C to machine code: NVRTC, which compiles on any machine, and what it says of each kernel."""

from __future__ import annotations

import hashlib
import importlib
import json
import re
import struct
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from ....errors import CompileError
from ....runtime.code_cache import user_cache
from ....runtime.cores import cores
from .isa import Isa
from .kernel import Kernel, translation_unit

DEVICE = Path(__file__).parent / "device"
_LENGTH = struct.Struct("<Q")
INSTALL = "pip install 'octavo[cuda]'"


@dataclass(frozen=True, kw_only=True, slots=True)
class Usage:
    """What one kernel takes of a multiprocessor.

    Parameters
    ----------
    registers
        Of each thread.
    spill_bytes, stack_bytes
        Of each thread: what did not fit into registers, and memory of its own.
    """

    registers: int
    spill_bytes: int
    stack_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class MachineCode:
    """A translation unit as a cubin, and what its kernels take, by symbol."""

    cubin: bytes
    usage: dict[str, Usage]


def compile_kernels(kernels: Sequence[Kernel], isa: Isa, *, device: Path = DEVICE) -> list[MachineCode]:
    """Return machine code of each distinct kernel for an ISA, in the order of their symbols.

    Each is a translation unit of its own, found again in the cache of machine code whatever model it stands in; what is missing
    is compiled on all cores, for NVRTC works outside Python's global lock. Units of several kernels would save a fifth of it.

    Raises
    ------
    CompileError
        NVRTC is not installed, or rejects a kernel: a flaw of Octavo's.
    """
    unique = {kernel.symbol: kernel for kernel in kernels}
    texts = [translation_unit([kernel]) for _, kernel in sorted(unique.items())]
    kept, keys = user_cache(), _keys(texts, isa, device)
    entries = [kept.read(key) if kept else None for key in keys]
    missing = [number for number, entry in enumerate(entries) if entry is None]
    with ThreadPoolExecutor(max(1, min(cores(), len(missing)))) as pool:
        compiled = pool.map(lambda number: _entry(*_compiled(texts[number], isa, isa.arch, device)), missing)
        for number, entry in zip(missing, compiled, strict=True):
            entries[number] = entry
            if kept:
                kept.write(keys[number], entry)
    if kept:
        kept.trim_after(keys[number] for number in missing)
    return [_machine_code(entry) for entry in entries if entry is not None]


def _keys(texts: Sequence[str], isa: Isa, device: Path) -> list[str]:
    """Return what tells the machine code of each translation unit from any other: all that NVRTC gets, and which NVRTC it is."""
    if not texts:
        return []
    headers = b"\0".join(part for path in _headers(device) for part in (path.name.encode(), path.read_bytes()))
    common = b"\0".join([b"cuda", _release(isa).encode(), *_options(isa.arch), hashlib.sha256(headers).digest()])
    return [hashlib.sha256(b"\0".join([common, text.encode()])).hexdigest() for text in texts]


@cache
def _release(isa: Isa) -> str:
    """Return which NVRTC compiles for an ISA: it writes its version and its build into PTX, also into one without kernels."""
    return _compiled("", isa, isa.arch.replace("sm", "compute"), DEVICE)[0].decode()


def _entry(cubin: bytes, log: str) -> bytes:
    """Return what is kept of a translation unit; nothing of it changes from one compilation to the next."""
    usage = json.dumps({symbol: asdict(usage) for symbol, usage in _usage(log).items()}).encode()
    return _LENGTH.pack(len(usage)) + usage + cubin


def _machine_code(entry: bytes) -> MachineCode:
    """Read what `_entry` wrote."""
    (length,) = _LENGTH.unpack_from(entry)
    end = _LENGTH.size + length
    usage = {symbol: Usage(**fields) for symbol, fields in json.loads(entry[_LENGTH.size : end]).items()}
    return MachineCode(cubin=entry[end:], usage=usage)


def ptx(kernels: Sequence[Kernel], isa: Isa, *, device: Path = DEVICE) -> str:
    """Return kernels in PTX, equal ones once; errors as of `compile_kernels`. nvdisasm reads no machine code of sm_61."""
    text, _ = _compiled(translation_unit(kernels), isa, isa.arch.replace("sm", "compute"), device)
    return text.decode().strip("\0")


def _compiled(text: str, isa: Isa, arch: str, device: Path) -> tuple[bytes, str]:
    """Return what NVRTC makes of a translation unit: machine code for sm_*, PTX for compute_*; and its log."""
    nvrtc = _nvrtc()
    headers = _headers(device)
    names = [path.name.encode() for path in headers]
    program = _checked(
        nvrtc,
        nvrtc.nvrtcCreateProgram(text.encode(), b"kernels.cu", len(headers), [path.read_bytes() for path in headers], names),
    )
    options = _options(arch)
    try:
        (status,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
        log = (
            _read(nvrtc, program, nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog).decode(errors="replace").strip("\0 \n")
        )
        if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise CompileError(f"NVRTC rejects a kernel for {isa.name}: {' | '.join(log.splitlines()[:6])}")
        if arch == isa.arch:
            found = _read(nvrtc, program, nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN)
        else:
            found = _read(nvrtc, program, nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX)
    finally:
        nvrtc.nvrtcDestroyProgram(program)
    return found, log


def _headers(device: Path) -> list[Path]:
    return sorted(device.glob("*.cuh"))


def _options(arch: str) -> list[bytes]:
    return [
        f"--gpu-architecture={arch}".encode(),
        b"--std=c++17",
        b"--ptxas-options=-v",
        b"--fmad=false",
        b"--minimal",  # no textures, no launches from kernels
        b"-default-device",
    ]


def _nvrtc() -> Any:
    try:
        return importlib.import_module("cuda.bindings.nvrtc")
    except ImportError as error:
        raise CompileError(f"kernels for CUDA are compiled by NVRTC, which is not installed: {INSTALL}") from error


def _checked(nvrtc: Any, returned: tuple[Any, ...]) -> Any:
    status, *values = returned
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise CompileError(f"NVRTC failed: {status.name}")
    return values[0] if values else None


def _read(nvrtc: Any, program: Any, size_of: Any, read: Any) -> bytes:
    size = _checked(nvrtc, size_of(program))
    # NVRTC writes into the bytes that it is given. An empty log is one byte, and bytes of one are everybody's: one more is read.
    buffer = bytes(size + 1)
    _checked(nvrtc, read(program, buffer))
    return buffer[:size]


_FUNCTION = re.compile(r"Compiling entry function '(\w+)'")
_STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_REGISTERS = re.compile(r"Used (\d+) registers")


def _usage(log: str) -> dict[str, Usage]:
    """Read what ptxas says of each kernel."""
    found: dict[str, Usage] = {}
    symbol, stack, spills = "", 0, 0
    for line in log.splitlines():
        if named := _FUNCTION.search(line):
            symbol = named[1]
        elif sizes := _STACK.search(line):
            stack, spills = int(sizes[1]), int(sizes[2]) + int(sizes[3])
        elif (used := _REGISTERS.search(line)) and symbol:
            found[symbol] = Usage(registers=int(used[1]), spill_bytes=spills, stack_bytes=stack)
    return found


def disassembled(data: bytes, folder: Path) -> str:
    """Return a cubin as nvdisasm prints it; CompileError where that is not installed. It leaves a file in `folder`."""
    tool = _tool("nvdisasm")
    cubin = folder / "kernels.cubin"
    cubin.write_bytes(data)
    found = subprocess.run([str(tool), "-c", str(cubin)], capture_output=True, text=True)
    if found.returncode:
        raise CompileError(f"nvdisasm cannot read the kernels: {found.stderr.strip().splitlines()[-1]}")
    return found.stdout


def _tool(name: str) -> Path:
    """Return one of NVIDIA's programs, from their wheels: they lie in the package "nvidia", which has no file of its own."""
    for place in sys.path:
        found = sorted(Path(place).glob(f"nvidia/*/bin/{name}"))
        if found:
            return found[-1]
    raise CompileError(f"{name} is not installed: {INSTALL}")
