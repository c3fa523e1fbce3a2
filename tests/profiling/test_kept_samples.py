"""Kept samples: the same few whoever saw them in whatever order, bounded in number and bytes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import reduce
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from profiled_net import Profiled
from tvm import relax

import octavo
from nets import model_of, residual_net
from octavo.errors import ProfileError
from octavo.ir.graph.dataflow import BodyWriter
from octavo.profiling import Profile, kept_samples
from octavo.profiling.kept_samples import MAX_BYTES, Kept, KeptSamples, smallest

KEPT = 7


def saved(profile: Profile, folder: Path) -> tuple[bytes, bytes]:
    """The bytes of both files."""
    profile.save(folder / "profile.json")
    return (folder / "profile.json").read_bytes(), (folder / "profile.json.samples").read_bytes()


def contents(profile: Profile) -> list[bytes]:
    """The bytes of each kept sample, of a net with one input."""
    return [array.tobytes() for (array,) in profile.kept_samples]


@pytest.fixture(scope="module")
def profile(net: Profiled) -> Profile:
    return net.profile([net.samples], keep_samples=KEPT)


def test_some_of_the_samples_are_kept_as_they_were(net: Profiled, profile: Profile) -> None:
    assert (profile.keep_samples, len(profile.kept_samples)) == (KEPT, KEPT)
    given = {sample[None].tobytes() for sample in net.samples}
    assert len(set(contents(profile)) & given) == KEPT
    for (array,) in profile.kept_samples:
        assert (array.dtype, array.shape, array.flags.writeable) == (np.float32, (1, 3, 8, 8), False)
    everything = net.profile([net.samples])
    assert everything.keep_samples == 64
    assert set(contents(everything)) == given
    assert contents(everything)[:KEPT] == contents(profile)


def test_the_same_bytes_however_samples_are_split_shuffled_and_merged(net: Profiled, profile: Profile, tmp_path: Path) -> None:
    whole = saved(profile, tmp_path)
    shuffled = np.random.default_rng(1).permutation(20)
    for pieces in (2, 3, 20):
        parts = [
            net.profile([net.samples[numbers]], numbers=numbers, keep_samples=KEPT)
            for numbers in np.array_split(shuffled, pieces)
        ]
        for order in list(permutations(parts))[:3] if pieces < 4 else [parts, parts[::-1]]:
            assert saved(reduce(Profile.merge, order), tmp_path) == whole


def test_merging_knows_no_order_where_the_numbers_to_keep_differ(net: Profiled, tmp_path: Path) -> None:
    first, second, third = (
        net.profile([net.samples[start : start + 8]], keep_samples=keep) for start, keep in ((0, 5), (6, 64), (12, 3))
    )
    merged = first.merge(second).merge(third)
    assert (merged.keep_samples, len(merged.kept_samples)) == (3, 3)
    assert contents(merged) == contents(net.profile([net.samples], keep_samples=3))
    for other in (first.merge(second.merge(third)), third.merge(first).merge(second), second.merge(third).merge(first)):
        assert saved(other, tmp_path) == saved(merged, tmp_path)


def test_a_sample_seen_twice_is_kept_once(net: Profiled) -> None:
    once = net.profile([net.samples[:5]])
    assert contents(net.profile([np.concatenate([net.samples[:5]] * 3)])) == contents(once)
    assert contents(once.merge(once)) == contents(once)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_sample_with_nan_or_infinity_is_not_kept(net: Profiled, value: float) -> None:
    samples = net.samples[:4].copy()
    samples[2, 1, 3, 3] = value
    profile = net.profile([samples])
    assert profile.samples == 4
    assert contents(profile) == contents(net.profile([samples[[0, 1, 3]]]))


def test_none_are_kept_where_none_are_wanted(net: Profiled, tmp_path: Path) -> None:
    none = net.profile([net.samples], keep_samples=0)
    assert (none.keep_samples, none.kept_samples) == (0, ())
    none.save(tmp_path / "p.json")
    assert Profile.load(tmp_path / "p.json").kept_samples == ()
    assert none.merge(net.profile([net.samples])).kept_samples == ()


@pytest.mark.parametrize("keep", [-1, 1.5, True, "8", None, 2**53])
def test_the_number_to_keep_is_checked(net: Profiled, keep: Any) -> None:
    with pytest.raises(ProfileError, match="keep_samples must be a number of samples, 0 or more, got"):
        net.profile([net.samples], keep_samples=keep)


def test_a_run_of_several_rows_is_one_sample() -> None:
    model, samples = residual_net(batch=2), np.random.default_rng(0).standard_normal((6, 3, 8, 8)).astype(np.float32)
    profile = octavo.profile(model, samples)
    assert (profile.samples, len(profile.kept_samples)) == (6, 3)
    assert set(contents(profile)) == {samples[start : start + 2].tobytes() for start in (0, 2, 4)}
    assert contents(octavo.profile(model, [samples[4:], samples[:4]])) == contents(profile)


def test_all_inputs_of_a_model_are_kept_in_their_order(tmp_path: Path) -> None:
    def body(writer: BodyWriter, x: relax.Var, i: relax.Var) -> relax.Expr:
        return relax.Tuple([writer.emit(name, relax.op.add(var, var), is_output=True) for name, var in (("y", x), ("j", i))])

    model = model_of({"x": ((1, 4), "float16"), "i": ((1, 4), "int32")}, {}, body, ("y", "j"))
    numbers = np.arange(12).reshape(3, 4)
    profile = octavo.profile(model, {"i": -numbers.astype(np.int32), "x": numbers.astype(np.float16)})
    profile.save(tmp_path / "p.json")
    for kept in (profile.kept_samples, Profile.load(tmp_path / "p.json").kept_samples):
        assert sorted(x[0, 0] for x, _ in kept) == [0, 4, 8]
        assert [(x.dtype, i.dtype) for x, i in kept] == [(np.float16, np.int32)] * 3
        assert all((i == -x).all() for x, i in kept)


# ------------------------------------------------------------------------------------------------------ what is kept


def sketch(keep: int, samples: Iterator[tuple[np.ndarray, ...]]) -> KeptSamples:
    kept = KeptSamples(keep)
    for sample in samples:
        kept.offer(sample)
    return kept


def test_at_most_32_mib_are_kept_and_one_sample_at_least() -> None:
    large = ((np.full(MAX_BYTES // 4 // 4, number, np.float32),) for number in range(9))
    assert len(sketch(64, large).kept.samples) == 4
    larger = ((np.full(MAX_BYTES // 4 + 1, number, np.float32),) for number in range(3))
    assert len(sketch(64, larger).kept.samples) == 1
    pairs = ((np.full(MAX_BYTES // 6, number, np.uint8), np.zeros(MAX_BYTES // 6, np.uint8)) for number in range(9))
    assert len(sketch(64, pairs).kept.samples) == 3


def test_memory_does_not_grow_with_the_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not among the smallest is not even copied."""
    copied: list[np.ndarray] = []
    copy = kept_samples._copy

    def noted(array: np.ndarray) -> np.ndarray:
        copied.append(array)
        return copy(array)

    monkeypatch.setattr(kept_samples, "_copy", noted)
    kept = sketch(5, ((np.array([number]),) for number in range(2000)))
    assert len(kept.kept.samples) == len(kept._keys) == len(kept._samples) == 5
    # Of random order: 5 (1 + ln(2000 / 5)) on average.
    assert len(copied) < 100


