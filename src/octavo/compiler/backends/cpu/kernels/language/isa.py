"""Instruction sets (ISAs) of the kernels: their names, which a target has, and the host as a target.

It decides from the target alone and picks no kernel: each kernel takes the ISA it is to be written for.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from tvm.target import Target

from ......errors import TargetError
from ......runtime.llvm_host import has_features

AVX512_VNNI = "x86.avx512_vnni"
AVX_VNNI = "x86.avx_vnni"
AVX2 = "x86.avx2"
ARM_I8MM = "arm.i8mm"
ARM_DOTPROD = "arm.dotprod"
ARM_NEON = "arm.neon"
GENERIC = "generic"


@dataclass(frozen=True, kw_only=True, slots=True)
class Isa:
    """An instruction set that kernels are written for.

    Parameters
    ----------
    features
        The features of LLVM that it needs: any one of the sets.
    lanes
        8-bit elements that an elementwise kernel handles at once: those of one register, or of what most CPUs split evenly.
    family
        Whose convolutions and matmuls it has: those of `x86` or `arm`, or the generic ones that leave vectors to LLVM.
    absent
        Features of LLVM that a CPU with this ISA, and no better one, lacks.
    schedules
        A CPU of this ISA, and that with the same vectors for whose pipeline LLVM orders its instructions.
    options
        Options of LLVM's, as targets take them, with which it compiles these kernels better.
    portable
        A target whose code runs on every CPU of this ISA; "" where one file is not made for several.
    """

    features: tuple[tuple[str, ...], ...]
    lanes: int
    family: Literal["x86", "arm", "generic"] = "generic"
    absent: tuple[str, ...] = ()
    schedules: Mapping[str, str] = field(default_factory=dict[str, str])
    options: tuple[str, ...] = ()
    portable: str = ""


# For Zen 3 and later LLVM loads words so far ahead of their products that no register is left for them.
_AS_ZEN2 = {"znver3": "znver2", "znver4": "znver2", "znver5": "znver2"}

# For cores that issue in order LLVM unrolls loops, and forms all products before any sum: registers are spilled.
_AS_ANY_ARM = {"cortex-a34": "generic", "cortex-a35": "generic", "cortex-a53": "generic", "cortex-a55": "generic"}
# Two loads in one instruction leave no room for products between them: a core that issues in order waits, and one that decodes it
# as three operations loses a place beside it.
_SINGLE_LOADS = ("-aarch64-enable-ldst-opt:bool=false",)

ISAS = {
    AVX512_VNNI: Isa(
        features=(("avx512f", "avx512bw", "avx512vl", "avx512vnni"),),
        lanes=64,
        family="x86",
        portable="llvm -mcpu=x86-64-v4 -mattr=+avx512vnni",
    ),
    # The 256-bit instruction has two encodings: one of its own, and that of AVX-512.
    AVX_VNNI: Isa(
        features=(("avx2", "fma", "avxvnni"), ("avx2", "fma", "avx512vl", "avx512vnni")),
        lanes=32,
        family="x86",
        absent=("avx512f",),
        portable="llvm -mcpu=x86-64-v3 -mattr=+avxvnni",
    ),
    AVX2: Isa(
        features=(("avx2", "fma"),),
        lanes=32,
        family="x86",
        absent=("avx512f", "avxvnni"),
        schedules=_AS_ZEN2,
        portable="llvm -mcpu=x86-64-v3",
    ),
    ARM_I8MM: Isa(features=(("neon", "dotprod", "i8mm"),), lanes=16, family="arm", options=_SINGLE_LOADS),
    ARM_DOTPROD: Isa(features=(("neon", "dotprod"),), lanes=16, family="arm", absent=("i8mm",), options=_SINGLE_LOADS),
    ARM_NEON: Isa(
        features=(("neon",),),
        lanes=16,
        family="arm",
        absent=("dotprod", "i8mm"),
        schedules=_AS_ANY_ARM,
        options=_SINGLE_LOADS,
    ),
    # 16 is what the vectors of nearly every CPU hold; LLVM splits or scalarizes it elsewhere.
    GENERIC: Isa(features=((),), lanes=16),
}
"""Every ISA that kernels are written for, best first. A new one is a row; what is written for it alone asks for its name."""

KNOWN_ISAS = tuple(ISAS)

PORTABLE_TARGETS = tuple(isa.portable for isa in ISAS.values() if isa.portable)
"""Targets for which one file is made that runs on any x86 CPU with AVX2, best first."""

AVX512_BF16 = "x86.avx512_bf16"
ARM_BF16 = "arm.bf16"
EXTENSIONS = {AVX512_BF16: ((AVX512_VNNI,), ("avx512bf16",)), ARM_BF16: ((ARM_I8MM, ARM_DOTPROD), ("bf16",))}
"""Products of bfloat16: extensions of some ISAs, and the features of LLVM that each needs beside theirs."""


def lanes_of(isa: str) -> int:
    """Return how many 8-bit elements an elementwise kernel handles at once on `isa`.

    Raises
    ------
    TargetError
        If `isa` is none of `KNOWN_ISAS`.
    """
    return checked_isa(isa).lanes


def checked_isa(isa: str) -> Isa:
    """Return an ISA by its name; TargetError if it is unknown."""
    if isa not in ISAS:
        raise TargetError(f"unknown ISA {isa!r}: kernels are written for {', '.join(KNOWN_ISAS)}")
    return ISAS[isa]


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
    return tuple(name for name, isa in ISAS.items() if any(has_features(features, target) for features in isa.features))


def extensions_of(target: Target) -> tuple[str, ...]:
    """Return the extensions that `target` has, each with an ISA that it extends."""
    isas = isas_of(target)
    return tuple(
        name for name, (extended, features) in EXTENSIONS.items() if set(extended) & set(isas) and has_features(features, target)
    )


def bfloat16_extension_of(isa: str) -> str:
    """Return the extension of an ISA by which its kernels take products of bfloat16; there is one where `multiplies_bfloat16`."""
    return next(name for name, (extended, _) in EXTENSIONS.items() if isa in extended)


def multiplies_bfloat16(target: Target, isas: Collection[str], extensions: Collection[str]) -> bool:
    """Return whether kernels may take products of bfloat16 that `target` computes itself.

    `isas` are those that kernels may use, `extensions` what they may use besides; none: all.
    """
    allowed = [name for name in extensions_of(target) if not extensions or name in extensions]
    return any(set(EXTENSIONS[name][0]) & set(isas) for name in allowed)


def target_for(isa: str, host: Target) -> Target:
    """Return `host` less the wider vectors that a CPU with `isa` lacks, so that all of the code is as on such a CPU.

    "x86.avx_vnni" keeps AVX-512 where the host has no other 256-bit VNNI; "generic" keeps all, for it names kernels and no CPU.
    """
    config: dict[str, Any] = dict(host.export())
    # One that the host has by wider features alone keeps them.
    has_own = has_features(ISAS[isa].features[0], host)
    absent = [f"-{feature}" for feature in ISAS[isa].absent] if has_own else []
    return Target(config | {"mattr": [*config.get("mattr", ()), *absent]}) if absent else host


def scheduled(target: Target) -> Target:
    """Return `target` as LLVM compiles the kernels of its best ISA best: by options, and with the pipeline of another CPU.

    What is known of its core by its CPU's name, `isas_of` says of `target` itself alone.
    """
    isa, config = ISAS[isas_of(target)[0]], dict[str, Any](target.export())
    changes: dict[str, Any] = {}
    if other := isa.schedules.get(str(config.get("mcpu"))):
        changes["mcpu"] = other
    given = [str(option) for option in config.get("cl-opt", ())]
    if added := [option for option in isa.options if option not in given]:
        changes["cl-opt"] = [*given, *added]
    return Target(config | changes) if changes else target
