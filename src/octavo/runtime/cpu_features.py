"""What machine code asks of a CPU beyond its architecture's baseline: the features that LLVM may use, and which a machine has.

One table serves three readers: LLVM's names say what a target's code may use, the operating system's what this machine has, and
the places in CPUID and in Linux's hardware capabilities are what a C library asks where it runs.
"""

from __future__ import annotations

import ctypes
from collections.abc import Collection
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from tvm.target import Target, codegen


@dataclass(frozen=True, kw_only=True, slots=True)
class CpuidBit:
    """Where CPUID tells of a feature; `state` are the bits of XCR0 that an operating system sets that keeps its registers."""

    leaf: int
    subleaf: int
    register: str
    bit: int
    state: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class CapabilityBit:
    """Where Linux's auxiliary vector tells of a feature: entry `AT_HWCAP` or `AT_HWCAP2`."""

    entry: str
    bit: int


Place = CpuidBit | CapabilityBit


@dataclass(frozen=True, kw_only=True, slots=True)
class Feature:
    """A feature: what LLVM and /proc/cpuinfo call it, and where a CPU tells of it."""

    llvm: str
    cpuinfo: str
    place: Place


_YMM, _ZMM = 0x6, 0xE6


def _cpuid(llvm: str, cpuinfo: str, leaf: int, subleaf: int, register: str, bit: int, state: int = 0) -> Feature:
    place = CpuidBit(leaf=leaf, subleaf=subleaf, register=register, bit=bit, state=state)
    return Feature(llvm=llvm, cpuinfo=cpuinfo, place=place)


def _capability(llvm: str, cpuinfo: str, entry: str, bit: int) -> Feature:
    return Feature(llvm=llvm, cpuinfo=cpuinfo, place=CapabilityBit(entry=entry, bit=bit))


# Intel's manual, volume 2A, CPUID; AMD's manual, volume 3, appendix E. Left out: what LLVM makes of no plain code (AES).
_X86 = (
    _cpuid("sse3", "pni", 1, 0, "ecx", 0),
    _cpuid("ssse3", "ssse3", 1, 0, "ecx", 9),
    _cpuid("fma", "fma", 1, 0, "ecx", 12, _YMM),
    _cpuid("sse4.1", "sse4_1", 1, 0, "ecx", 19),
    _cpuid("sse4.2", "sse4_2", 1, 0, "ecx", 20),
    _cpuid("movbe", "movbe", 1, 0, "ecx", 22),
    _cpuid("popcnt", "popcnt", 1, 0, "ecx", 23),
    _cpuid("avx", "avx", 1, 0, "ecx", 28, _YMM),
    _cpuid("f16c", "f16c", 1, 0, "ecx", 29, _YMM),
    _cpuid("lzcnt", "abm", 0x80000001, 0, "ecx", 5),
    _cpuid("xop", "xop", 0x80000001, 0, "ecx", 11, _YMM),
    _cpuid("fma4", "fma4", 0x80000001, 0, "ecx", 16, _YMM),
    _cpuid("tbm", "tbm", 0x80000001, 0, "ecx", 21),
    _cpuid("bmi", "bmi1", 7, 0, "ebx", 3),
    _cpuid("avx2", "avx2", 7, 0, "ebx", 5, _YMM),
    _cpuid("bmi2", "bmi2", 7, 0, "ebx", 8),
    _cpuid("avx512f", "avx512f", 7, 0, "ebx", 16, _ZMM),
    _cpuid("avx512dq", "avx512dq", 7, 0, "ebx", 17, _ZMM),
    _cpuid("avx512ifma", "avx512ifma", 7, 0, "ebx", 21, _ZMM),
    _cpuid("avx512cd", "avx512cd", 7, 0, "ebx", 28, _ZMM),
    _cpuid("avx512bw", "avx512bw", 7, 0, "ebx", 30, _ZMM),
    _cpuid("avx512vl", "avx512vl", 7, 0, "ebx", 31, _ZMM),
    _cpuid("avx512vbmi", "avx512vbmi", 7, 0, "ecx", 1, _ZMM),
    _cpuid("avx512vbmi2", "avx512_vbmi2", 7, 0, "ecx", 6, _ZMM),
    _cpuid("gfni", "gfni", 7, 0, "ecx", 8),
    _cpuid("avx512vnni", "avx512_vnni", 7, 0, "ecx", 11, _ZMM),
    _cpuid("avx512bitalg", "avx512_bitalg", 7, 0, "ecx", 12, _ZMM),
    _cpuid("avx512vpopcntdq", "avx512_vpopcntdq", 7, 0, "ecx", 14, _ZMM),
    _cpuid("avx512fp16", "avx512_fp16", 7, 0, "edx", 23, _ZMM),
    _cpuid("avxvnni", "avx_vnni", 7, 1, "eax", 4, _YMM),
    _cpuid("avx512bf16", "avx512_bf16", 7, 1, "eax", 5, _ZMM),
    _cpuid("avxifma", "avx_ifma", 7, 1, "eax", 23, _YMM),
    _cpuid("avxvnniint8", "avx_vnni_int8", 7, 1, "edx", 4, _YMM),
    _cpuid("avxneconvert", "avx_ne_convert", 7, 1, "edx", 5, _YMM),
    _cpuid("avxvnniint16", "avx_vnni_int16", 7, 1, "edx", 10, _YMM),
)

