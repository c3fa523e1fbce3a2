"""Runs kernels whose operands lie between two inaccessible pages: a byte read or written outside ends the process.

    python guarded_run.py

The process exits with 0 if every kernel of every ISA of this machine kept to its buffers and gave the oracle's bits.
"""

import ctypes
import mmap

import numpy as np
import tvm
from conv2d_cases import Layers, matmul_case
from kernel_runner import GENERIC, ISAS, Case, Compiled, host_target

from octavo.compiler.backends.cpu.kernels import AVX2, AVX512_VNNI, Conv2dSpec

PAGE = mmap.PAGESIZE
ALIGNMENT = 64
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_regions: list[mmap.mmap] = []  # kept alive until the process ends


def guarded(size: int, *, at_end: bool) -> np.ndarray:
    """`size` bytes with an inaccessible page right behind them (at_end, if `size` allows the alignment) or right before."""
    pages = -(-size // PAGE)
    region = mmap.mmap(-1, (pages + 2) * PAGE)
    start = ctypes.addressof(ctypes.c_char.from_buffer(region))
    for page in (start, start + (pages + 1) * PAGE):
        assert _libc.mprotect(page, PAGE, 0) == 0
    _regions.append(region)
    first = PAGE + (pages * PAGE - size if at_end else 0)
    array = np.frombuffer(region, np.uint8, size, first)
    assert array.ctypes.data % ALIGNMENT == 0, "TVM's code relies on 64-byte alignment"
    return array


def windows_of(layers: Layers) -> list[Conv2dSpec]:
    """One layer of each kind, of a full tile of channels and the rest of one."""
    same = {"padding": (1, 1, 1, 1)}
    return [
        layers.spec((8, 8), (3, 61)),
        layers.spec((8, 16), (5, 24), (3, 3), **same),
        layers.spec((8, 16), (18, 64), (3, 3), strides=(1, 2)),
        layers.spec((8, 8), (12, 24), (3, 3), groups=2, **same),
        layers.spec((8, 8), (17, 17), (3, 3), groups=17, **same),
    ]


def cases(isa: str) -> list[Case]:
    """Layers of many reductions; every input and output is a multiple of 64 bytes."""
    layers = Layers(30)
    if isa == GENERIC:  # its loads end where a run of channels does: what may go astray is a window
        return [layers.case(spec, isa) for spec in windows_of(layers)]
    pointwise = [layers.spec((8, 8), (c, 64 - c)) for c in (3, 33)]
    plain = [layers.spec((8, 16), (c, 64), (3, 3), strides=(1, 2)) for c in (1, 18)]
    padded = [layers.spec((8, 16), (c, 24), (3, 3), padding=(1, 1, 1, 1)) for c in (3, 5)]
    grouped = [layers.spec((8, 8), (12, 24), (3, 3), padding=(1, 1, 1, 1), groups=groups) for groups in (2, 4)]
    depthwise = [layers.spec((8, 8), (c, c), (3, 3), padding=(1, 1, 1, 1), groups=c) for c in (3, 100)]
    unpadded = [layers.spec((10, 16), (c, c), (3, 1), groups=c) for c in (17, 80)]
    specs = pointwise + plain + padded + grouped + depthwise + unpadded
    if isa != AVX512_VNNI:  # those of 256 bits begin and end in the same way: each has one half
        specs = specs[isa == AVX2 :: 2]
    if isa == AVX2:  # minimal filters, of whole vectors of channels and of a rest
        specs += [layers.spec((10, 16), (c, 48), (3, 3), padding=(1, 1, 1, 1)) for c in (32, 40)]
    dense = [matmul_case(layers, 64, features, 33, isa) for features in (1, 7, 129)]
    return [layers.case(spec, isa, w_zero_point=(0, 5)[i % 2]) for i, spec in enumerate(specs)] + dense


def keeps_to_its_buffers(function: object, case: Case, *, at_end: bool) -> bool:
    """Whether the output is the oracle's, with every operand that can be placed so next to an inaccessible page."""
    placed = []
    for value in (*case.inputs, *case.kernel.constants, np.zeros_like(case.expected)):
        data = np.ascontiguousarray(value).ravel().view(np.uint8)
        memory = guarded(data.size, at_end=at_end and data.size % ALIGNMENT == 0)
        memory[:] = data
        placed.append(memory.view(value.dtype))
    function(*map(tvm.runtime.from_dlpack, placed))
    return np.array_equal(placed[-1], case.expected.ravel())


def main() -> None:
    """Compile all cases of an ISA in one module and run each twice, at either end of its pages."""
    for isa in ISAS:
        given = cases(isa)
        functions = {f"kernel_{i}": case.kernel.func for i, case in enumerate(given)}
        library = Compiled(functions, host_target())
        for name, case in zip(functions, given, strict=True):
            print(isa, case.about, flush=True)  # the last line names the culprit
            for at_end in (True, False):
                assert keeps_to_its_buffers(library[name], case, at_end=at_end)


if __name__ == "__main__":
    main()
