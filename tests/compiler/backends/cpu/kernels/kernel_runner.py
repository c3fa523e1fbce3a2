"""Runs kernels against their oracles: many PrimFuncs in one compilation, each compared bit for bit.

With OCTAVO_EMULATE (`make test-arm`) all of this is of another machine, which QEMU emulates.
"""

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import tvm
from emulated_kernels import MACHINES, EmulatedCode, call_of, check_emulated
from tvm_ffi import StructuralKey

from machine_isas import EMULATED, each_isa, machine_isas
from octavo.compiler.backends.cpu.kernels import AVX2, AVX512_VNNI, AVX_VNNI, GENERIC, Kernel, isas_of, without_vbmi
from octavo.compiler.codegen.tir_passes import llvm_module
from octavo.ir.graph.kernel_attributes import KERNEL_ATTR
from octavo.runtime.llvm_host import host_target

_Work = TypeVar("_Work")

GUARD = 256
"""Bytes behind every output that a kernel must leave alone."""

SIZES = (1, 3, 15, 16, 17, 31, 33, 63, 64, 65, 127, 129, 1000)
"""Element counts around the vector widths."""

PARALLEL_SIZE = 40_003
"""Elements enough for two threads, and no multiple of a vector."""

MACHINE = MACHINES[EMULATED] if EMULATED else None
"""The machine that is emulated."""

ISAS = machine_isas()[-1:] if MACHINE else isas_of(host_target())
"""Those of the machine that runs kernels, the best first; an emulated one has its own alone."""

EACH_NARROW_ISA = each_isa((AVX_VNNI, AVX2))
"""Those of 256 bits: kernels of 512 cut in two, but for what AVX2 multiplies in words; test_narrow_kernels.py is about both."""

OTHER_ISAS = ISAS if MACHINE else (AVX512_VNNI, GENERIC)

EACH_ISA = each_isa(OTHER_ISAS)
"""The others, one test for each."""

HOST_ISAS = tuple(isa for isa in ISAS if isa in OTHER_ISAS)
"""Those of the others that this machine has, for a test of several."""


@dataclass(frozen=True, kw_only=True)
class Case:
    kernel: Kernel
    inputs: tuple[np.ndarray, ...]
    expected: np.ndarray
    about: object


def check(cases: Iterable[Case], target: tvm.target.Target | None = None) -> None:
    """Compile every kernel for `target` (the host by default), run it, and compare with the oracle.

    Equal functions are compiled once, as a model's are: what two ISAs share is best checked in one call for both.
    """
    cases = list(cases)
    if MACHINE:
        check_emulated(map(call_of, cases), MACHINE, is_optimized=True)
        return
    names: dict[StructuralKey, str] = {}
    named = [names.setdefault(StructuralKey(case.kernel.func), f"kernel_{i}") for i, case in enumerate(cases)]
    functions = {name: case.kernel.func for name, case in zip(named, cases, strict=True)}
    library = Compiled(functions, target or host_target())
    wrong = [case.about for name, case in zip(named, cases, strict=True) if not _equal(library[name], case)]
    assert not wrong, f"{len(wrong)} of {len(cases)} kernels differ from the oracle, the first: {wrong[0]}"


class Compiled:
    """Kernels compiled as a model's are, in one module and past the cache. They check nothing that they are given; this does.

    What is compiled for this machine is for the emulated one where tests run on that.
    """

    def __init__(self, functions: Mapping[str, tvm.tirx.PrimFunc], target: tvm.target.Target) -> None:
        self._functions = functions
        if MACHINE and target.same_as(host_target()):
            self.code: Any = EmulatedCode(functions, MACHINE)
            return
        named = {name: without_vbmi(func, target).with_attr(KERNEL_ATTR, name) for name, func in functions.items()}
        self.code = llvm_module(named, target)

    def __getitem__(self, name: str) -> Callable[..., None]:
        takes = [(tuple(int(dim) for dim in each.ty.shape), str(each.ty.dtype)) for each in self._functions[name].params]
        function = self.code[name]

        def call(*tensors: tvm.runtime.Tensor) -> None:
            assert [(tuple(each.shape), str(each.dtype)) for each in tensors] == takes
            function(*tensors)

        return call


def part(work: Sequence[_Work], isa: str, step: int = 3) -> Sequence[_Work]:
    """All of `work` for an ISA with code of its own, every `step`-th piece for the generic one, whose vectors LLVM makes."""
    return work[::step] if isa == GENERIC else work


def few(cases: Iterable[Case], step: int) -> Iterable[Case]:
    """Every `step`-th case, for a target whose code differs in its arithmetic and not by shape.

    The step must have no factor in common with the cycles that the cases are drawn in, so that all of their members come by.
    """
    return itertools.islice(cases, 0, None, step)


def baseline_target() -> tvm.target.Target:
    """An x86-64 target without AVX or fused multiply-add, where this machine is one: other code, and the same bits are due."""
    if MACHINE or "x86" not in tvm.target.codegen.llvm_get_system_triple():
        return host_target()
    return tvm.target.Target({"kind": "llvm", "mcpu": "x86-64"})


def _equal(function: Callable[..., None], case: Case) -> bool:
    arguments = [*case.inputs, *case.kernel.constants]
    tensors = [tvm.runtime.tensor(np.ascontiguousarray(value).ravel()) for value in arguments]
    expected = np.ascontiguousarray(case.expected).ravel()
    guard = GUARD // expected.itemsize
    # Neither a byte left as it was nor one written behind the end may pass.
    filler = np.full(expected.size + guard, 77, expected.dtype)
    storage = tvm.runtime.tensor(filler)
    function(*tensors, storage._create_view((expected.size,), str(expected.dtype)))
    got = storage.numpy()
    assert np.array_equal(got[expected.size :], filler[expected.size :]), f"written behind the end: {case.about}"
    return np.array_equal(got[: expected.size], expected, equal_nan=expected.dtype.kind == "f")


__all__ = [
    "EACH_ISA",
    "EACH_NARROW_ISA",
    "GENERIC",
    "HOST_ISAS",
    "ISAS",
    "PARALLEL_SIZE",
    "SIZES",
    "Case",
    "Compiled",
    "baseline_target",
    "check",
    "few",
    "part",
]
