"""Driving batches: the same bytes however samples are split, and one clear error for each kind of bad batch."""

from __future__ import annotations

from functools import reduce
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from profiled_net import Profiled

import octavo
from nets import residual_net
from octavo.errors import DataError, QuantizationError
from octavo.ir.identity import TensorId
from octavo.numerics.statistics.histogram import Histogram
from octavo.profiling import NonFinite, Profile, TensorStatistics

X = TensorId("x")


def saved(profile: Profile, folder: Path) -> bytes:
    profile.save(folder / "profile.json")
    return (folder / "profile.json").read_bytes()


def spoiled(samples: np.ndarray) -> np.ndarray:
    """Put NaN and infinities into three samples."""
    bad = samples.copy()
    bad[3, 1, 2, 5] = np.nan
    bad[11, 0, 0, 0] = np.inf
    bad[17] *= np.float32(1e38)
    return bad


@pytest.mark.parametrize("bad", [False, True], ids=["finite", "non_finite"])
@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(order=st.permutations(range(20)), cuts=st.sets(st.integers(1, 19)), seed=st.integers(0, 2**32 - 1), data=st.data())
def test_split_shuffled_and_merged_in_any_order_gives_the_same_bytes(
    net: Profiled, tmp_path: Path, bad: bool, order: list[int], cuts: set[int], seed: int, data: st.DataObject
) -> None:
    samples = spoiled(net.samples) if bad else net.samples
    whole = saved(net.profile([samples]), tmp_path)
    parts: list[Profile] = []
    for numbers in np.split(np.array(order), sorted(cuts)):
        threads = data.draw(st.sampled_from([1, 2]))
        parts.append(net.profile([samples[numbers]], numbers=numbers, threads=threads))
    np.random.default_rng(seed).shuffle(parts)  # type: ignore[arg-type]
    assert saved(reduce(Profile.merge, parts), tmp_path) == whole


def test_thirteen_shuffled_shards_give_the_bytes_of_one_stream(net: Profiled, tmp_path: Path) -> None:
    samples = spoiled(np.concatenate([net.samples, net.samples[::-1] * 2]))
    whole = saved(net.profile(samples), tmp_path)
    shards = [net.profile(samples[start::13], numbers=count(start, 13)) for start in range(13)]
    np.random.default_rng(0).shuffle(shards)  # type: ignore[arg-type]
    assert saved(reduce(Profile.merge, shards), tmp_path) == whole
    assert saved(net.profile(samples, threads=2), tmp_path) == whole


def test_statistics_are_those_of_all_samples(net: Profiled) -> None:
    profile = net.profile(net.samples)
    entry = profile[X]
    assert (profile.samples, entry.count, entry.zeros, entry.non_finite) == (20, net.samples.size, 0, 0)
    assert (entry.minimum, entry.maximum) == (float(net.samples.min()), float(net.samples.max()))
    np.testing.assert_array_equal(entry.channel_minimum, net.samples.min(axis=(0, 2, 3)))
    np.testing.assert_array_equal(entry.channel_maximum, net.samples.max(axis=(0, 2, 3)))
    assert entry.histogram == Histogram.of(net.samples)
    weight, value = profile[TensorId("w1")], net.model.params[TensorId("w1")]
    assert (weight.kind, weight.count, weight.channel_axis) == ("constant", 216, 0)
    assert weight.histogram == Histogram.of(value)
    np.testing.assert_array_equal(weight.channel_maximum, value.max(axis=(1, 2, 3)))
    assert profile[TensorId("b1")].channel_axis is None


def test_named_inputs_progress_and_batches_of_several_samples(net: Profiled) -> None:
    seen: list[int] = []
    batches = [{"net/x:0": net.samples[:3]}, {"x": net.samples[3:4]}, net.samples[4:]]
    profile = net.profile(iter(batches), progress=seen.append)
    assert seen == list(range(1, 21))
    assert profile.samples == 20


def test_a_model_of_larger_batch_counts_its_rows() -> None:
    net = Profiled(model=residual_net(batch=2), samples=np.ones((6, 3, 8, 8), np.float32))
    profile = net.profile(net.samples)
    assert (profile.samples, profile[X].count) == (6, 6 * 192)
    net.samples[5, 2, 1, 0] = np.nan
    assert net.profile(net.samples)[X].first_non_finite == NonFinite(sample=5, index=(1, 2, 1, 0))
    numbers = [10, 11, 14, 15, 18, 19]
    assert net.profile(net.samples, numbers=numbers)[X].first_non_finite == NonFinite(sample=19, index=(1, 2, 1, 0))


