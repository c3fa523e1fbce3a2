"""Which ISAs a target has, and the host as a target."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tvm.target import Target, codegen

from octavo.compiler.backends.cpu.kernels import (
    ARM_DOTPROD,
    ARM_I8MM,
    ARM_NEON,
    AVX2,
    AVX512_VNNI,
    AVX_VNNI,
    GENERIC,
    isas_of,
    target_for,
)
from octavo.errors import TargetError
from octavo.runtime import llvm_host
from octavo.runtime.cpu_features import features_of
from octavo.runtime.llvm_host import host_target

X86_ISAS = (AVX512_VNNI, AVX_VNNI, AVX2, GENERIC)


@pytest.fixture
def other_hosts() -> Iterator[None]:
    """Forgets the host of before, and what the test makes of it: another's code would crash later tests of the process."""
    llvm_host._target_of.cache_clear()
    yield
    llvm_host._target_of.cache_clear()


@pytest.mark.parametrize(
    ("config", "isas"),
    [
        ({"mcpu": "znver4"}, X86_ISAS),
        ({"mcpu": "cascadelake"}, X86_ISAS),
        ({"mcpu": "alderlake"}, (AVX_VNNI, AVX2, GENERIC)),
        ({"mcpu": "skylake-avx512"}, (AVX2, GENERIC)),
        ({"mcpu": "haswell"}, (AVX2, GENERIC)),
        ({"mcpu": "sandybridge"}, (GENERIC,)),
        ({"mcpu": "znver4", "mattr": ["-avx512vnni"]}, (AVX2, GENERIC)),
        ({"mcpu": "x86-64", "mattr": ["+avx512f", "+avx512bw", "+avx512vl", "+avx512vnni", "+fma"]}, X86_ISAS),
    ],
)
def test_x86_targets(config: dict[str, object], isas: tuple[str, ...]) -> None:
    assert isas_of(Target({"kind": "llvm", "mtriple": "x86_64-linux-gnu", **config})) == isas


@pytest.mark.parametrize(
    ("config", "isas"),
    [
        ({}, (ARM_NEON, GENERIC)),
        ({"mcpu": "cortex-a53"}, (ARM_NEON, GENERIC)),
        ({"mattr": ["+dotprod"]}, (ARM_DOTPROD, ARM_NEON, GENERIC)),
        ({"mcpu": "cortex-a55"}, (ARM_DOTPROD, ARM_NEON, GENERIC)),
        ({"mcpu": "cortex-a76"}, (ARM_DOTPROD, ARM_NEON, GENERIC)),
        ({"mcpu": "neoverse-v1"}, (ARM_I8MM, ARM_DOTPROD, ARM_NEON, GENERIC)),
        ({"mcpu": "neoverse-v1", "mattr": ["-i8mm"]}, (ARM_DOTPROD, ARM_NEON, GENERIC)),
    ],
)
def test_arm_targets(config: dict[str, object], isas: tuple[str, ...]) -> None:
    assert isas_of(Target({"kind": "llvm", "mtriple": "aarch64-linux-gnu", **config})) == isas


def test_other_targets() -> None:
    riscv = {"mtriple": "riscv64-linux-gnu", "mattr": ["+m", "+a", "+f", "+d", "+c"]}
    assert isas_of(Target({"kind": "llvm", **riscv})) == (GENERIC,)
    with pytest.raises(TargetError, match="kind 'llvm', got 'c'"):
        isas_of(Target({"kind": "c"}))


def test_host_is_named() -> None:
    target = host_target()
    assert target.kind.name == "llvm"
    assert isas_of(target)[-1] == GENERIC


@pytest.mark.usefixtures("other_hosts")
def test_cpu_that_llvm_does_not_know(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codegen, "llvm_get_system_cpu", lambda: "abacus9")
    assert "mcpu" not in host_target().attrs


@pytest.mark.usefixtures("other_hosts")
@pytest.mark.needs_isa("x86")
def test_features_that_the_machine_hides(monkeypatch: pytest.MonkeyPatch) -> None:
    def offered(flags: str) -> tuple[str, ...]:
        monkeypatch.setattr(Path, "read_text", lambda *_, **__: f"processor\t: 0\nflags\t\t: {flags}\n")
        llvm_host._target_of.cache_clear()
        return isas_of(host_target())

    monkeypatch.setattr(codegen, "llvm_get_system_cpu", lambda: "znver4")
    znver4 = Target({"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": "znver4"})
    flags = {feature.cpuinfo for feature in features_of(znver4)}
    assert offered(" ".join(flags)) == (AVX512_VNNI, AVX_VNNI, AVX2, GENERIC)
    assert offered(" ".join(flags - {"avx512_vnni"})) == (AVX2, GENERIC)
    assert offered("fpu sse2 avx") == (GENERIC,)


@pytest.mark.parametrize(
    ("mcpu", "isa", "left"),
    [
        ("sapphirerapids", AVX512_VNNI, X86_ISAS),
        ("sapphirerapids", AVX_VNNI, (AVX_VNNI, AVX2, GENERIC)),
        ("sapphirerapids", AVX2, (AVX2, GENERIC)),
        ("cascadelake", AVX_VNNI, X86_ISAS),
        ("cascadelake", AVX2, (AVX2, GENERIC)),
        ("cascadelake", GENERIC, X86_ISAS),
    ],
)
def test_a_target_without_the_wider_vectors(mcpu: str, isa: str, left: tuple[str, ...]) -> None:
    host = Target({"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": mcpu})
    assert isas_of(target_for(isa, host)) == left
