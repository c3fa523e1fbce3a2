"""Instruction sets (ISAs) of the kernels: their names, which a target has, and the host as a target.

It decides from the target alone and picks no kernel: each kernel takes the ISA it is to be written for.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from tvm.target import Target

from ....errors import TargetError
from ....target.llvm_host import has_features

AVX512_VNNI = "x86.avx512_vnni"
AVX_VNNI = "x86.avx_vnni"
AVX2 = "x86.avx2"
GENERIC = "generic"
KNOWN_ISAS = (AVX512_VNNI, AVX_VNNI, AVX2, GENERIC)
"""Every ISA that kernels are written for, best first."""

X86_ISAS = (AVX512_VNNI, AVX_VNNI, AVX2)
"""Those of x86, whose convolutions and matmuls are the same kernels; only the first has registers of 512 bits."""

AVX512_BF16 = "x86.avx512_bf16"
"""An extension of AVX512_VNNI: products of bfloat16."""

KNOWN_EXTENSIONS = (AVX512_BF16,)
"""What a machine may have on top of an ISA; an ISA's kernels do without."""

_LANES = {AVX512_VNNI: 64, AVX_VNNI: 32, AVX2: 32, GENERIC: 16}
_FEATURES: dict[str, tuple[tuple[str, ...], ...]] = {
    AVX512_VNNI: (("avx512f", "avx512bw", "avx512vl", "avx512vnni"),),
    # The 256-bit instruction has two encodings: one of its own, and that of AVX-512.
    AVX_VNNI: (("avx2", "fma", "avxvnni"), ("avx2", "fma", "avx512vl", "avx512vnni")),
    AVX2: (("avx2", "fma"),),
    GENERIC: ((),),
}
"""The features of LLVM that each ISA needs: any one of the sets."""


def lanes_of(isa: str) -> int:
    """Return how many 8-bit elements an elementwise kernel handles at once on `isa`.

    64 bytes fill one AVX-512 register. 16 is what the vectors of nearly every CPU hold; LLVM splits or scalarises it elsewhere.

    Raises
    ------
    TargetError
        If `isa` is none of `KNOWN_ISAS`.
    """
    if isa not in _LANES:
        raise TargetError(f"unknown ISA {isa!r}: kernels are written for {', '.join(KNOWN_ISAS)}")
    return _LANES[isa]


def isas_of(target: Target) -> tuple[str, ...]:
    """Return the ISAs that `target` can run, best first; "generic" is always the last.

    Parameters
    ----------
    target
        An LLVM target. Its features are those of its "mcpu" and "mattr".

    Raises
    ------
    TargetError
        If the target is not of kind "llvm".
    """
    kind = str(target.kind.name)
    if kind != "llvm":
        raise TargetError(f"the kernels are written for targets of kind 'llvm', got {kind!r}: compile for a CPU")
    return tuple(isa for isa in KNOWN_ISAS if any(has_features(features, target) for features in _FEATURES[isa]))


def extensions_of(target: Target) -> tuple[str, ...]:
    """Return the extensions that `target` has, each with the ISA that it extends."""
    has_vnni = AVX512_VNNI in isas_of(target)
    return (AVX512_BF16,) if has_vnni and has_features(("avx512bf16",), target) else ()


def multiplies_bfloat16(target: Target, isas: Collection[str], extensions: Collection[str]) -> bool:
    """Return whether kernels may take products of bfloat16 that `target` computes itself.

    `isas` are those that kernels may use, `extensions` what they may use besides; none: all.
    """
    allowed = not extensions or AVX512_BF16 in extensions
    return allowed and AVX512_VNNI in isas and AVX512_BF16 in extensions_of(target)


def target_for(isa: str, host: Target) -> Target:
    """Return `host` less the wider vectors that a CPU with `isa` lacks, so that all of the code is as on such a CPU.

    "x86.avx_vnni" keeps AVX-512 where the host has no other 256-bit VNNI; "generic" keeps all, for it names kernels and no CPU.
    """
    config: dict[str, Any] = dict(host.export())
    without = {
        AVX2: ("avx512f", "avxvnni"),
        AVX_VNNI: ("avx512f",) if has_features(_FEATURES[AVX_VNNI][0], host) else (),
    }.get(isa, ())
    return Target(config | {"mattr": [*config.get("mattr", ()), *(f"-{feature}" for feature in without)]}) if without else host