GOOD = np.zeros((1, 3, 8, 8), np.float32)


@pytest.mark.parametrize(
    ("batches", "message"),
    [
        ([], r"no samples: the data set is empty"),
        (5, r"batches must be an iterable of arrays .*, got int"),
        ("calib.npz", r"batches must be an iterable of arrays .*, got str"),
        ([GOOD, GOOD[:, :, :7]], r"batch 1: input net/x:0 must have shape \[1,3,8,8\] \(or any number first\), got \[1,3,7,8\]"),
        ([GOOD[0]], r"batch 0: .*got \[3,8,8\]"),
        ([GOOD[:0]], r"batch 0: .*is empty"),
        ([GOOD, GOOD.astype(np.float64)], r"batch 1: input net/x:0 must be float32, got float64"),
        ([GOOD.astype(np.uint8)], r"batch 0: .*got uint8"),
        ([{"image": GOOD}], r"batch 0: input net/x:0 is missing; the model takes net/x:0: float32 \[1,3,8,8\], got \['image'\]"),
        ([{"x": GOOD, "mask": GOOD}], r"batch 0: unknown input \['mask'\]"),
        ([GOOD.tolist()], r"batch 0: input net/x:0 must be a NumPy array .*, got list"),
    ],
)
def test_bad_batches(net: Profiled, batches: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        net.profile(batches)


@pytest.mark.parametrize(("numbers", "message"), [([0], "more samples than numbers"), ([0, -1], "got -1"), ([0, "1"], "got '1'")])
def test_bad_numbers(net: Profiled, numbers: list[Any], message: str) -> None:
    with pytest.raises(DataError, match=f"batch 1: .*{message}"):
        net.profile([GOOD, GOOD], numbers=numbers)


def first(entry: TensorStatistics) -> tuple[int, int, NonFinite | None]:
    return entry.count, entry.non_finite, entry.first_non_finite


def test_what_is_not_finite_is_counted_with_its_sample_and_place(net: Profiled) -> None:
    profile = net.profile(spoiled(net.samples))
    x = profile[X]
    assert first(x) == (3840, 2, NonFinite(sample=3, index=(0, 1, 2, 5)))
    finite = spoiled(net.samples)[np.isfinite(spoiled(net.samples))]
    assert x.histogram == Histogram.of(finite)
    assert (x.minimum, x.maximum) == (float(finite.min()), float(finite.max()))
    conv = profile[TensorId("c1")]
    # Of the 3 x 3 windows, 2 apart and padded by 1, those in row 1 and columns 2 and 3 hold [2, 5], in every channel.
    assert conv.first_non_finite == NonFinite(sample=3, index=(0, 0, 1, 2))
    assert profile[TensorId("r1")].first_non_finite == conv.first_non_finite


def test_quantizing_names_the_tensor_that_was_not_finite(net: Profiled) -> None:
    profile = net.profile(spoiled(net.samples))
    with pytest.raises(QuantizationError, match=r"net/x:0 held 2 values .* the first in sample 3 at \[0, 1, 2, 5\]"):
        octavo.quantize(net.model, profile)
    huge = np.concatenate([net.samples[:2], np.full((1, 3, 8, 8), 3e38, np.float32)])
    with pytest.raises(QuantizationError, match=r"Op output net/r1:0 held \d+ values .* the first in sample 2"):
        octavo.quantize(net.model, net.profile(huge))


def test_a_tensor_without_a_single_finite_value_still_merges(net: Profiled, tmp_path: Path) -> None:
    nothing = net.profile(np.full((1, 3, 8, 8), np.nan, np.float32))
    x = nothing[X]
    assert (x.minimum, x.maximum, x.histogram.total, x.non_finite) == (0.0, 0.0, 0, 192)
    assert np.isposinf(x.channel_minimum).all()
    assert np.isneginf(x.channel_maximum).all()
    saved(nothing, tmp_path)
    merged = Profile.load(tmp_path / "profile.json").merge(net.profile(net.samples + 5, numbers=range(1, 21)))[X]
    assert merged.minimum == float(net.samples.min() + np.float32(5))
    assert merged.channel_minimum.min() == merged.minimum
