"""Which ISAs and devices this machine has, and tests that run once for each ISA: `needs_isa` skips them where it is missing."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable
from functools import cache
from typing import Any

import pytest

from octavo.compiler.backends.cpu.kernels import AVX512_VNNI, GENERIC, extensions_of
from octavo.compiler.backends.cpu.kernels.language.isa import ISAS
from octavo.compiler.target_choice import resolve_target
from octavo.errors import TargetError
from octavo.runtime.llvm_host import host_triple

EMULATED = os.environ.get("OCTAVO_EMULATE", "")
"""The machine on which tests of kernels run them, by QEMU: a name of `emulated_kernels.MACHINES`; "" for this machine itself."""


@cache
def machine_isas() -> tuple[str, ...]:
    """The ISAs and extensions that may run here; of OCTAVO_TARGET's ISA where that is set, of OCTAVO_EMULATE's its own alone.

    "x86" is there wherever the machine itself is one.
    """
    host = ("x86",) if host_triple().startswith("x86_64") else ()
    if EMULATED:
        return (*host, EMULATED if EMULATED in ISAS else GENERIC)
    machine = resolve_target(None)
    return (*host, *machine.isas, *(extensions_of(machine.llvm) if AVX512_VNNI in machine.isas else ()))


@cache
def machine_devices() -> tuple[str, ...]:
    """Which of `gpu` and `no gpu` this machine has."""
    try:
        resolve_target("cuda")
    except TargetError:
        return ("no gpu",)
    return ("gpu",)


def each_isa(isas: Iterable[str]) -> list[Any]:
    """Parameters for `pytest.mark.parametrize("isa", ...)`; a test is skipped, and counted, where the machine lacks its ISA."""
    return [pytest.param(isa, marks=pytest.mark.needs_isa(isa)) for isa in isas]


_FOREIGN = "x86" if EMULATED or platform.machine() in ("aarch64", "arm64") else "arm"

FAMILY_ISAS = tuple(name for name, isa in ISAS.items() if isa.family != _FOREIGN)
"""Every ISA that a machine of this architecture can have: code for the others runs in the emulator alone."""

EVERY_ISA = each_isa(FAMILY_ISAS)
