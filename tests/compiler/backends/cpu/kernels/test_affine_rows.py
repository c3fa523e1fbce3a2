"""Tables whose rows are affine: found and computed bit for bit; those that are not, refused."""

import numpy as np
import pytest
from kernel_runner import EACH_ISA, GENERIC, SIZES, Case, baseline_target, check, part

from octavo import numerics
from octavo.compiler.backends.cpu import kernels
from octavo.compiler.backends.cpu.kernels import AffineRowsSpec

SHAPES = [
    *(((size,), (size,)) for size in SIZES),
    ((2, 5, 5, 19), (2, 1, 1, 19)),
    ((2, 5, 3, 19), (1,)),
    ((1,), (2, 70)),
    ((3, 1, 5), (1, 4, 1)),
    ((2, 7, 3, 5), (7, 1, 1)),
]
WORK = [*((*shapes, 1) for shapes in SHAPES), *(((200, 17, 13), (200, 1, 13), threads) for threads in (1, 2))]


def normalized(rng: np.random.Generator, count: int, *, zero_point: int, low: int, high: int) -> tuple[np.ndarray, np.ndarray]:
    """A product and a sum in float32, a rectifier, and a division by the scale: the table and its entries before rounding."""
    x = (np.arange(256).astype(np.float32) - 131) * np.float32(0.043)
    factor, shift = (rng.normal(0, size, (count, 1)).astype(np.float32) for size in (1.0, 2.0))
    factor[rng.random((count, 1)) < 0.1] = 0
    reals = (np.maximum(x * factor + shift, np.float32(-4)) / np.float32(0.037)).astype(np.float32)
    return np.clip(np.rint(reals) + zero_point, low, high).astype(np.uint8), reals


OUTPUTS = ((0, 0, 255), (128, 128, 255), (77, 3, 250))


def cases(rng: np.random.Generator, isa: str) -> list[Case]:
    made: list[Case] = []
    for number, (a_shape, b_shape, threads) in enumerate(part(WORK, isa)):
        zero_point, low, high = OUTPUTS[number % len(OUTPUTS)]
        count = int(rng.integers(1, 300))
        # One row in ten thousand has no line among those that are tried: of three tables one is found.
        drawn = (normalized(rng, count, zero_point=zero_point, low=low, high=high) for _ in range(3))
        tried = ((table, numerics.affine_rows(table, reals, zero_point)) for table, reals in drawn)
        table, lines = next((table, lines) for table, lines in tried if lines is not None)
        a, rows = rng.integers(0, 256, a_shape).astype(np.uint8), rng.integers(0, count, b_shape)
        spec = AffineRowsSpec(a_shape=a_shape, b_shape=b_shape, threads=threads)
        kernel = kernels.affine_rows(spec, lines=lines, rows=rows, isa=isa)
        expected = numerics.pair_lookup(a, rows, table)
        made.append(Case(kernel=kernel, inputs=(a.ravel(),), expected=expected.ravel(), about=spec))
    return made


@pytest.mark.parametrize("isa", EACH_ISA)
def test_equals_the_table(rng: np.random.Generator, isa: str) -> None:
    check(cases(rng, isa))


def test_same_bits_on_the_baseline(rng: np.random.Generator) -> None:
    check(cases(rng, GENERIC), baseline_target())


def test_every_entry_is_given(rng: np.random.Generator) -> None:
    """Many rows, so that some lie on ties and must be moved."""
    table, reals = normalized(rng, 2000, zero_point=100, low=0, high=255)
    lines = numerics.affine_rows(table, reals, 100)
    assert lines is not None
    bounds = (lines.zero_point, lines.qmin, lines.qmax)
    every = np.broadcast_to(np.arange(256), table.shape)
    made = numerics.requantize(every, lines.multiplier[:, None], *bounds, real_bias=lines.bias[:, None])
    assert np.array_equal(made, table)


@pytest.mark.parametrize("kind", ["bent", "one entry", "steep"])
def test_what_is_not_affine_is_refused(rng: np.random.Generator, kind: str) -> None:
    table, reals = normalized(rng, 20, zero_point=100, low=0, high=255)
    x = np.arange(256, dtype=np.float32)
    if kind == "bent":
        reals[3] = np.abs(x - 100) * np.float32(0.3)
        table[3] = np.clip(np.rint(reals[3]) + 100, 0, 255)
    elif kind == "one entry":
        table[7, 40] ^= 64
    else:
        reals[2] = np.float32(np.inf)
        table[2, 255] = 255 - table[2, 0]
    assert numerics.affine_rows(table, reals, 100) is None
