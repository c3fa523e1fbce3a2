"""What `target=` and `--target` name: every entry point reads the choice here, so that all take the same spellings.

It compiles nothing and decides for no op; the description and the ISAs that it returns do.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import tvm

from ..errors import TargetError, brief
from ..runtime.cpu_features import features_of, machine_features, names_of
from ..runtime.llvm_host import cross_compiler, host_target, host_triple, is_foreign, is_wasm, processor_name, triple_of
from ..target import CPU, OpSupport, TargetDescription
from .backends.cpu.backend import Simulation
from .backends.cpu.kernels import KNOWN_ISAS, PORTABLE_TARGETS, isas_of, scheduled, target_for
from .backends.devices import device_backend, is_device
from .backends.protocol import Backend, DeviceBackend, check_backend

OneTarget = None | str | Path | TargetDescription | Backend | DeviceBackend | tvm.target.Target
TargetLike = OneTarget | Sequence[OneTarget]
TARGET_VARIABLE = "OCTAVO_TARGET"
"""The environment variable that names the ISA to compile for where no target is given."""

SPELLINGS = (
    f"'cpu', an ISA ({', '.join(KNOWN_ISAS)}), an ARM64 CPU as LLVM names it ('cortex-a76'), an LLVM target ('llvm -mcpu=...', "
    "or a tvm Target), a GPU ('cuda', 'cuda.sm_80'), a TargetDescription or the path of one (JSON), or a Backend; or a list "
    "of Backends and TargetDescriptions that choose one after the other, any of these last"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class ResolvedTarget:
    """What may run in integers, the LLVM target of the code, and the ISAs that its kernels may use, best first.

    Parameters
    ----------
    description
        What is quantized for it: of several targets, for each op what the first says that lists it.
    backends
        Those whose code computes what they describe, in the order in which they choose, before the host.
    host
        What kernels of this machine take of the rest.
    described
        What `description` is made of: those that choose, in their order.
    device
        What runs the whole module in memory of its own; None where this machine, or one like it, does.
    """

    description: TargetDescription
    llvm: tvm.target.Target
    isas: tuple[str, ...]
    host: TargetDescription
    backends: tuple[Backend, ...] = ()
    described: tuple[TargetDescription, ...] = ()
    device: DeviceBackend | None = None

    @property
    def isa(self) -> str:
        """Of the kernels that it gets, the best one."""
        return self.isas[0] if self.device is None else self.device.isa

    @property
    def processor(self) -> str | None:
        """What times are measured on: this machine, or the chip of a device, None where only its ISA is named."""
        return processor_name() if self.device is None else self.device.chip


def resolve_target(target: TargetLike | ResolvedTarget, machine: tvm.target.Target | None = None) -> ResolvedTarget:
    """Return what a choice of target stands for.

    Parameters
    ----------
    target
        None or "cpu" for all that `machine` has; an ISA's name for `machine` with that ISA's kernels, without the wider vectors
        that a CPU of that ISA lacks; an LLVM target, as text or a tvm Target; a TargetDescription or the path of one, for what it
        describes in kernels of `machine`; a Backend, for what it describes in its own code, and the rest in kernels of `machine`;
        a list of Backends and TargetDescriptions, and last any of these: each op goes to the first that takes it, what all leave
        to the host. One that was resolved before is returned as it is.
    machine
        This machine by default; where OCTAVO_TARGET names an ISA, this machine as a CPU of that ISA.

    Raises
    ------
    TargetError
        None of these, an LLVM target that LLVM doesn't know, a description that can't be read, an ISA in OCTAVO_TARGET that is
        unknown or not this machine's.
    """
    if isinstance(target, ResolvedTarget):
        return target
    if isinstance(target, (list, tuple)):
        return _several(target, machine)
    if isinstance(target, Backend):
        return replace(resolve_target(None, machine), description=check_backend(target).description, backends=(target,))
    if isinstance(target, tvm.target.Target):
        return ResolvedTarget(description=CPU, llvm=scheduled(target), isas=isas_of(target), host=CPU)
    if isinstance(target, str) and target.split()[:1] == ["llvm"]:
        return resolve_target(_llvm_target(target))
    if isinstance(target, str) and target in KNOWN_ISAS:
        machine = machine or host_target()
        return ResolvedTarget(description=CPU, llvm=scheduled(target_for(target, machine)), isas=(target,), host=CPU)
    if isinstance(target, DeviceBackend) or (isinstance(target, str) and is_device(target)):
        return _device(target, machine)
    if isinstance(target, str) and _is_arm_cpu(target):
        return resolve_target(_arm_target(target))
    description = CPU if target is None or target == "cpu" else _description(target)
    machine, offered = _this_machine() if machine is None else (machine, isas_of(machine))
    # Where none is left, lowering says what the description lists and what the machine offers.
    isas = tuple(isa for isa in offered if isa in (description.isas or offered)) or offered
    return ResolvedTarget(description=description, llvm=scheduled(machine), isas=isas, host=description)


def _device(target: DeviceBackend | str, machine: tvm.target.Target | None) -> ResolvedTarget:
    """Return a device, and this machine, whose kernels compute what the device does where a stage runs samples."""
    device = device_backend(target) if isinstance(target, str) else target
    return replace(resolve_target(device.description, machine), device=device)


def _several(targets: Sequence[Any], machine: tvm.target.Target | None) -> ResolvedTarget:
    if not targets:
        raise TargetError(f"the list of targets is empty: give {SPELLINGS}")
    for position, target in enumerate(targets[:-1]):
        if not (isinstance(target, (Backend, TargetDescription)) or _is_path(target)):
            expected = "a Backend, a TargetDescription or the path of one (only the last may be the host)"
            raise TargetError(f"targets[{position}]: expected {expected}, got {brief(target)}")
    last = resolve_target(targets[-1], machine)
    backends = (*(_chooser(target) for target in targets[:-1]), *last.backends)
    descriptions = [*(backend.description for backend in backends), *([] if last.backends else [last.host])]
    names = [description.name for description in descriptions]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise TargetError(f"the targets' names must differ: {twice!r} stands twice")
    return replace(last, description=_merged(descriptions), backends=backends, described=tuple(descriptions))


def _chooser(target: Any) -> Backend:
    """Return what chooses before the host: a back end, or a description whose ops the host's kernels compute."""
    return check_backend(target if isinstance(target, Backend) else Simulation(_description(target)))


