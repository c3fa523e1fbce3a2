"""Driving batches: the same bytes however samples are split, and one clear error for each kind of bad batch."""

from __future__ import annotations

from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from profiled_net import Profiled

from nets import compiled, residual_net
from octavo.errors import DataError
from octavo.identity import TensorId
from octavo.numerics.histogram import Histogram
from octavo.profile import Profile, collect, instrument

X = TensorId("x")


def saved(profile: Profile, folder: Path) -> bytes:
    profile.save(folder / "profile.json")
    return (folder / "profile.json").read_bytes()


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(order=st.permutations(range(20)), cuts=st.sets(st.integers(1, 19)), seed=st.integers(0, 2**32 - 1))
def test_split_shuffled_and_merged_in_any_order_gives_the_same_bytes(
    net: Profiled, tmp_path: Path, order: list[int], cuts: set[int], seed: int
) -> None:
    whole = saved(net.profile([net.samples]), tmp_path)
    parts = [net.profile([part]) for part in np.split(net.samples[order], sorted(cuts))]
    np.random.default_rng(seed).shuffle(parts)  # type: ignore[arg-type]
    assert saved(reduce(Profile.merge, parts), tmp_path) == whole


def test_statistics_are_those_of_all_samples(net: Profiled) -> None:
    profile = net.profile(net.samples)
    entry = profile[X]
    assert (profile.samples, entry.count, entry.zeros, entry.non_finite) == (20, net.samples.size, 0, 0)
    assert (entry.minimum, entry.maximum) == (float(net.samples.min()), float(net.samples.max()))
    np.testing.assert_array_equal(entry.channel_minimum, net.samples.min(axis=(0, 2, 3)))
    np.testing.assert_array_equal(entry.channel_maximum, net.samples.max(axis=(0, 2, 3)))
    assert entry.histogram == Histogram.of(net.samples)
    weight = profile[TensorId("w1")]
    assert (weight.kind, weight.count, weight.channel_axis) == ("constant", 216, None)
    assert weight.histogram == Histogram.of(net.model.params[TensorId("w1")])


def test_named_inputs_progress_and_batches_of_several_samples(net: Profiled) -> None:
    seen: list[int] = []
    batches = [{"net/x:0": net.samples[:3]}, {"x": net.samples[3:4]}, net.samples[4:]]
    profile = net.profile(iter(batches), progress=seen.append)
    assert seen == list(range(1, 21))
    assert profile.samples == 20


def test_a_model_of_larger_batch_counts_its_rows() -> None:
    model = residual_net(batch=2)
    instrumented = instrument(model)
    profile = collect(model, instrumented, compiled(instrumented.module), np.ones((6, 3, 8, 8), np.float32))
    assert (profile.samples, profile[X].count) == (6, 6 * 192)


GOOD = np.zeros((1, 3, 8, 8), np.float32)
BAD = np.where(np.arange(192).reshape(1, 3, 8, 8) == 65, np.float32(np.nan), GOOD)


@pytest.mark.parametrize(
    ("batches", "message"),
    [
        ([], r"no samples: the data set is empty"),
        (5, r"batches must be an iterable of arrays .*, got int"),
        ("calib.npz", r"batches must be an iterable of arrays .*, got str"),
        ([GOOD, GOOD[:, :, :7]], r"batch 1: input net/x:0 must have shape \[1,3,8,8\] .*, got \[1,3,7,8\]"),
        ([GOOD[0]], r"batch 0: .*got \[3,8,8\]"),
        ([GOOD[:0]], r"batch 0: .*is empty"),
        ([GOOD, GOOD.astype(np.float64)], r"batch 1: input net/x:0 must be float32, got float64"),
        ([GOOD.astype(np.uint8)], r"batch 0: .*got uint8"),
        ([BAD], r"batch 0: input net/x:0 holds nan at index \[0, 1, 0, 1\]"),
        ([GOOD, np.concatenate([GOOD, GOOD + np.float32(np.inf)])], r"batch 1: .*holds inf at index \[1, 0, 0, 0\]"),
        ([{"image": GOOD}], r"batch 0: input net/x:0 is missing; the model takes net/x:0: float32 \[1,3,8,8\], got \['image'\]"),
        ([{"x": GOOD, "mask": GOOD}], r"batch 0: unknown input \['mask'\]"),
        ([GOOD.tolist()], r"batch 0: input net/x:0 must be a NumPy array .*, got list"),
    ],
)
def test_bad_batches(net: Profiled, batches: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        net.profile(batches)


def test_a_tensor_that_overflows_is_named_with_its_sample(net: Profiled) -> None:
    huge = np.concatenate([net.samples[:2], np.full((1, 3, 8, 8), 3e38, np.float32)])
    with pytest.raises(DataError, match=r"batch 0, sample 2: Op output net/c1:0 holds \d+ values that are NaN or infinite"):
        net.profile([huge])
