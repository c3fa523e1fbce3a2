"""Casts to and from 16-bit floats, against their oracle bit for bit."""

import numpy as np
import pytest
from kernel_runner import EACH_ISA, PARALLEL_SIZE, SIZES, Case, baseline_target, check, few

from octavo.compiler.backends.cpu.kernels import HalfCastSpec, half_cast
from octavo.numerics.floats.half import from_half, to_half


def floats(rng: np.random.Generator, size: int) -> np.ndarray:
    """Any bits: NaN, infinities and subnormal numbers among them, and ties of both formats."""
    values = rng.integers(0, 2**32, size, np.uint32)
    special = np.array([0x7F800001, 0xFFFFFFFF, 0x7F800000, 0xFF800000, 0x00000001, 0x807FFFFF, 0x7F7F8000], np.uint32)
    chosen = rng.integers(0, 4, size)
    values[chosen == 0] = rng.choice(special, int((chosen == 0).sum()))
    values[chosen == 1] = values[chosen == 1] & np.uint32(0xFFFF8000)
    values[chosen == 2] = rng.normal(size=int((chosen == 2).sum())).astype(np.float32).view(np.uint32)
    return values.view(np.float32)


def cases(rng: np.random.Generator, dtype: str, isa: str) -> list[Case]:
    found: list[Case] = []
    for size, threads in [*((size, 1) for size in SIZES), (PARALLEL_SIZE, 2)]:
        x = floats(rng, size)
        bits = to_half(x, dtype)
        numbers = to_half(np.nan_to_num(x, nan=np.inf), dtype)  # a NaN equals no NaN
        for widens, source, target in ((False, x, bits), (True, numbers, from_half(numbers, dtype))):
            kernel = half_cast(HalfCastSpec(size=size, dtype=dtype, widens=widens, threads=threads), isa=isa)
            found.append(Case(kernel=kernel, inputs=(source,), expected=target, about=(dtype, size, widens, threads)))
    return found


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("isa", EACH_ISA)
def test_casts_equal_their_oracle(rng: np.random.Generator, dtype: str, isa: str) -> None:
    check(cases(rng, dtype, isa))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_casts_equal_their_oracle_on_an_old_machine(rng: np.random.Generator, dtype: str) -> None:
    check(few(cases(rng, dtype, "generic"), 5), baseline_target())
