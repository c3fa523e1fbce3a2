"""The transposition kernel on elements of 16 and 32 bits: every bit moves, none changes."""

import itertools
from typing import Literal

import numpy as np
import pytest
from kernel_runner import HOST_ISAS, Case, check

from octavo.compiler.backends.cpu.kernels import TransposeSpec, transpose

SHAPES = [
    (1, 3, 20, 21),
    (2, 17, 5, 4),
    (1, 64, 33, 1),
    (1, 7, 7, 96),
    (3, 2, 3, 4),
    (1, 40, 6, 6),
    (2, 33, 8, 8),
    (1, 16, 9, 71),
]


@pytest.mark.parametrize("dtype", ["int16", "float32"])
def test_transposition_of_wider_elements_is_numpys(rng: np.random.Generator, dtype: Literal["int16", "float32"]) -> None:
    cases = []
    for shape, axes, isa in itertools.product(SHAPES, [(0, 2, 3, 1), (0, 3, 1, 2)], HOST_ISAS):
        spec = TransposeSpec(shape=shape, axes=axes, dtype=dtype, threads=2)
        x = (1000 * rng.normal(size=shape)).astype(dtype)
        cases.append(Case(kernel=transpose(spec, isa=isa), inputs=(x,), expected=np.transpose(x, axes), about=spec))
    check(cases)
