"""int32 sums become 8 bits as accelerators round them: the oracle bit for bit, ties, saturation and negative sums included."""

import numpy as np
import pytest
from kernel_runner import EACH_ISA, Case, check

from octavo.compiler.backends.cpu import kernels
from octavo.ir.composites.outputs import Output
from octavo.numerics import requantize
from octavo.numerics.rounding.fixed_point import fixed_point_multiplier

ROUNDINGS = ("shift_half_up", "shift_half_away", "shift_half_even", "once", "twice", "twice_away")


def case(isa, rng, rounding, rows, channels, output, *, per_channel, threads=1):
    shape = (channels,) if per_channel else ()
    real = np.ldexp(1.0, -rng.integers(-2, 12, shape))
    if not rounding.startswith("shift"):
        real = real * rng.choice([1.0, 0.75, 0.6180339], shape)
    factor = fixed_point_multiplier(real, rounding)
    ties = rng.integers(-600, 600, (rows, channels)) << rng.integers(0, 4, (rows, channels))
    any_sum = rng.integers(-(2**31), 2**31, (rows, channels))
    sums = np.where(rng.random((rows, channels)) < 0.2, any_sum, ties).astype(np.int32)
    kernel = kernels.requantize_sums(rows, channels, factor, output, isa=isa, threads=threads)
    expected = requantize(sums, factor, output.zero_point, output.qmin, output.qmax)
    return Case(kernel=kernel, inputs=(sums,), expected=expected, about=(isa, rounding, rows, channels, per_channel))


@pytest.mark.parametrize("isa", EACH_ISA)
@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_sums(isa, rounding):
    rng = np.random.default_rng(0)
    outputs = (Output(zero_point=0), Output(zero_point=131, qmin=131, qmax=200))
    check(
        case(isa, rng, rounding, rows, channels, outputs[i % 2], per_channel=i % 3 != 0)
        for i, (rows, channels) in enumerate(((1, 1), (3, 7), (5, 16), (2, 17), (40, 33), (1, 130)))
    )


@pytest.mark.parametrize("isa", EACH_ISA)
def test_chunks_share_the_rows(isa):
    rng = np.random.default_rng(1)
    check([case(isa, rng, "twice_away", 3001, 19, Output(zero_point=5), per_channel=True, threads=2)])