def _merged(descriptions: Sequence[TargetDescription]) -> TargetDescription:
    """Return for each op what the first description says that has it."""
    if len(descriptions) == 1:
        return descriptions[0]
    supports: dict[str, OpSupport] = {}
    for description in descriptions:
        for entry in description.ops:
            if entry.op not in description.never:
                supports.setdefault(entry.op, entry)
    return TargetDescription(name="+".join(each.name for each in descriptions), ops=tuple(supports.values()))


def check_emits(target: ResolvedTarget, *, as_c: bool = False) -> None:
    """Raise TargetError unless the object files of a target are ELF, or with `as_c`, for a C library, WebAssembly."""
    triple = triple_of(target.llvm)
    if is_wasm(target.llvm) and not as_c:
        raise TargetError(
            f"target {triple}: only ELF files (Linux) are executables; write a C library for it: --emit c, export_c"
        )
    if any(word in triple for word in _OTHER_FORMATS):
        raise TargetError(
            f"target {triple}: only ELF files (Linux) are written; give a triple such as x86_64-linux-gnu or "
            "aarch64-linux-gnu, or compile on a machine of that kind"
        )


_OTHER_FORMATS = ("windows", "win32", "mingw", "cygwin", "msvc", "uefi", "apple", "darwin", "macos", "ios", "aix")
"""Words of triples whose object files are COFF, Mach-O or XCOFF."""


def check_is_host(target: ResolvedTarget, what: str) -> None:
    """Raise TargetError for a device, for which there is no `what` ("C library")."""
    if target.device is not None:
        raise TargetError(f"target {target.device.name}: there is a {what} for CPUs alone; give a CPU, or leave the target out")


def check_compiles_here(target: ResolvedTarget) -> None:
    """Raise TargetError unless code for a target can be linked here: it runs here, or a cross compiler is on PATH."""
    if target.device is not None:
        return
    if triple_of(target.llvm) != host_triple():
        check_emits(target)
    if not is_foreign(target.llvm):
        check_runs_here(target)
    elif shutil.which(compiler := cross_compiler(target.llvm)) is None:
        raise TargetError(
            f"target {triple_of(target.llvm)}: this machine is {host_triple()}, and {compiler} is not on PATH; "
            "install it, which links for that, compile on a machine of that kind, or hand octavo.relax_pipeline to tvm.compile"
        )


def check_runs_here(target: ResolvedTarget) -> None:
    """Raise TargetError unless this machine can run code for a target: an Executable is loaded as it is made."""
    if is_foreign(target.llvm):
        raise TargetError(
            f"target {triple_of(target.llvm)}: this machine is {host_triple()}; compile on a machine of that kind, "
            "or hand octavo.relax_pipeline to tvm.compile"
        )
    if len(target.isas) == 1 and target.isas[0] not in (offered := isas_of(host_target())):
        raise TargetError(f"this machine has no {target.isas[0]}; it has {', '.join(offered)}")


