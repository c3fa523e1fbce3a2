"""Dense float layers that take the steps of a panel part by part give the bits of those that take them at once."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from open_kernels import check_sizes
from test_float_conv2d_kernels import operands, run_all, spec_of
from test_float_function_epilogue import SILU

from octavo.compiler.backends.cpu.kernels import AVX2, FloatConv2dSpec, Kernel
from octavo.compiler.backends.cpu.kernels.conv.float_gemm import FloatGemm
from octavo.compiler.backends.cpu.kernels.conv.x86.cores import FLOAT_256
from octavo.runtime.llvm_host import host_target
from octavo.runtime.size import Size

pytestmark = pytest.mark.needs_isa(AVX2)

NEAR = 1024
AT_ONCE = replace(FLOAT_256, unsplit_bytes=math.inf)
IN_PARTS = replace(FLOAT_256, near_bytes=NEAR, unsplit_bytes=2 * NEAR)  # of 16 steps at most: one vector of weights has 64 bytes
LAYERS = {
    "one column of panels": spec_of((37, 1), (33, 16)),
    "lanes that are no channels": spec_of((14, 1), (50, 37), low=0.0),
    "groups": spec_of((4, 5), (70, 34), groups=2),
    "addend, threads": spec_of((41, 1), (65, 48), adds=True, threads=3, high=1.0),
    "function": spec_of((9, 1), (99, 40), function=SILU),
    "function of sum and addend": spec_of((20, 1), (34, 19), adds=True, function=SILU),
    "images": spec_of((5, 7), (36, 20), batch=2),
}


def kernel_of(spec: FloatConv2dSpec, weight: np.ndarray, bias: np.ndarray, core: Any) -> Kernel:
    gemm = FloatGemm(spec, weight, bias, core=core)
    assert (gemm.depth == gemm.steps) == (core is AT_ONCE)
    return gemm.build("parts", AVX2)


@pytest.mark.parametrize("name", LAYERS)
def test_parts_leave_every_bit(rng: np.random.Generator, name: str) -> None:
    spec = LAYERS[name]
    x, weight, bias = operands(rng, spec)
    size = spec.batch * spec.out_height * spec.out_width * spec.out_channels
    inputs = (x, rng.normal(size=size).astype(np.float32)) if spec.adds else (x,)
    kernels = [kernel_of(spec, weight, bias, core) for core in (AT_ONCE, IN_PARTS)]
    whole, parts = run_all(kernels, [inputs, inputs], [size, size], host_target())
    assert parts.tobytes() == whole.tobytes()


@pytest.mark.parametrize("width", [1, "width"])
@pytest.mark.parametrize("threads", [1, 2])
def test_open_parts_give_the_bits_of_each_size(rng: np.random.Generator, width: int | str, threads: int) -> None:
    """Of an open image, too, whose tiles would compute some pixels twice."""
    spec = spec_of((1, 1), (50, 37), low=0.0, threads=threads)
    _, weight, bias = operands(rng, spec)
    opened = replace(spec, in_height=Size.named("rows"), in_width=1 if width == 1 else Size.named(width))
    calls = []
    for rows in (1, 2, 5, 6, 7, 11, 13, 300):
        known = replace(spec, in_height=rows, in_width=1 if width == 1 else 3)
        x, _, _ = operands(rng, known)
        (whole,) = run_all([kernel_of(known, weight, bias, AT_ONCE)], [x], [rows * known.in_width * 37], host_target())
        calls.append(({"rows": rows, "width": 3}, [x], whole))
    check_sizes(kernel_of(opened, weight, bias, IN_PARTS), calls)


@pytest.mark.parametrize("steps", [576, 2048])
def test_panels_of_a_large_layer_are_one_vector_wide(steps: int) -> None:
    spec = spec_of((126, 1), (steps, 64))
    gemm = FloatGemm(spec, np.zeros((1, 1, steps, 64), np.float32), np.zeros(64, np.float32), core=FLOAT_256)
    assert str(gemm.tile) == "6x1", "2x2 read twice the weights for each pixel"
    assert gemm.depth == (steps if steps < 1024 else 256)
