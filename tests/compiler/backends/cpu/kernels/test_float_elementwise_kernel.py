"""Functions of float32 elements equal their definition bit for bit: on every ISA, without fused multiply-add, over threads."""

import numpy as np
import pytest
from kernel_runner import EACH_NARROW_ISA, HOST_ISAS, PARALLEL_SIZE, Case, baseline_target, check

from octavo.compiler.backends.cpu.kernels import GENERIC, FloatElementwiseSpec, float_elementwise, target_for
from octavo.numerics.floats.float_function import FUNCTIONS, TRANSCENDENTAL, FloatFunction, Step
from octavo.runtime.llvm_host import host_target

EDGES = np.array([0, -0.0, np.inf, -np.inf, 1e-45, -87.4, -103.9, 88.73, -104.1, 3.93, -9.1, 1e38, -1e-39], np.float32)


def values(size: int, seed: int = 0) -> np.ndarray:
    x = np.random.default_rng(seed).normal(0, 20, size).astype(np.float32)
    x[: min(size, EDGES.size)] = EDGES[:size]
    return x


def every_operation() -> FloatFunction:
    """Return the sum of all operations of two inputs and a constant, each sum with a product that could be contracted."""
    steps: list[Step] = []
    for op, (arity, _) in FUNCTIONS.items():
        steps.append(Step(op=op, operands=(0, 1, 2)[:arity]))
        steps.append(Step(op="add", operands=(2 + len(steps), 1 + len(steps) if len(steps) > 1 else 2)))
    return FloatFunction(inputs=2, constants=(0.75,), steps=tuple(steps))


FUNCTIONS_OF_ONE = {name: FloatFunction(inputs=1, constants=(), steps=(Step(op=name, operands=(0,)),)) for name in TRANSCENDENTAL}
SILU = FloatFunction(inputs=1, constants=(), steps=(Step(op="sigmoid", operands=(0,)), Step(op="multiply", operands=(0, 1))))
SUM_OF_PRODUCTS = FloatFunction(
    inputs=2,
    constants=(),
    steps=(Step(op="multiply", operands=(0, 1)), Step(op="exp", operands=(1,)), Step(op="add", operands=(2, 3))),
)


def cases(isa: str) -> list[Case]:
    found: list[Case] = []

    def case(function: FloatFunction, size: int, threads: int = 1) -> None:
        inputs = tuple(values(size, seed) for seed in range(function.inputs))
        if function not in FUNCTIONS_OF_ONE.values():  # no NaN: it is equal to nothing
            inputs = tuple(np.abs(np.where(np.isfinite(x), x, 0)) + np.float32(0.5) for x in inputs)
        spec = FloatElementwiseSpec(size=size, function=function, threads=threads)
        kernel = float_elementwise(spec, isa=isa)
        with np.errstate(all="ignore"):
            found.append(Case(kernel=kernel, inputs=inputs, expected=function(*inputs), about=(isa, function, size)))

    for function in FUNCTIONS_OF_ONE.values():
        case(function, 4097)
    for size in (1, 5, 33):
        case(SILU, size)
    case(SILU, PARALLEL_SIZE, threads=2)
    case(SUM_OF_PRODUCTS, 4096)
    case(every_operation(), 1000)
    return found


def test_the_host() -> None:
    check(cases(HOST_ISAS[0]))


@pytest.mark.parametrize("isa", EACH_NARROW_ISA)
def test_narrower_vectors(isa: str) -> None:
    check(cases(isa)[-1:], target_for(isa, host_target()))


def test_without_fused_multiply_add() -> None:
    check(cases(GENERIC)[-2:], baseline_target())
