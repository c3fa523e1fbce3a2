"""Products with 4-bit weights in blocks, and the integers that activations become for them: bit for bit what NumPy defines."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import numpy.typing as npt
import pytest
from kernel_runner import GENERIC, Case, check, few

from machine_isas import EVERY_ISA
from octavo.compiler.backends.cpu.kernels import BlockMatmulSpec, BlockRowsSpec, FloatOutput, block_matmul, block_rows
from octavo.numerics.quantized.block_matmul import block_integers
from octavo.numerics.quantized.block_matmul import block_matmul as definition

every_isa = pytest.mark.parametrize("isa", EVERY_ISA)
ROWS, OUTPUTS, BLOCKS = (1, 2, 3, 4, 5, 9), (1, 15, 16, 17, 33, 64, 65, 130), (16, 32, 64, 128)


def drawn(rng: np.random.Generator, rows: int, inputs: int, block: int) -> npt.NDArray[np.float32]:
    """Reals, with blocks of very large and small ones, of zeros alone, and of what is not finite."""
    x = rng.normal(size=(rows, inputs // block, block))
    size = np.array([1.0, 1e-3, 1e30, 1e-37, 3e38, 1e-44, 0.0, 1.0])
    x = np.clip(x * size[rng.integers(0, len(size), x.shape[:2])][..., np.newaxis], -3.4e38, 3.4e38)
    if rng.integers(4) == 0:
        x[0, 0, rng.integers(block)] = rng.choice([np.inf, -np.inf, np.nan])
    return x.astype(np.float32).reshape(rows, inputs)


def record(x: npt.NDArray[np.int32], scale: npt.NDArray[np.float32], block: int, digits: int) -> npt.NDArray[np.uint8]:
    """Integers and scales as the kernels read them."""
    value, parts, sums = x.reshape(len(x), -1, block), [], []
    for _ in range(digits):
        digit = value.astype(np.int8)
        parts.append(digit.view(np.uint8))
        sums.append(-digit.astype(np.int32).sum(axis=2, keepdims=True, dtype=np.int32).view(np.int32))
        value = (value + 128) >> 8
    bytes_of = [np.ascontiguousarray(each).view(np.uint8) for each in (*sums, scale[..., np.newaxis])]
    return np.concatenate([*parts, *bytes_of], axis=2)


def product(
    rng: np.random.Generator,
    isa: str,
    rows: int,
    outputs: int,
    block: int,
    digits: int,
    *,
    points: bool,
    half: bool,
    bits: int = 0,
    threads: int = 1,
) -> Case:
    inputs = block * int(rng.integers(1, 4))
    x, x_scale = block_integers(rng.normal(size=(rows, inputs)).astype(np.float32), block, digits)
    x.flat[:2] = (-1, 1) * np.array([127, 32639, 8355711])[digits - 1]  # all digits at their bounds
    low, high = ((0, 16), (3, 7), (8, 16))[bits]
    weight = rng.integers(low, high, (inputs, outputs)).astype(np.uint8)
    scale = rng.uniform(0.01, 0.2, (inputs // block, outputs)).astype(np.float16 if half else np.float32).astype(np.float32)
    zero_point = rng.integers(low, high, scale.shape) if points else np.full(scale.shape, 8)
    bias = rng.normal(size=outputs).astype(np.float32)
    output = FloatOutput(low=-20.0, high=30.0)
    spec = BlockMatmulSpec(
        rows=rows,
        inputs=inputs,
        outputs=outputs,
        block=block,
        digits=digits,
        output=output,
        has_zero_points=points,
        threads=threads,
    )
    kernel = block_matmul(spec, weight=weight, scale=scale, zero_point=zero_point.astype(np.int32), bias=bias, isa=isa)
    exact = definition(x, x_scale, weight, scale, zero_point, digits) + bias
    expected = np.clip(exact, np.float32(output.low), np.float32(output.high))
    return Case(kernel=kernel, inputs=(record(x, x_scale, block, digits),), expected=expected, about=spec)


@every_isa
def test_products(rng: np.random.Generator, isa: str) -> None:
    sizes = [
        (ROWS[row], OUTPUTS[column], BLOCKS[(row + column) % 4], 1 + (row + 2 * column) % 3)
        for column, row in itertools.product(range(len(OUTPUTS)), range(len(ROWS)))
    ]
    cases = [
        product(rng, isa, *size, points=number % 2 == 0, half=number // 2 % 2 == 0, bits=number % 3)
        for number, size in enumerate(sizes[:: 3 if isa == "x86.avx512_vnni" else 7])
    ]
    assert isa == GENERIC or {case.kernel.name[-6:] for case in cases} > {"2 bits", "3 bits"}
    check([*cases, product(rng, isa, 1, 200, 64, 1, points=True, half=False, threads=3)])


@every_isa
def test_rows(rng: np.random.Generator, isa: str) -> None:
    cases = []
    for block, digits in few(itertools.product(BLOCKS, (1, 2, 3)), 1 if isa == "x86.avx512_vnni" else 5):
        spec = BlockRowsSpec(rows=3, inputs=2 * block, block=block, digits=digits)
        kernel = block_rows(spec, isa=isa)
        x = drawn(rng, 3, 2 * block, block)
        x = np.where(np.isfinite(x), x, np.float32(0))
        integers, scale = block_integers(x, block, digits)
        cases.append(Case(kernel=kernel, inputs=(x,), expected=record(integers, scale, block, digits), about=spec))
        of_row = dataclasses.replace(spec, digits=2, is_dynamic=True)
        quantized = rng.integers(0, 256, x.shape).astype(np.uint8)
        parameters = np.stack([rng.uniform(0.01, 0.1, 3), rng.integers(0, 256, 3)], axis=1).astype(np.float32)
        centered = quantized.astype(np.int32) - parameters[:, 1:].astype(np.int32)
        scale = np.repeat(parameters[:, :1], 2, axis=1)
        cases.append(
            Case(
                kernel=block_rows(of_row, isa=isa),
                inputs=(quantized, parameters),
                expected=record(centered, scale, block, 2),
                about=of_row,
            )
        )
    check(cases)