def test_the_key_is_over_dtypes_shapes_and_all_inputs() -> None:
    zeros = np.zeros((2, 3), np.float32)
    different = [
        (zeros,), (zeros.reshape(3, 2),), (zeros.view(np.int32),), (-zeros,), (zeros, zeros), (zeros[:1], zeros[:1]),
    ]  # fmt: skip
    keys = {kept_samples.key_of(sample) for sample in different}
    assert len(keys) == len(different)
    assert {len(key) for key in keys} == {16}
    # Pinned: profiles of several machines and versions merge.
    numbers = np.arange(6, dtype=np.float32).reshape(2, 3)
    for sample in (numbers, np.ascontiguousarray(numbers.T).T):
        assert kept_samples.key_of((sample,)).hex() == "92575ee7906cbd1ae7b0bf54d838dd8e"


def test_a_kept_sample_does_not_change_with_what_it_was_copied_from() -> None:
    array = np.ones(4, np.float32)
    kept = sketch(2, iter([(array,)]))
    array[:] = 5
    assert kept.kept.samples[0][0].tolist() == [1, 1, 1, 1]


def test_samples_of_different_ranks_are_not_of_one_model(profile: Profile) -> None:
    with pytest.raises(ValueError, match="kept samples of different ranks or dtypes"):
        smallest(4, Kept(((np.zeros(3),),)), Kept(((np.zeros((3, 1)),),)))
    with pytest.raises(ProfileError, match="profiles cannot be merged: kept samples of different ranks"):
        profile.merge(replace(profile, kept_samples=((np.zeros((1, 2)),),)))


