"""What generations of NVIDIA's GPUs can do, as data: the one table of architectures.

Sources: CUDA C++ Programming Guide (compute capabilities), PTX ISA (which instructions from which target on).
"""

from __future__ import annotations

from dataclasses import dataclass

from ....errors import TargetError


@dataclass(frozen=True, kw_only=True, slots=True)
class Isa:
    """A generation of chips.

    Parameters
    ----------
    name
        "cuda.sm_80": what `target=` takes.
    arch
        What NVRTC takes: "sm_80".
    matrix_k
        Input channels that one matrix instruction of 8-bit integers takes, 0 without one: m8n8k16 of Turing, m16n8k32 from
        Ampere on.
    asynchronous
        Whether copies to shared memory can be asynchronous (cp.async).
    warp_groups
        Whether four warps can multiply from shared memory together (wgmma).
    multiprocessors
        Of the chip that tiles are chosen for: a GTX 1080, T4, A100 or H100.
    shared_bytes, shared_bytes_of_block
        Shared memory of a multiprocessor, and the most that one block may have of it.
    threads, registers
        Of a multiprocessor.
    multiply_adds
        Of 8-bit integers by a multiprocessor in a clock, by its fastest instruction.
    warp_multiply_adds
        The same by the matrix instruction of one warp: of Hopper that of the generation before it, at its rate.
    dot_multiply_adds
        The same by DP4A.
    copy_bytes
        That a multiprocessor gets of the second-level cache in a clock, all of them at it: by NVIDIA's papers on its
        architectures an A100's cache has 5120 bytes a clock, that of the generation before it 2048.
    """

    name: str
    arch: str
    matrix_k: int
    asynchronous: bool
    warp_groups: bool
    multiprocessors: int
    shared_bytes: int
    shared_bytes_of_block: int
    threads: int
    registers: int
    multiply_adds: int
    warp_multiply_adds: int
    dot_multiply_adds: int
    copy_bytes: int

    @property
    def capability(self) -> int:
        """Its number: 80 for sm_80, 90 for sm_90a."""
        return int(self.arch.removeprefix("sm_").rstrip("a"))


ISAS = {
    isa.name: isa
    for isa in (
        Isa(
            name="cuda.sm_61",
            arch="sm_61",
            matrix_k=0,
            asynchronous=False,
            warp_groups=False,
            multiprocessors=20,
            shared_bytes=96 << 10,
            shared_bytes_of_block=48 << 10,
            threads=2048,
            registers=65536,
            multiply_adds=512,
            warp_multiply_adds=0,
            dot_multiply_adds=512,
            copy_bytes=32,
        ),
        Isa(
            name="cuda.sm_75",
            arch="sm_75",
            matrix_k=16,
            asynchronous=False,
            warp_groups=False,
            multiprocessors=40,
            shared_bytes=64 << 10,
            shared_bytes_of_block=64 << 10,
            threads=1024,
            registers=65536,
            multiply_adds=1024,
            warp_multiply_adds=1024,
            dot_multiply_adds=256,
            copy_bytes=32,
        ),
        Isa(
            name="cuda.sm_80",
            arch="sm_80",
            matrix_k=32,
            asynchronous=True,
            warp_groups=False,
            multiprocessors=108,
            shared_bytes=164 << 10,
            shared_bytes_of_block=163 << 10,
            threads=2048,
            registers=65536,
            multiply_adds=2048,
            warp_multiply_adds=2048,
            dot_multiply_adds=256,
            copy_bytes=47,
        ),
        Isa(
            name="cuda.sm_90a",
            arch="sm_90a",
            matrix_k=32,
            asynchronous=True,
            warp_groups=True,
            multiprocessors=132,
            shared_bytes=228 << 10,
            shared_bytes_of_block=227 << 10,
            threads=2048,
            registers=65536,
            multiply_adds=4096,
            warp_multiply_adds=2048,
            dot_multiply_adds=256,
            copy_bytes=39,
        ),
    )
}
"""By their names, oldest first."""


def isa_of(name: str) -> Isa:
    """Return an ISA by its name; TargetError for an unknown one."""
    if name not in ISAS:
        raise TargetError(f"unknown GPU {name!r}: choose from {', '.join(ISAS)}")
    return ISAS[name]
