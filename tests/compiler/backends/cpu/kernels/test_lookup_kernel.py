"""Lookup: every byte through random tables, at sizes around the vector width, bit for bit."""

import numpy as np
import pytest
import tvm
from kernel_runner import EACH_ISA, EACH_NARROW_ISA, PARALLEL_SIZE, SIZES, Case, baseline_target, check

from octavo import numerics
from octavo.compiler.backends.cpu import kernels
from octavo.compiler.backends.cpu.kernels import AVX512_VNNI, GENERIC, LookupSpec
from octavo.runtime.llvm_host import host_target

WORK = [*((size, 1) for size in SIZES), (129, 2), (PARALLEL_SIZE, 1), (PARALLEL_SIZE, 2)]


def cases(rng: np.random.Generator, isa: str) -> list[Case]:
    made: list[Case] = []
    for size, threads in WORK:
        table = rng.permutation(256).astype(np.uint8)
        x = rng.integers(0, 256, size).astype(np.uint8)
        x[: min(size, 256)] = np.arange(min(size, 256))
        kernel = kernels.lookup(LookupSpec(size=size, threads=threads), table=table, isa=isa)
        made.append(Case(kernel=kernel, inputs=(x,), expected=numerics.lookup(x, table), about=(size, threads)))
    return made


@pytest.mark.parametrize("isa", [*EACH_ISA, *EACH_NARROW_ISA])
def test_equals_the_oracle(rng: np.random.Generator, isa: str) -> None:
    check(cases(rng, isa))


@pytest.mark.needs_isa(AVX512_VNNI)
def test_same_bits_without_vbmi(rng: np.random.Generator) -> None:
    host = dict(host_target().export())
    check(cases(rng, AVX512_VNNI), tvm.target.Target(host | {"mattr": [*host.get("mattr", ()), "-avx512vbmi"]}))


def test_same_bits_on_the_baseline(rng: np.random.Generator) -> None:
    check(cases(rng, GENERIC), baseline_target())
