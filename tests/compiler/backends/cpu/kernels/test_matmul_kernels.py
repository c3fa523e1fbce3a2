"""Matmuls equal their oracle bit for bit, on every ISA of this machine, at one and two threads."""

import numpy as np
import pytest
from conv2d_cases import CHANNELS, Layers, matmul_case
from kernel_runner import EACH_ISA, check, part

from octavo.compiler.backends.cpu.kernels import matmul
from octavo.errors import TargetError
from octavo.ir.composites.outputs import Output

every_isa = pytest.mark.parametrize("isa", EACH_ISA)


@every_isa
@pytest.mark.parametrize("rows", [1, 2, 5])
def test_feature_counts(isa: str, rows: int) -> None:
    layers, shift = Layers(rows), (1, 6)[rows % 2]
    pairs = [(c, CHANNELS[(i * 7 + shift) % len(CHANNELS)]) for i, c in enumerate(CHANNELS)]
    check(matmul_case(layers, rows, *pair, isa) for pair in part(pairs[rows == 2 :: 2], isa))


@every_isa
def test_large(isa: str) -> None:
    layers = Layers(20)
    shapes = [(1, 1280, 1001), (128, 256, 200), (3, 4096, 40), (37, 99, 1000), (50, 1030, 1030)]
    check(matmul_case(layers, *shape, isa, threads=2) for shape in shapes)


def test_unknown_isa_lists_the_known_ones() -> None:
    with pytest.raises(TargetError, match=r"'sse9'.*x86\.avx512_vnni, x86\.avx_vnni, x86\.avx2, arm\..*, generic"):
        matmul(
            rows=1,
            in_features=1,
            out_features=1,
            input_zero_point=0,
            output=Output(zero_point=0),
            threads=1,
            weight=np.zeros((1, 1), np.int8),
            weight_zero_point=0,
            bias=np.zeros(1, np.int32),
            multiplier=np.ones(1, np.float32),
            isa="sse9",
        )
