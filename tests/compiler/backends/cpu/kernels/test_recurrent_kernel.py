"""Recurrences by int8 weights: a step of a plain layer is the oracle's product bit for bit, whatever the width."""

from collections.abc import Iterator

import numpy as np
import pytest
import tvm
from kernel_runner import ISAS, MACHINE, Case, Compiled, check

from octavo.compiler.backends.cpu.kernels import ARM_DOTPROD, ARM_NEON, AVX2, AVX512_VNNI, AVX_VNNI, RecurrenceSpec, recurrence
from octavo.numerics.quantized.recurrence import STATE_MAX, recurrent_products, state_limit

BATCH = 2


def weights_of(rng: np.random.Generator, width: int, gates: int = 1) -> tuple[np.ndarray, np.ndarray]:
    weights = rng.integers(-127, 128, (width, gates * width)).astype(np.int8)
    return weights, rng.uniform(0.001, 0.01, gates * width).astype(np.float32)


def cases(rng: np.random.Generator) -> Iterator[Case]:
    for width, isa in ((width, isa) for width in (1, 3, 16, 17, 37, 64, 130) for isa in ISAS):
        weights, scale = weights_of(rng, width)
        x, hidden = (rng.normal(size=(BATCH, width)).astype(np.float32) for _ in range(2))
        hidden[0] = 0  # a sample whose state is zeros, and is not known to be
        spec = RecurrenceSpec(steps=1, batch=BATCH, width=width, kind="RNN", activations=("relu",), inputs=("hidden",))
        kernel = recurrence(spec, weights=weights, scale=scale, bias=None, peepholes=None, initial={}, isa=isa)
        expected = np.maximum(x + recurrent_products(hidden, weights, scale), 0)
        yield Case(kernel=kernel, inputs=(x, hidden), expected=expected, about=(width, isa))


def test_a_step_is_the_oracle_bit_for_bit(rng: np.random.Generator) -> None:
    check(cases(rng))


def test_sums_of_a_wide_state_fit() -> None:
    weights = np.full((700, 1), 127, np.int8)
    limit = state_limit(weights)
    assert limit < STATE_MAX
    assert limit * 127 * 700 < 2**31
    ones = np.ones((1, 700), np.float32)
    np.testing.assert_allclose(recurrent_products(ones, weights, np.float32([0.5])), [[127 * 700 / 2]], rtol=1e-4)
    assert np.isnan(recurrent_products(ones * np.inf, weights, np.float32([1.0]))).all()


MULTIPLIES = {
    AVX2: ({"mcpu": "x86-64-v3"}, "vpmaddwd"),
    AVX_VNNI: ({"mcpu": "x86-64-v3", "mattr": ["+avxvnni"]}, "vpdpwssd"),
    AVX512_VNNI: ({"mcpu": "x86-64-v4", "mattr": ["+avx512vnni"]}, "vpdpwssd"),
    ARM_DOTPROD: ({"mtriple": "aarch64-linux-gnu", "mcpu": "cortex-a76"}, "sdot"),
    ARM_NEON: ({"mtriple": "aarch64-linux-gnu", "mcpu": "cortex-a72"}, "smlal"),
}


@pytest.mark.skipif(MACHINE is not None, reason="machine code of named targets is the same wherever it is made")
@pytest.mark.parametrize("isa", MULTIPLIES)
def test_it_multiplies_integers(isa: str, rng: np.random.Generator) -> None:
    weights, scale = weights_of(rng, 32, gates=4)
    spec = RecurrenceSpec(steps=4, batch=1, width=32, kind="LSTM", activations=("sigmoid", "tanh", "tanh"))
    kernel = recurrence(spec, weights=weights, scale=scale, bias=None, peepholes=None, initial={}, isa=isa)
    options, product = MULTIPLIES[isa]
    code = Compiled({"kernel": kernel.func}, tvm.target.Target({"kind": "llvm", **options})).code.inspect_source("asm")
    assert product in code
