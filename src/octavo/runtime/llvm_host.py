"""This machine as a target of LLVM's: its processor, less the features that it names and the operating system does not report.

It knows no instruction set by Octavo's names and picks no kernel.
"""

from __future__ import annotations

import platform
from functools import lru_cache
from pathlib import Path
from typing import Any

from tvm.target import Target, codegen

from .cpu_features import features_of


@lru_cache(maxsize=256)
def has_features(features: tuple[str, ...], target: Target) -> bool:
    """Return whether a target has all of these features of LLVM."""
    return not features or bool(codegen.target_has_features(features, target))


def host_target() -> Target:
    """Return the LLVM target of this machine: its CPU's name, less the vector features that it names but the machine hides.

    Where LLVM does not know the CPU, the target has no "mcpu", which means the baseline of the architecture.
    """
    return _target_of(str(codegen.llvm_get_system_cpu()))


@lru_cache
def _target_of(cpu: str) -> Target:
    """Return the target of this machine, whose CPU LLVM calls `cpu`: the same object each time, which `has_features` knows."""
    if cpu not in {str(name) for name in codegen.llvm_get_cpu_archlist(Target({"kind": "llvm"}))}:
        return Target({"kind": "llvm"})
    config: dict[str, Any] = {"kind": "llvm", "mcpu": cpu}
    hidden = _hidden_features(Target(config))
    return Target(config | {"mattr": [f"-{feature}" for feature in hidden]}) if hidden else Target(config)


def _hidden_features(target: Target) -> list[str]:
    """Return the features that the CPU's name implies and the operating system does not report (a hypervisor hides them)."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    flags = next((set(line.split(":", 1)[1].split()) for line in lines if line.startswith("flags")), None)
    if flags is None:  # not x86
        return []
    return [feature.llvm for feature in features_of(target) if feature.cpuinfo not in flags]


def host_triple() -> str:
    """Return LLVM's name of this machine and its system."""
    return str(codegen.llvm_get_system_triple())


def triple_of(target: Target) -> str:
    """Return the triple of a target: this machine's where it names none."""
    return str(target.attrs.get("mtriple") or host_triple())


def is_foreign(target: Target) -> bool:
    """Return whether code for a target is for another architecture than this machine's."""
    return triple_of(target).split("-")[0] != host_triple().split("-")[0]


def is_wasm(target: Target) -> bool:
    """Return whether object files of a target are WebAssembly."""
    return triple_of(target).startswith("wasm")


def cross_compiler(target: Target) -> str:
    """Return what the C compiler that links for a foreign target is called, as Debian and others name it."""
    return f"{triple_of(target)}-gcc"


def processor_name() -> str:
    """Return the processor's name as the operating system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
