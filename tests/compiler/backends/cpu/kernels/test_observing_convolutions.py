"""Float convolutions that observe their own sums: the same numbers as a plain one, and the statistics of what it computed."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
import pytest
import tvm
from kernel_runner import Compiled

from octavo.compiler.backends.cpu.kernels import AVX512_VNNI, FloatConv2dSpec, Kernel, ObserveSpec, can_observe, float_conv2d
from octavo.numerics.statistics.histogram import Histogram
from octavo.numerics.statistics.observer_state import COUNTS_SIZE, empty_ranges, first_non_finite, total_counts
from octavo.runtime.llvm_host import host_target

pytestmark = pytest.mark.needs_isa(AVX512_VNNI)  # only these kernels observe what they write

CASES = [  # batch, height, width, inputs, outputs, kernel, stride, padding, groups, bounds
    (1, 9, 11, 16, 48, 1, 1, 0, 1, (0.0, 6.0)),
    (2, 14, 14, 24, 144, 1, 1, 0, 1, (0.0, 6.0)),
    (1, 40, 40, 8, 80, 1, 1, 0, 1, (0.0, math.inf)),
    (1, 13, 17, 3, 32, 3, 2, 1, 1, (0.0, 6.0)),
    (1, 15, 15, 96, 96, 3, 1, 1, 96, (0.0, 6.0)),
    (2, 15, 15, 48, 48, 3, 2, 1, 48, (-1.0, 0.5)),
    (1, 8, 8, 32, 64, 3, 1, 1, 2, (-math.inf, math.inf)),
    (1, 5, 9, 3, 112, 1, 1, 0, 1, (0.0, 6.0)),  # so few steps that a run is one slot, a last panel that is narrower
    (1, 1, 1, 400, 16, 1, 1, 0, 1, (0.0, 6.0)),  # one tile of one pixel
]


def run(function: Any, kernel: Kernel, size: int, *inputs: Any) -> np.ndarray:
    out = tvm.runtime.tensor(np.zeros(size, np.float32))
    function(*inputs, *map(tvm.runtime.tensor, kernel.constants), out)
    return out.numpy()


@cache
def compiled(case: Any) -> Any:
    """The layer, what it observes, and its kernels without an observer and with one, each beside its code."""
    batch, height, width, inputs, outputs, size, stride, padding, groups, (low, high) = case
    spec = FloatConv2dSpec(
        batch=batch,
        in_height=height,
        in_width=width,
        in_channels=inputs,
        out_channels=outputs,
        kernel=(size, size),
        strides=(stride, stride),
        padding=(padding,) * 4,
        groups=groups,
    )
    rng = np.random.default_rng(0)
    weight = rng.standard_normal((size, size, inputs // groups, outputs)).astype(np.float32)
    bias = rng.standard_normal(outputs).astype(np.float32)
    observe = ObserveSpec(
        outer=batch * spec.out_height * spec.out_width,
        channels=outputs,
        inner=1,
        plane=spec.out_height * spec.out_width,
        low=low,
        high=high,
    )
    plain = float_conv2d(spec, weight=weight, bias=bias, isa=AVX512_VNNI)
    observing = float_conv2d(spec, weight=weight, bias=bias, isa=AVX512_VNNI, observe=observe)
    code = Compiled({"plain": plain.func, "observing": observing.func}, host_target())
    return spec, observe, (code["plain"], plain), (code["observing"], observing)


@pytest.mark.parametrize("bad", [False, True], ids=["finite", "non_finite"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: "x".join(map(str, case[:9])))
def test_observes_what_a_plain_convolution_computes(case: Any, bad: bool) -> None:
    batch, height, width, inputs, outputs, *_, (low, high) = case
    spec, observe, plain, observing = compiled(case)
    x = np.random.default_rng(1).standard_normal((batch, height, width, inputs)).astype(np.float32)
    if bad:
        x[-1, height // 2, width // 2, inputs // 2] = np.nan
        x[0, height - 1, 0, 0] = np.inf
    data = tvm.runtime.tensor(x.reshape(-1))
    assert can_observe(spec, isa=AVX512_VNNI)

    expected = run(*plain, observe.size, data)
    ranges, counts = tvm.runtime.tensor(empty_ranges(outputs)), tvm.runtime.tensor(np.zeros(COUNTS_SIZE, np.int32))
    got = run(*observing, observe.size, data, ranges, counts)

    is_finite = np.isfinite(expected)
    assert is_finite.all() != bad
    np.testing.assert_array_equal(got[is_finite], np.clip(expected, low, high)[is_finite])
    assert Histogram.of_codes(total_counts(counts.numpy())) == Histogram.of(expected[is_finite])
    values, seen = expected.reshape(-1, outputs), is_finite.reshape(-1, outputs)
    least, greatest = np.where(seen, values, np.inf).min(axis=0), np.where(seen, values, -np.inf).max(axis=0)
    np.testing.assert_array_equal(ranges.numpy(), np.concatenate([least, greatest]))
    places = np.flatnonzero(~seen.reshape(batch, observe.plane, outputs).transpose(0, 2, 1))
    assert first_non_finite(counts.numpy(), observe.size) == (int(places[0]) if bad else None)


def test_what_is_left_to_an_observer_behind() -> None:
    plain = {"batch": 1, "in_height": 4, "in_width": 4, "in_channels": 16, "kernel": (1, 1)}
    assert can_observe(FloatConv2dSpec(out_channels=32, **plain), isa=AVX512_VNNI)
    assert not can_observe(FloatConv2dSpec(out_channels=32, **plain), isa="generic")
    assert not can_observe(FloatConv2dSpec(out_channels=24, **plain), isa=AVX512_VNNI)
    assert not can_observe(FloatConv2dSpec(out_channels=32, threads=2, **plain), isa=AVX512_VNNI)
    assert not can_observe(FloatConv2dSpec(out_channels=32, groups=4, **plain), isa=AVX512_VNNI)
