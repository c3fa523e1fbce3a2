"""The transposition kernel on float32: every bit moves, none changes."""

import itertools

import numpy as np
from kernel_runner import HOST_ISAS, Case, check

from octavo.compiler.backends.cpu.kernels import TransposeSpec, transpose

SHAPES = [(1, 3, 20, 21), (2, 17, 5, 4), (1, 64, 33, 1), (1, 7, 7, 96), (3, 2, 3, 4), (1, 40, 6, 6)]


def test_transposition_of_floats_is_numpys() -> None:
    rng = np.random.default_rng(3)
    cases = []
    for shape, axes, isa in itertools.product(SHAPES, [(0, 2, 3, 1), (0, 3, 1, 2)], HOST_ISAS):
        spec = TransposeSpec(shape=shape, axes=axes, dtype="float32", threads=2)
        x = rng.normal(size=shape).astype(np.float32)
        cases.append(Case(kernel=transpose(spec, isa=isa), inputs=(x,), expected=np.transpose(x, axes), about=spec))
    check(cases)
