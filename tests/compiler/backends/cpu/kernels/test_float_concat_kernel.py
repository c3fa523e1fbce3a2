"""Rows of floats side by side, with a factor and an addend for each column, clamped: bit for bit, whatever the widths."""

import math

import numpy as np
import pytest
from kernel_runner import HOST_ISAS, Case, baseline_target, check

from octavo.compiler.backends.cpu.kernels import GENERIC, FloatConcatSpec, float_concat
from octavo.numerics import fused_multiply_add


def case(isa: str, outer: int, inners: tuple[int, ...], *, has_line: bool, low: float = -math.inf, threads: int = 1) -> Case:
    rng = np.random.default_rng(sum(inners))
    pieces = tuple(rng.normal(size=(outer, inner)).astype(np.float32) for inner in inners)
    expected = np.concatenate(pieces, axis=1)
    line = None
    if has_line:
        factor, addend = rng.normal(size=(2, sum(inners))).astype(np.float32)
        line = factor, addend
        expected = fused_multiply_add(expected, factor, addend)
    spec = FloatConcatSpec(outer=outer, inners=inners, low=low, high=math.inf if low < 0 else 0.9, threads=threads)
    expected = expected if low < 0 else np.clip(expected, np.float32(low), np.float32(0.9))
    return Case(kernel=float_concat(spec, line=line, isa=isa), inputs=pieces, expected=expected, about=(outer, inners, has_line))


def cases(isa: str) -> list[Case]:
    return [
        case(isa, 5, (1, 17, 33), has_line=True, low=0.0),
        case(isa, 1, (40, 3), has_line=False),
        case(isa, 7, (19,), has_line=True),
        case(isa, 300, (64, 80), has_line=True, low=0.0, threads=2),
        case(isa, 1, (40_000, 3), has_line=False, threads=2),
    ]


@pytest.mark.parametrize("isa", HOST_ISAS[:1])
def test_the_host(isa: str) -> None:
    check(cases(isa))


def test_without_fused_multiply_add() -> None:
    check(cases(GENERIC)[:3], baseline_target())
