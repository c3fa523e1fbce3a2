"""Depthwise convolutions against the oracle, and planted faults."""

import shutil

import numpy as np
import pytest
from cuda_conv2d_cases import SM80, Shape, conv2d_case, differing
from cuda_units import Unit
from emulated_ops import few_at_a_time

from octavo.compiler.backends.cuda.compiler import DEVICE
from octavo.compiler.backends.cuda.isa import ISAS
from octavo.compiler.backends.cuda.kernels.conv.depthwise import depthwise_conv2d, is_depthwise, pixels_of_thread
from octavo.compiler.backends.cuda.kernels.matmuls.output import FUNCTIONS, FUSED_FLOATS, INTEGERS, STEPWISE_FLOATS, SUMS

SAME = (1, 1, 1, 1)


def three(**more):
    return Shape(**{"kernel": (3, 3), "padding": SAME, "channels": (8, 8), "groups": 8, **more})


SHAPES = [
    three(),
    three(dtype="uint8", x_zero_point=255, result_dtype="uint8", batch=2),
    three(strides=(2, 2), x_zero_point=-128, weight_zero_points=True),
    three(strides=(2, 1), channels=(6, 6), groups=6, dtype="uint8", x_zero_point=7),
    three(channels=(3, 12), groups=3, weight_zero_points=True),
    three(channels=(4, 8), groups=4, x_zero_point=127),
    three(channels=(5, 15), groups=5, result=SUMS),
    three(dilation=(2, 2), padding=(2, 2, 2, 2), real_bias=True),
    three(kernel=(5, 5), padding=(2, 1, 2, 3), extremes=True, result_dtype="uint8"),
    three(kernel=(1, 7), padding=(0, 3, 0, 3), result=FUSED_FLOATS),
    three(kernel=(3, 1), padding=(1, 0, 0, 0), result=STEPWISE_FLOATS, size=(9, 1)),
    three(kernel=(10, 4), padding=(4, 1, 5, 2), size=(12, 9), channels=(36, 36), groups=36, extremes=True, dtype="uint8"),
    three(result=FUNCTIONS, size=(6, 7)),
    three(result=FUNCTIONS, channels=(5, 15), groups=5, result_dtype="uint8"),
    three(kernel=(7, 5), padding=(0, 0, 0, 0), size=(7, 5), result=INTEGERS),
]


def cases():
    rng = np.random.default_rng(1)
    for shape in SHAPES:
        case = conv2d_case(rng, shape)
        assert is_depthwise(case.spec)
        for pixels in (1, 2, 4):
            yield case, lambda spec, pixels=pixels: depthwise_conv2d(spec, SM80, pixels=pixels)


def test_depthwise_is_that_of_the_oracle():
    assert differing(list(cases())) == []


@pytest.mark.parametrize("check", ["races", "addresses"])
def test_depthwise_reads_and_writes_its_own_memory(check):
    assert differing(list(cases())[1::5], check=check, seed=1) == []


@pytest.mark.parametrize(
    ("there", "instead"),
    [
        ("from_column + c >= 0 && ", ""),
        ("constexpr int padding = packed(P::x_zero_point,", "constexpr int padding = packed(0,"),
        ("weight_zero_point[channel + i] * ones[n][i]", "weight_zero_point[channel] * ones[n][i]"),
        ("read[n * P::stride_width + s * P::dilation_width]", "read[n * P::stride_width + s]"),
        ("if (steps * N > P::out_width && first + n >= P::out_width) break;", ""),
    ],
)
def test_a_planted_fault_is_found(there, instead, tmp_path):
    shutil.copytree(DEVICE, tmp_path / "device")
    header = tmp_path / "device" / "depthwise.cuh"
    text = header.read_text()
    assert text.count(there) == 1
    header.write_text(text.replace(there, instead))
    assert any(differing(few, device=tmp_path / "device", seed=1) for few in few_at_a_time(cases()))


def test_a_thread_takes_several_pixels_where_many_threads_remain():
    rng = np.random.default_rng(2)
    assert pixels_of_thread(conv2d_case(rng, three()).spec, SM80) == 1
    large = conv2d_case(rng, three(size=(56, 56), channels=(1024, 1024), groups=1024)).spec
    assert [pixels_of_thread(large, isa) for isa in ISAS.values()] == [4, 4, 4, 4]


@pytest.mark.parametrize("name", ISAS)
def test_no_kernel_spills(name):
    own = list(cases())[list(ISAS).index(name) :: len(ISAS)]  # each kernel for one ISA, each count of pixels for all
    usages = Unit([call.kernel for case, build in own for call in build(case.spec)], ISAS[name]).usage
    assert {symbol: usage for symbol, usage in usages.items() if usage.spill_bytes or usage.stack_bytes} == {}
    assert max(usage.registers for usage in usages.values()) <= 128
