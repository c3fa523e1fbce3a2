"""Products by 4-bit weights in blocks: near the definition of reals, and of integers to the last digits of sums over blocks."""

from typing import Any

import numpy as np
import pytest
import tvm
from kernel_runner import EACH_ISA, Compiled, part

from octavo.compiler.backends.cpu.kernels import BlockMatmulSpec, FloatOutput, block_matmul
from octavo.numerics.quantized import block_matmul as definition
from octavo.runtime.llvm_host import host_target

every_isa = pytest.mark.parametrize("isa", EACH_ISA)
EPSILON = float(np.finfo(np.float32).eps)


def check(rng: np.random.Generator, isa: str, size: tuple[int, int, int], block: int, **fields: Any) -> None:
    rows, inputs, outputs = size
    spec = BlockMatmulSpec(
        rows=rows, inputs=inputs, outputs=outputs, block=block, output=FloatOutput(low=-1e3, high=40.0), **fields
    )
    weight = rng.integers(0, 16, (inputs, outputs)).astype(np.uint8)
    scale = rng.uniform(0.01, 0.2, (inputs // block, outputs)).astype(np.float32)
    points = rng.integers(0, 16, scale.shape) if spec.has_zero_points else np.full(scale.shape, 8)
    bias = rng.normal(size=outputs).astype(np.float32)
    parameters = np.stack([rng.uniform(0.01, 0.1, rows), rng.integers(0, 256, rows)], axis=1).astype(np.float32)
    x: np.ndarray = rng.normal(size=(rows, inputs)).astype(np.float32)
    reals = x.astype(np.float64)
    if spec.is_dynamic:
        x = rng.integers(0, 256, (rows, inputs)).astype(np.uint8)
        reals = (x - parameters[:, 1:].astype(np.float64)) * parameters[:, :1]
    kernel = block_matmul(spec, weight=weight, scale=scale, zero_point=points.astype(np.int32), bias=bias, isa=isa)
    inputs_of = [x.reshape(-1), *([parameters.reshape(-1)] if spec.is_dynamic else []), *kernel.constants]
    result = tvm.runtime.tensor(np.full(rows * outputs, 77, np.float32))
    function = Compiled({"kernel": kernel.func}, host_target())["kernel"]
    function(*(tvm.runtime.tensor(np.ascontiguousarray(value)) for value in inputs_of), result)
    exact = definition.block_matmul(reals, weight, scale, points) + bias
    # A float32 sum in order errs by no more than as many roundings as it has terms, of the sum of magnitudes.
    terms = scale.shape[0] + 3 if spec.is_dynamic else inputs + scale.shape[0] + 3
    magnitudes = np.abs(weight - np.repeat(points, block, axis=0))
    size_of = definition.block_matmul(np.abs(reals), magnitudes, scale, np.zeros(scale.shape, np.int32)) + np.abs(bias)
    found = result.numpy().reshape(rows, outputs)
    assert (np.abs(found - np.clip(exact, -1e3, 40.0)) <= EPSILON * terms * size_of).all(), spec


@every_isa
@pytest.mark.parametrize("has_zero_points", [False, True])
@pytest.mark.parametrize("is_dynamic", [False, True])
def test_sizes(is_dynamic: bool, has_zero_points: bool, rng: np.random.Generator, isa: str) -> None:
    sizes = [(1, 32, 1), (2, 64, 15), (3, 128, 16), (4, 32, 17), (5, 96, 31), (7, 64, 33), (1, 256, 64), (9, 32, 65)]
    for size in part(sizes, isa):
        check(rng, isa, size, 32, is_dynamic=is_dynamic, has_zero_points=has_zero_points)
    check(rng, isa, (2, 256, 20), 128, is_dynamic=is_dynamic, has_zero_points=has_zero_points)


@every_isa
def test_threads_share_the_columns(rng: np.random.Generator, isa: str) -> None:
    check(rng, isa, (1, 512, 200), 64, threads=3)