# --------------------------------------------------------------------------------------------------------- results


def test_what_the_model_gave_is_kept_beside_each_sample(net: Profiled, profile: Profile, tmp_path: Path) -> None:
    run = octavo.compile(net.model)
    profile.save(tmp_path / "p.json")
    for each in (profile, Profile.load(tmp_path / "p.json"), profile.merge(profile)):
        assert len(each.kept_results) == KEPT
        for (sample,), results in zip(each.kept_samples, each.kept_results, strict=True):
            for found, expected in zip(results, run(sample).values(), strict=True):
                assert not found.flags.writeable
                np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_results_are_kept_of_all_samples_or_of_none(monkeypatch: pytest.MonkeyPatch) -> None:
    samples = [(np.array([number]),) for number in range(20)]
    monkeypatch.setattr(kept_samples, "MAX_BYTES", 5 * 8 * 10)
    for size, expected in ((10, 5), (11, 0)):
        kept = KeptSamples(5)
        for sample in samples:
            kept.offer(sample, lambda sample=sample, size=size: [np.repeat(sample[0], size)])
        assert (len(kept.kept.samples), len(kept.kept.results)) == (5, expected)
        assert all((given == own).all() for (own,), (given,) in zip(kept.kept.samples, kept.kept.results, strict=False))


def test_a_union_has_results_where_all_its_parts_have(profile: Profile) -> None:
    known, unknown = profile.kept, Kept(profile.kept_samples)
    assert len(smallest(3, known, known, Kept()).results) == 3
    for parts in ((known, unknown), (unknown, known)):
        assert (len(smallest(3, *parts).samples), smallest(3, *parts).results) == (3, ())


# ------------------------------------------------------------------------------------------------------- checkpoints


def test_a_resumed_run_keeps_what_a_run_without_a_stop_keeps(net: Profiled, profile: Profile, tmp_path: Path) -> None:
    def stopping() -> Iterator[np.ndarray]:
        yield net.samples[:13]
        raise KeyboardInterrupt

    path = tmp_path / "checkpoint"
    with pytest.raises(KeyboardInterrupt):
        net.profile(stopping(), checkpoint=path, every=3, keep_samples=KEPT)
    assert contents(Profile.load(path)) == contents(net.profile([net.samples[:12]], keep_samples=KEPT))
    resumed = net.profile([net.samples], resume=path, keep_samples=KEPT)
    assert saved(resumed, tmp_path) == saved(profile, tmp_path)


def test_a_resumed_run_keeps_no_more_than_it_is_asked_for(net: Profiled, profile: Profile, tmp_path: Path) -> None:
    profile.save(tmp_path / "whole")
    net.profile([net.samples[:10]], keep_samples=KEPT).save(tmp_path / "part")
    for path in (tmp_path / "whole", tmp_path / "part"):
        for keep, expected in ((0, 0), (3, 3), (64, KEPT)):
            resumed = net.profile([net.samples], resume=path, keep_samples=keep)
            assert (resumed.keep_samples, contents(resumed)) == (expected, contents(profile)[:expected])