# Linux: arch/arm64/include/uapi/asm/hwcap.h.
_ARM64 = (
    _capability("crc", "crc32", "AT_HWCAP", 7),
    _capability("lse", "atomics", "AT_HWCAP", 8),
    _capability("fullfp16", "asimdhp", "AT_HWCAP", 10),
    _capability("rdm", "asimdrdm", "AT_HWCAP", 12),
    _capability("jsconv", "jscvt", "AT_HWCAP", 13),
    _capability("complxnum", "fcma", "AT_HWCAP", 14),
    _capability("rcpc", "lrcpc", "AT_HWCAP", 15),
    _capability("dotprod", "asimddp", "AT_HWCAP", 20),
    _capability("sve", "sve", "AT_HWCAP", 22),
    _capability("fp16fml", "asimdfhm", "AT_HWCAP", 23),
    _capability("sve2", "sve2", "AT_HWCAP2", 1),
    _capability("i8mm", "i8mm", "AT_HWCAP2", 13),
    _capability("bf16", "bf16", "AT_HWCAP2", 14),
)

_BY_ARCHITECTURE = {"x86_64": _X86, "aarch64": _ARM64}


def features_of(target: Target) -> tuple[Feature, ...]:
    """Return the features that code for a target may use; none of an architecture that has no table."""
    triple = str(target.attrs.get("mtriple") or codegen.llvm_get_system_triple())
    table = _BY_ARCHITECTURE.get(triple.split("-")[0], ())
    return tuple(feature for feature in table if feature.llvm in _llvm_features(target)) if table else ()


@lru_cache(maxsize=64)
def _llvm_features(target: Target) -> frozenset[str]:
    return frozenset(str(name) for name in codegen.llvm_get_cpu_features(target))


def names_of(features: Collection[Feature]) -> tuple[str, ...]:
    """Return what LLVM calls them."""
    return tuple(feature.llvm for feature in features)


@lru_cache
def machine_features() -> frozenset[str] | None:
    """Return what this machine has, by LLVM's names; None where its operating system does not tell."""
    architecture = str(codegen.llvm_get_system_triple()).split("-")[0]
    return _capable() if architecture == "aarch64" else _flagged(_BY_ARCHITECTURE.get(architecture, ()))


def _flagged(table: tuple[Feature, ...]) -> frozenset[str] | None:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    flags = next((set(line.split(":", 1)[1].split()) for line in lines if line.startswith("flags")), None)
    return None if flags is None else frozenset(feature.llvm for feature in table if feature.cpuinfo in flags)


# Linux: include/uapi/linux/auxvec.h.
_AUXILIARY = {"AT_HWCAP": 16, "AT_HWCAP2": 26}


def _capable() -> frozenset[str] | None:
    """Return what the kernel tells each process; in QEMU's user mode /proc/cpuinfo would be that of the machine around it."""
    read = getattr(ctypes.CDLL(None), "getauxval", None)
    if read is None:
        return None
    read.argtypes, read.restype = [ctypes.c_ulong], ctypes.c_ulong
    words = {entry: int(read(number)) for entry, number in _AUXILIARY.items()}
    places = [(feature, feature.place) for feature in _ARM64]
    return frozenset(
        feature.llvm for feature, place in places if isinstance(place, CapabilityBit) and words[place.entry] >> place.bit & 1
    )


def missing_features(required: Collection[str], present: Collection[str] | None) -> tuple[str, ...]:
    """Return what code requires and a machine does not have; nothing where that is not known (None)."""
    return () if present is None else tuple(name for name in required if name not in present)
