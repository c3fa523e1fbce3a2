"""Matmuls of a batch of matrices by weights of their own equal their oracle bit for bit, on every ISA, at one and two threads."""

import dataclasses
import itertools
from typing import Literal

import numpy as np
import pytest
from conv2d_cases import CHANNEL_PAIRS, Layers
from kernel_runner import EACH_ISA, EACH_NARROW_ISA, Case, check, part

from octavo import numerics
from octavo.compiler.backends.cpu.kernels import Conv2dSpec, matmul
from octavo.ir.composites.outputs import FloatOutput

every_isa = pytest.mark.parametrize("isa", [*EACH_ISA, *EACH_NARROW_ISA])
STACKS = ((2, 2), (3, 3), (4, 2), (6, 3))
"""Matrices, and of how many in a row each has its own weights."""


def stacked_case(
    layers: Layers,
    stack: tuple[int, int],
    rows: int,
    spec: Conv2dSpec,
    isa: str,
    *,
    by_row: bool,
    index_dtype: Literal["int32", "int64"] | None = None,
) -> Case:
    """A product of each matrix by its own of several weights: those in turn, or by indices, of which some are out of range."""
    (matrices, weights), rng, inputs, outputs = stack, layers.rng, spec.in_channels, spec.out_channels
    x = rng.integers(0, 256, (matrices, rows, inputs)).astype(np.uint8)
    w = rng.integers(-128, 128, (inputs, weights * outputs)).astype(np.int8)
    zero_points = next(layers.weight_zero_points)
    zero_points = rng.integers(-128, 128, w.shape[1]) if zero_points == "axis" else np.full(w.shape[1], zero_points)
    bias, multiplier = layers.bias(w.shape[1]), layers.multiplier(w.reshape(1, 1, *w.shape))
    parameters = np.stack([rng.uniform(0.001, 0.1, matrices * rows), rng.integers(0, 256, matrices * rows)], axis=1)
    parameters = parameters.astype(np.float32)
    bias = bias.astype(np.float32) if by_row else bias
    is_real = bias.dtype == np.float32
    output = FloatOutput(pixels_per_scale=1) if by_row else dataclasses.replace(spec.output, real_bias=is_real)
    kernel = matmul(
        rows=rows,
        in_features=inputs,
        out_features=outputs,
        input_zero_point=spec.input_zero_point,
        output=output,
        stack=stack,
        index_dtype=index_dtype,
        threads=spec.threads,
        weight=w,
        weight_zero_point=zero_points.astype(np.int32),
        bias=bias,
        multiplier=multiplier,
        isa=isa,
    )
    expected = []
    indices = rng.integers(-1, weights + 1, matrices).astype(index_dtype)
    for index, matrix in enumerate(x):
        chosen = index % weights if index_dtype is None else min(max(int(indices[index]), 0), weights - 1)
        own = slice(chosen * outputs, (chosen + 1) * outputs)
        of_weight = {"w_zero_point": zero_points[own]}
        if by_row:
            of_rows = parameters.reshape(matrices, rows, 2)[index]
            centered = matrix.astype(np.int16) - of_rows[:, 1:].astype(np.int16)
            acc = numerics.matmul_accumulate(centered, w[:, own], **of_weight)
            expected.append(numerics.dequantize_accumulator(acc, multiplier[own], bias[own], input_scale=of_rows[:, :1]))
            continue
        ends = {"zero_point": output.zero_point, "qmin": output.qmin, "qmax": output.qmax, "multiplier": multiplier[own]}
        biased = {"real_bias" if is_real else "bias": bias[own]}
        expected.append(numerics.matmul(matrix, w[:, own], x_zero_point=spec.input_zero_point, **of_weight, **ends, **biased))
    read = (x, *((parameters,) if by_row else ()), *(() if index_dtype is None else (indices,)))
    return Case(kernel=kernel, inputs=read, expected=np.stack(expected), about=(kernel.name, stack, rows, spec, zero_points))


@every_isa
@pytest.mark.parametrize("by_row", [False, True])
def test_sizes(isa: str, by_row: bool) -> None:
    layers, rows = Layers(3 + by_row), itertools.cycle((1, 2, 5, 17))
    pairs = list(zip(itertools.cycle(STACKS), CHANNEL_PAIRS, strict=False))
    check(
        stacked_case(layers, stack, next(rows), layers.spec((1, 1), pair), isa, by_row=by_row)
        for stack, pair in part(pairs, isa, 2)
    )


@every_isa
@pytest.mark.parametrize("index_dtype", ["int32", "int64"])
def test_indices_choose_weights(isa: str, index_dtype: Literal["int32", "int64"]) -> None:
    by_row, layers, rows = index_dtype == "int64", Layers(5), itertools.cycle((1, 3, 6))
    pairs = list(zip(itertools.cycle(((5, 3), (7, 4), (3, 2))), CHANNEL_PAIRS, strict=False))[::2]
    check(
        stacked_case(layers, stack, next(rows), layers.spec((1, 1), pair), isa, by_row=by_row, index_dtype=index_dtype)
        for stack, pair in part(pairs, isa, 2)
    )


@every_isa
def test_large_ones_on_threads(isa: str) -> None:
    layers = Layers(8)
    cases = [((4, 4), 64, (256, 130), False), ((4, 2), 3, (300, 512), True), ((2, 2), 129, (128, 256), True)]
    check(
        stacked_case(layers, stack, rows, layers.spec((1, 1), pair, threads=2), isa, by_row=by_row, index_dtype=indexed)
        for (stack, rows, pair, by_row), indexed in zip(cases, (None, "int64", None), strict=True)
    )
