"""Pooling and concatenation of 16-bit floats, against their oracles bit for bit."""

import itertools

import numpy as np
import pytest
from kernel_runner import EACH_ISA, Case, baseline_target, check, part

from octavo.compiler.backends.cpu.kernels import HalfConcatSpec, HalfPool2dSpec, half_concat, half_pool2d
from octavo.numerics import Window
from octavo.numerics.floats.half import half_pool2d as oracle
from octavo.numerics.floats.half import to_half

GEOMETRIES = (
    {"kernel": (2, 2), "strides": (2, 2), "padding": (0, 0, 0, 0)},
    {"kernel": (3, 3), "strides": (1, 1), "padding": (1, 1, 1, 1)},
    {"kernel": (3, 2), "strides": (2, 3), "padding": (1, 0, 0, 1), "dilation": (2, 1)},
    {"kernel": (7, 9), "strides": (1, 1), "padding": (0, 0, 0, 0)},
)


def pool(
    rng: np.random.Generator, dtype: str, kind: str, channels: int, geometry: dict, isa: str, *, counts_all: bool, threads: int
) -> Case:
    x = to_half(rng.normal(size=(2, 7, 9, channels)) * 100, dtype)
    window = Window(**{name: value for name, value in geometry.items() if name != "kernel"})
    expected = oracle(x, dtype, kind, kernel=geometry["kernel"], window=window, count_include_pad=counts_all)
    top, left, *_ = geometry["padding"]
    spec = HalfPool2dSpec(
        dtype=dtype,
        kind=kind,
        batch=2,
        in_height=7,
        in_width=9,
        out_height=expected.shape[1],
        out_width=expected.shape[2],
        channels=channels,
        threads=threads,
        **{**geometry, "padding": (top, left)},
        count_include_pad=counts_all,
    )
    return Case(kernel=half_pool2d(spec, isa=isa), inputs=(x,), expected=expected, about=spec)


def cases(rng: np.random.Generator, isa: str) -> list[Case]:
    channels = (1, 3, 16, 17, 40)
    every = itertools.product(enumerate(("bfloat16", "float16")), ("max", "avg"), enumerate(GEOMETRIES))
    return [
        pool(rng, dtype, kind, channels[(n + m) % 5], geometry, isa, counts_all=bool(n % 2), threads=1 + n % 3)
        for (m, dtype), kind, (n, geometry) in part(list(every), isa)
    ]


@pytest.mark.parametrize("isa", EACH_ISA)
def test_pooling(rng: np.random.Generator, isa: str) -> None:
    check(cases(rng, isa))


def test_pooling_on_an_old_machine(rng: np.random.Generator) -> None:
    check(cases(rng, "generic"), baseline_target())


@pytest.mark.parametrize("isa", EACH_ISA)
@pytest.mark.parametrize("threads", [1, 2])
def test_concatenation(rng: np.random.Generator, isa: str, threads: int) -> None:
    found: list[Case] = []
    for outer, inners in ((1, (5, 64)), (300, (1, 31, 33)), (7, (16, 8))):
        parts = [rng.integers(0, 2**16, (outer, inner)).astype(np.uint16) for inner in inners]
        spec = HalfConcatSpec(outer=outer, inners=inners, threads=threads)
        expected = np.concatenate(parts, axis=1)
        found.append(Case(kernel=half_concat(spec, isa=isa), inputs=tuple(parts), expected=expected, about=spec))
    check(found)