def _this_machine() -> tuple[tvm.target.Target, tuple[str, ...]]:
    """Return this machine, or what is left of it on a CPU of the ISA that OCTAVO_TARGET names, and the ISAs of its kernels."""
    host, isa = host_target(), os.environ.get(TARGET_VARIABLE)
    if not isa:
        return host, isas_of(host)
    if isa not in KNOWN_ISAS:
        raise TargetError(f"{TARGET_VARIABLE} names the unknown ISA {isa!r}: choose from {', '.join(KNOWN_ISAS)}, or unset it")
    if isa not in (offered := isas_of(host)):
        raise TargetError(
            f"{TARGET_VARIABLE} names {isa}, which this machine lacks: choose from {', '.join(offered)}, or unset it"
        )
    return target_for(isa, host), offered[offered.index(isa) :]


def portable_targets() -> tuple[str, ...]:
    """Return the targets for which one file is made that serves several levels of CPUs, best first; TargetError if none are."""
    if not host_triple().startswith("x86_64"):
        raise TargetError(f"several versions are of x86_64 alone, this machine is {host_triple()}; leave out --multiversion")
    return PORTABLE_TARGETS


def present_features() -> frozenset[str] | None:
    """Return the features that this machine has, or that a CPU of the ISA in OCTAVO_TARGET would; None where it is not known."""
    present = machine_features()
    if present is None or not os.environ.get(TARGET_VARIABLE):
        return present
    return present & set(names_of(features_of(_this_machine()[0])))


def _description(target: object) -> TargetDescription:
    if isinstance(target, TargetDescription):
        return target
    if not _is_path(target):
        raise TargetError(f"unknown target {brief(target)}: give {SPELLINGS}")
    return TargetDescription.load(str(target))


def _is_path(target: object) -> bool:
    return isinstance(target, Path) or (isinstance(target, str) and (target.endswith(".json") or os.path.isfile(target)))


_ARM = "aarch64-linux-gnu"


def _is_arm_cpu(name: str) -> bool:
    """Return whether LLVM knows a CPU for ARM64 by this name."""
    return name.replace("-", "").isalnum() and name in _arm_cpus()


@cache
def _arm_cpus() -> frozenset[str]:
    target = tvm.target.Target({"kind": "llvm", "mtriple": _ARM})
    return frozenset(str(name) for name in tvm.target.codegen.llvm_get_cpu_archlist(target)) - {"generic"}


def _arm_target(cpu: str) -> tvm.target.Target:
    triple = host_triple() if host_triple().startswith("aarch64") else _ARM
    return tvm.target.Target({"kind": "llvm", "mtriple": triple, "mcpu": cpu})


_RV64GC = ("+m", "+a", "+f", "+d", "+c")
"""What Linux distributions for RISC-V ask of a CPU; without these LLVM's floats are calls, in another calling convention."""

_WASM_VECTOR_BITS = 128
"""TVM takes as much, and warns at every kernel that nobody said so."""


def _llvm_target(text: str) -> tvm.target.Target:
    """Read "llvm -mcpu=cascadelake -mattr=+a,-b -mtriple=..."; TargetError where an option or the CPU is unknown."""
    kind, *options = text.split()
    config: dict[str, Any] = {"kind": kind}
    for option in options:
        key, equals, value = option.removeprefix("-").partition("=")
        if not option.startswith("-") or not equals or key not in ("mcpu", "mattr", "mtriple"):
            raise TargetError(f"target {text!r}: expected options -mcpu=, -mattr=, -mtriple=, got {option!r}")
        config[key] = value.split(",") if key == "mattr" else value
    if str(config.get("mtriple", "")).startswith("riscv64") and config.keys().isdisjoint(("mcpu", "mattr")):
        config["mattr"] = list(_RV64GC)
    if str(config.get("mtriple", "")).startswith("wasm"):
        config["vector-width"] = _WASM_VECTOR_BITS
    if "mcpu" in config and "mtriple" not in config and not tvm.target.codegen.llvm_is_valid_cpu(config["mcpu"], host_triple()):
        raise TargetError(f"target {text!r}: LLVM knows no CPU {config['mcpu']!r} for {host_triple()}")
    try:
        return tvm.target.Target(config)
    except (ValueError, TypeError, RuntimeError) as error:
        raise TargetError(f"target {text!r}: {str(error).strip().splitlines()[-1]}") from error
