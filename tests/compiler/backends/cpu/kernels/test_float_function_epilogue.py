"""Convolutions that end in a function of their sums: the bits of the function's definition on the plain kernel's result."""

import math
from dataclasses import replace

import numpy as np
import pytest
import tvm
from kernel_runner import HOST_ISAS, Compiled

from octavo.compiler.backends.cpu.kernels import FloatConv2dSpec, Kernel, float_conv2d
from octavo.numerics.floats.float_function import FloatFunction, Step
from octavo.runtime.llvm_host import host_target

SILU = FloatFunction(inputs=1, constants=(), steps=(Step(op="sigmoid", operands=(0,)), Step(op="multiply", operands=(0, 1))))
TANH_PLUS_HALF = FloatFunction(
    inputs=2, constants=(0.5,), steps=(Step(op="tanh", operands=(0,)), Step(op="multiply_add", operands=(1, 2, 3)))
)
PLAIN = FloatConv2dSpec(batch=2, in_height=6, in_width=9, in_channels=5, out_channels=37, kernel=(1, 1))
SPECS = {
    "pointwise": PLAIN,
    "padded, threads": replace(PLAIN, kernel=(3, 3), padding=(1, 1, 1, 1), strides=(1, 2), out_channels=64, threads=2),
    "grouped": replace(PLAIN, in_channels=6, groups=3, out_channels=21, kernel=(2, 2)),
    "addend": replace(PLAIN, adds=True, out_channels=24),
    "depthwise": replace(PLAIN, in_channels=19, groups=19, out_channels=19, kernel=(3, 3), padding=(1, 1, 1, 1)),
}


def run(kernel: Kernel, inputs: list[np.ndarray], size: int) -> np.ndarray:
    result = tvm.runtime.tensor(np.full(size, 77, np.float32))
    function = Compiled({"kernel": kernel.func}, host_target())["kernel"]
    function(*(tvm.runtime.tensor(np.ascontiguousarray(value).ravel()) for value in [*inputs, *kernel.constants]), result)
    return result.numpy()


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("isa", HOST_ISAS[:1])
def test_the_bits_of_the_definition(isa: str, name: str) -> None:
    spec = SPECS[name]
    rng = np.random.default_rng(len(name))
    x = rng.normal(size=(spec.batch, spec.in_height, spec.in_width, spec.in_channels)).astype(np.float32)
    weight = rng.normal(size=(*spec.kernel, spec.in_channels // spec.groups, spec.out_channels)).astype(np.float32)
    bias = rng.normal(size=spec.out_channels).astype(np.float32)
    size = math.prod((spec.batch, spec.out_height, spec.out_width, spec.out_channels))
    sums = run(float_conv2d(replace(spec, adds=False), weight=weight, bias=bias, isa=isa), [x], size)
    function = TANH_PLUS_HALF if spec.adds else SILU
    others = [rng.normal(size=size).astype(np.float32)] if spec.adds else []
    got = run(float_conv2d(replace(spec, function=function), weight=weight, bias=bias, isa=isa), [x, *others], size)
    assert np.array_equal(got, function(sums, *others))
