"""Transposition: every permutation of small shapes, images with few and many channels, against NumPy bit for bit."""

import itertools
from collections.abc import Iterator

import numpy as np
from kernel_runner import GENERIC, HOST_ISAS, Case, baseline_target, check, few, part

from octavo.compiler.backends.cpu import kernels
from octavo.compiler.backends.cpu.kernels import TransposeSpec

TO_NHWC, TO_NCHW = (0, 2, 3, 1), (0, 3, 1, 2)
IMAGES = [
    *((channels, 5, 7) for channels in (1, 2, 3, 4, 15, 16, 17, 33, 64, 65)),
    *((channels, 3, 3) for channels in (3, 15, 16, 17)),
    (8, 1, 16),
    (20, 4, 4),
]
MOVES = [
    *(((2, *image), TO_NHWC) for image in IMAGES),
    *(((2, height, width, channels), TO_NCHW) for channels, height, width in IMAGES[::2]),
    *(((2, 3, 4, 5), axes) for axes in itertools.permutations(range(4))),
    ((1, 2, 2, 3, 5, 6), (0, 3, 4, 1, 5, 2)),
    ((7,), (0,)),
    ((1, 1), (1, 0)),
    ((17, 1, 19), (2, 1, 0)),
]
PARALLEL = [((1, 3, 129, 127), TO_NHWC), ((1, 129, 127, 3), TO_NCHW), ((3, 70, 17, 13), TO_NHWC), ((40, 30, 33), (1, 0, 2))]


def cases(rng: np.random.Generator, isa: str) -> Iterator[Case]:
    work = [(*move, 1, "uint8") for move in part(MOVES, isa, 5)]
    work += [(*move, threads, "int8") for move in PARALLEL for threads in (1, 2)]
    for shape, axes, threads, dtype in work:
        x = rng.integers(0, 256, shape).astype(np.uint8).view(dtype)
        spec = TransposeSpec(shape=shape, axes=axes, dtype=dtype, threads=threads)
        yield Case(kernel=kernels.transpose(spec, isa=isa), inputs=(x,), expected=x.transpose(axes), about=spec)


def test_equals_numpy(rng: np.random.Generator) -> None:
    check(case for isa in HOST_ISAS for case in cases(rng, isa))


def test_same_bits_on_the_baseline(rng: np.random.Generator) -> None:
    check(few(cases(rng, GENERIC), 2), baseline_target())
