"""Adequacy: ranges by bucket of samples are exact, however samples come; silent channels; what still grows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from profiled_net import Profiled

from nets import residual_net
from octavo.ir.identity import TensorId
from octavo.profiling import Profile, adequacy
from octavo.profiling.buckets import BUCKETS, SampleBuckets

X, C1, R1 = TensorId("x"), TensorId("c1"), TensorId("r1")


def buckets_of(net: Profiled) -> list[int]:
    teller = SampleBuckets()
    return [teller.of([sample[None]]) for sample in net.samples]


def test_each_bucket_has_the_range_of_its_samples(net: Profiled) -> None:
    profile, buckets = net.profile(net.samples), buckets_of(net)
    assert profile.bucket_samples == tuple(buckets.count(bucket) for bucket in range(BUCKETS))
    x = profile[X]
    for bucket in range(BUCKETS):
        own = net.samples[[number for number, other in enumerate(buckets) if other == bucket]]
        assert x.bucket_minimum[bucket] == own.min(initial=np.inf)
        assert x.bucket_maximum[bucket] == own.max(initial=-np.inf)
    alone = [net.profile(sample[None]) for sample in net.samples]
    for key in (C1, R1):
        highest = np.full(BUCKETS, -np.inf)
        np.maximum.at(highest, buckets, [one[key].maximum for one in alone])
        np.testing.assert_array_equal(profile[key].bucket_maximum, highest)
    assert (profile[R1].bucket_minimum[np.isfinite(profile[C1].bucket_minimum)] == 0).all()


def test_a_bucket_depends_on_every_byte_and_spreads_evenly() -> None:
    teller = SampleBuckets()
    first, second = np.zeros((3,), np.uint16), np.zeros((11,), np.uint8)
    seen = {teller.of([first, second])}
    for place in range(11):
        for value in range(1, 64):
            second[:] = 0
            second[place] = value
            seen.add(teller.of([first, second]))
    assert seen == set(range(BUCKETS))
    # One value at another place each time: sums alone would not tell these apart.
    wide = SampleBuckets()
    found = np.zeros(BUCKETS, int)
    for place in range(1024):
        sample = np.zeros((1, 4096), np.float32)
        sample[0, place] = 1
        found[wide.of([sample])] += 1
    assert found.min() > 10
    assert found.max() < 60


def test_rows_that_share_a_run_are_not_distinguished() -> None:
    net = Profiled(model=residual_net(batch=2), samples=np.random.default_rng(0).random((6, 3, 8, 8), np.float32))
    profile = net.profile(net.samples)
    assert profile.bucket_samples == ()
    found = adequacy(profile)
    assert found.unknown == found.tensors
    assert profile.merge(net.profile(net.samples)).bucket_samples == ()


def test_merged_with_a_profile_without_buckets_there_are_none(net: Profiled) -> None:
    whole = net.profile(net.samples)
    tensors = {key: replace(value, bucket_minimum=value.bucket_minimum[:0], bucket_maximum=value.bucket_maximum[:0])
               for key, value in whole.items()}  # fmt: skip
    bare = replace(whole, bucket_samples=(), tensors=tensors)
    for merged in (whole.merge(bare), bare.merge(whole)):
        assert merged.bucket_samples == ()
        assert merged[X].bucket_minimum.size == 0


def test_growth_silence_and_intervals(net: Profiled) -> None:
    found = {tensor.id: tensor for tensor in adequacy(net.profile(net.samples)).tensors}
    assert TensorId("w1") not in found
    x = found[X].convergence
    assert x is not None
    # One sample in seven is 8 times the median one; nobody knows the range from half of them.
    assert x.growing
    assert x.maximum_interval[0] == found[X].maximum < x.maximum_interval[1]
    assert x.minimum_interval[0] < x.minimum_interval[1] == found[X].minimum
    once = net.samples[:1]
    few = adequacy(net.profile([once, once, once]))
    assert few.unknown == few.tensors
    quiet = net.samples.copy()
    quiet[:, 1] = 0
    assert {t.id: t.silent_channels for t in adequacy(net.profile(quiet)).tensors}[X] == (1,)


def test_versions_of_all_parts_are_listed(net: Profiled) -> None:
    profile = net.profile(net.samples[:2])
    assert profile.tools["numpy"] == (np.__version__,)
    older = replace(profile, tools={**profile.tools, "tvm": ("0.1",)})
    newer = replace(profile, tools={**profile.tools, "more": ("2",)})
    merged = older.merge(newer)
    assert merged.tools["tvm"] == tuple(sorted(("0.1", *profile.tools["tvm"])))
    assert merged.tools == newer.merge(older).tools == older.merge(newer).merge(older).tools
    assert set(merged.tools) == {"more", "numpy", "octavo", "tvm"}


def test_memory_of_a_profile_does_not_grow(net: Profiled) -> None:
    one, many = net.profile(net.samples[:1]), net.profile([net.samples] * 5)
    assert isinstance(one, Profile)
    assert one[X].bucket_minimum.shape == many[X].bucket_minimum.shape == (BUCKETS,)


@pytest.mark.parametrize("value", [None, {}])
def test_only_profiles_are_checked(value: object) -> None:
    from octavo.errors import ProfileError

    with pytest.raises(ProfileError, match="a Profile to judge"):
        adequacy(value)  # type: ignore[arg-type]
