"""Which ISAs a target has, and the host as a target."""

from pathlib import Path

import pytest
from tvm.target import Target, codegen

from octavo.backends.cpu.kernels import AVX2, AVX512_VNNI, AVX_VNNI, GENERIC, KNOWN_ISAS, isas_of, target_for
from octavo.errors import TargetError
from octavo.target.llvm_host import host_target


@pytest.mark.parametrize(
    ("config", "isas"),
    [
        ({"mcpu": "znver4"}, KNOWN_ISAS),
        ({"mcpu": "cascadelake"}, KNOWN_ISAS),
        ({"mcpu": "alderlake"}, (AVX_VNNI, AVX2, GENERIC)),
        ({"mcpu": "skylake-avx512"}, (AVX2, GENERIC)),
        ({"mcpu": "haswell"}, (AVX2, GENERIC)),
        ({"mcpu": "sandybridge"}, (GENERIC,)),
        ({"mcpu": "znver4", "mattr": ["-avx512vnni"]}, (AVX2, GENERIC)),
        ({"mcpu": "x86-64", "mattr": ["+avx512f", "+avx512bw", "+avx512vl", "+avx512vnni", "+fma"]}, KNOWN_ISAS),
    ],
)
def test_x86_targets(config: dict[str, object], isas: tuple[str, ...]) -> None:
    assert isas_of(Target({"kind": "llvm", "mtriple": "x86_64-linux-gnu", **config})) == isas


def test_other_targets() -> None:
    assert isas_of(Target({"kind": "llvm", "mtriple": "aarch64-linux-gnu"})) == (GENERIC,)
    with pytest.raises(TargetError, match="kind 'llvm', got 'c'"):
        isas_of(Target({"kind": "c"}))


def test_host_is_named() -> None:
    target = host_target()
    assert target.kind.name == "llvm"
    assert isas_of(target)[-1] == GENERIC


def test_cpu_that_llvm_does_not_know(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codegen, "llvm_get_system_cpu", lambda: "abacus9")
    assert "mcpu" not in host_target().attrs


@pytest.mark.skipif("x86" not in codegen.llvm_get_system_triple(), reason="x86 features")
def test_features_that_the_machine_hides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codegen, "llvm_get_system_cpu", lambda: "znver4")
    flags = "flags\t\t: fpu sse2 avx avx2 fma avx512f avx512bw avx512vl"
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: f"processor\t: 0\n{flags} avx512_vnni\n")
    assert isas_of(host_target()) == (AVX512_VNNI, AVX_VNNI, AVX2, GENERIC)
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: f"processor\t: 0\n{flags}\n")
    assert isas_of(host_target()) == (AVX2, GENERIC)
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: "processor\t: 0\nflags\t\t: fpu sse2 avx\n")
    assert isas_of(host_target()) == (GENERIC,)


@pytest.mark.parametrize(
    ("mcpu", "isa", "left"),
    [
        ("sapphirerapids", AVX512_VNNI, KNOWN_ISAS),
        ("sapphirerapids", AVX_VNNI, (AVX_VNNI, AVX2, GENERIC)),
        ("sapphirerapids", AVX2, (AVX2, GENERIC)),
        ("cascadelake", AVX_VNNI, KNOWN_ISAS),
        ("cascadelake", AVX2, (AVX2, GENERIC)),
        ("cascadelake", GENERIC, KNOWN_ISAS),
    ],
)
def test_a_target_without_the_wider_vectors(mcpu: str, isa: str, left: tuple[str, ...]) -> None:
    host = Target({"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": mcpu})
    assert isas_of(target_for(isa, host)) == left
