"""Softmax of float rows, and its logarithm: close to NumPy's in float64 over lengths, sizes and threads; NaN stays in its row."""

import numpy as np
import pytest
import tvm
from kernel_runner import EACH_ISA, Compiled

from octavo.compiler.backends.cpu.kernels import FloatSoftmaxSpec, QuantizeSpec, SoftmaxAddend, float_softmax
from octavo.numerics import QuantParams, quantize
from octavo.numerics.floats import float_function as numerics
from octavo.numerics.rounding.fused_multiply_add import fused_multiply_add
from octavo.runtime.llvm_host import host_target

every_isa = pytest.mark.parametrize("isa", EACH_ISA)


def run(isa: str, x: np.ndarray, threads: int = 1, *, is_log: bool = False) -> np.ndarray:
    spec = FloatSoftmaxSpec(rows=x.shape[0], columns=x.shape[1], threads=threads, is_log=is_log)
    result = tvm.runtime.tensor(np.full(x.size, 77, np.float32))
    function = Compiled({"kernel": float_softmax(spec, isa=isa).func}, host_target())["kernel"]
    function(tvm.runtime.tensor(x.ravel()), result)
    return result.numpy().reshape(x.shape)


def softmax(x: np.ndarray) -> np.ndarray:
    powers = np.exp(x.astype(np.float64) - x.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


@every_isa
@pytest.mark.parametrize("columns", [1, 3, 15, 16, 17, 33, 128, 1000])
def test_lengths(isa: str, columns: int) -> None:
    x = np.random.default_rng(columns).normal(0, 4, (5, columns)).astype(np.float32)
    assert np.abs(run(isa, x) / softmax(x) - 1).max() < 2e-6


@every_isa
@pytest.mark.parametrize("columns", [1, 2, 15, 16, 17, 1000])
@pytest.mark.parametrize("spread", [0.0, 0.01, 4.0, 60.0])
def test_logarithms(isa: str, columns: int, spread: float) -> None:
    """The bounds add up what each step may be off by, to the first order; nothing is measured.

    The sum: an exponential is off by a unit in its last place (numerics), at most eps of it; a term goes through an addition for
    each vector of 16 but the first, and 4 across lanes, that round by eps / 2 each. The difference before it is exact here.

    The result: Halley's method ends at log(sum) but for what `exp` is off by, eps, and the rounding of its last step, half a unit
    in the last place, as that of the difference behind it. The kernel's own sum is 1 by its softmax's largest weight, rounded.
    """
    x = (1000 + spread * np.random.default_rng(columns).normal(0, 1, (5, columns))).astype(np.float32)
    x[1, 0] = -np.inf if columns > 1 else 3.0
    below = x.astype(np.float64) - x.max(axis=1, keepdims=True)
    assert np.array_equal(below, x - x.max(axis=1, keepdims=True))
    got, is_real = run(isa, x, is_log=True), np.isfinite(below)
    assert np.array_equal(np.isneginf(got), ~is_real)

    eps = float(np.finfo(np.float32).eps)
    total = 1 / run(isa, x).max(axis=1, keepdims=True).astype(np.float64)
    exact = np.exp(below).sum(axis=1, keepdims=True)
    additions = -(-columns // 16) - 1 + 4
    assert (np.abs(total / exact - 1) <= eps + additions * eps / 2 + eps / 2).all()
    of_sum = np.broadcast_to(np.log(total), x.shape)[is_real]
    got, below = got[is_real], below[is_real]
    roundings = (np.spacing(np.abs(got)) + np.spacing(of_sum.astype(np.float32))) / 2
    assert (np.abs(got - (below - of_sum)) <= roundings + eps + eps / 2).all()


@every_isa
def test_a_logarithm_of_any_addend_is_that_of_the_sum(isa: str) -> None:
    rng = np.random.default_rng(5)
    x, addend = rng.normal(0, 4, (6, 21)).astype(np.float32), rng.normal(0, 4, (3, 21)).astype(np.float32)
    real = run(isa, fused_multiply_add(x, np.float32(0.3), np.tile(addend, (2, 1))), is_log=True)
    own = SoftmaxAddend(shape=(2, 3, 21), own=(3, 21), factor=0.3)
    spec = FloatSoftmaxSpec(rows=6, columns=21, is_log=True, addend=own)
    got = tvm.runtime.tensor(np.full(x.size, 77, np.float32))
    function = Compiled({"kernel": float_softmax(spec, isa=isa).func}, host_target())["kernel"]
    function(tvm.runtime.tensor(x.ravel()), tvm.runtime.tensor(addend.ravel()), got)
    assert np.array_equal(got.numpy().reshape(real.shape), real)


@every_isa
def test_large_values_and_minus_infinity(isa: str) -> None:
    x = np.array([[3e38, 1e38, -3e38, 0.0] * 5, [-np.inf, 0.0, 1.0, -np.inf] * 5, [-80.0, -81.0, -1000.0, -82.0] * 5], np.float32)
    assert np.abs(run(isa, x) - softmax(x)).max() < 2e-7


@every_isa
def test_nan_stays_in_its_row(isa: str) -> None:
    x = np.zeros((3, 19), np.float32)
    x[1, 4] = np.nan
    for got in (run(isa, x), run(isa, x, is_log=True)):
        assert np.isnan(got[1]).all()
        assert not np.isnan(got[[0, 2]]).any()


@every_isa
def test_threads_change_no_bit(isa: str) -> None:
    x = np.random.default_rng(1).normal(0, 4, (70, 101)).astype(np.float32)
    assert np.array_equal(run(isa, x), run(isa, x, threads=2))


@every_isa
@pytest.mark.parametrize("columns", [5, 64, 201])
def test_masked_values_become_zero_and_nothing_is_subnormal(isa: str, columns: int) -> None:
    """A product takes a hundred cycles for each subnormal that it reads."""
    x = np.random.default_rng(columns).normal(0, 30, (9, columns)).astype(np.float32)
    x[:, 1::2] = np.finfo(np.float32).min
    got = run(isa, x)
    assert (got[:, 1::2] == 0).all()
    assert not ((got > 0) & (got < np.finfo(np.float32).tiny)).any()


@every_isa
def test_exponentials_are_those_of_the_definition(isa: str) -> None:
    """Of two values, the larger 0, each result is a product that is known to the bit."""
    exponents = np.linspace(-80, 0, 4001, dtype=np.float32)
    powers = numerics.exp(exponents)
    factors = np.float32(1) / (np.float32(1) + powers)
    got = run(isa, np.stack([np.zeros_like(exponents), exponents], axis=1))
    assert np.array_equal(got, np.stack([factors, powers * factors], axis=1))


@every_isa
@pytest.mark.parametrize(
    ("own", "factor"),
    [((2, 1, 5, 37), 0.177), ((3, 1, 37), None), ((2, 3, 5, 3), 0.177), ((16,), None), ((1, 1, 5, 16), -3.0)],
)
def test_an_addend_before_and_a_quantize_behind_change_no_bit(isa: str, own: tuple[int, ...], factor: float | None) -> None:
    rng, columns = np.random.default_rng(own[-1]), own[-1]
    shape = (2, 3, 5, columns)
    x, addend = (rng.normal(0, 4, each).astype(np.float32) for each in (shape, own))
    addend.reshape(-1, columns)[0, 1:] = np.finfo(np.float32).min
    before = x + addend if factor is None else fused_multiply_add(x, np.float32(factor), addend)
    real = run(isa, before.reshape(-1, columns))
    params = QuantParams(dtype="uint8", scale=np.float32(1 / 255), zero_point=np.int32(3))
    for result in (None, QuantizeSpec(size=x.size, scale=1 / 255, zero_point=3)):
        spec = FloatSoftmaxSpec(
            rows=30, columns=columns, addend=SoftmaxAddend(shape=shape, own=own, factor=factor), result=result, threads=2
        )
        got = tvm.runtime.tensor(np.full(x.size, 77, "float32" if result is None else "uint8"))
        function = Compiled({"kernel": float_softmax(spec, isa=isa).func}, host_target())["kernel"]
        function(tvm.runtime.tensor(x.ravel()), tvm.runtime.tensor(addend.ravel()), got)
        expected = real if result is None else quantize(real, params)
        assert np.array_equal(got.numpy().reshape(real.shape), expected)
