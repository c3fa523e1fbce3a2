"""Checkpoints: written every so many samples, whole at any moment, and resumed to the bytes of a run that nothing disturbed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from profiled_net import Profiled

from octavo.errors import DataError, ProfileError
from octavo.profiling import Checkpoint, Profile, samples_path
from profile_kills import Killing


class _Stopped(Exception):
    pass


def stopping(net: Profiled, after: int) -> Iterator[np.ndarray]:
    """The samples, one batch each, until `after` of them were given."""
    for sample in net.samples[:after]:
        yield sample[None]
    raise _Stopped


@pytest.mark.parametrize(("after", "every", "held"), [(7, 3, 6), (9, 3, 9), (3, 1, 3), (19, 10, 10)])
def test_a_stopped_run_leaves_all_but_the_last_samples_and_is_resumed(
    net: Profiled, tmp_path: Path, after: int, every: int, held: int
) -> None:
    path = tmp_path / "checkpoint"
    with pytest.raises(_Stopped):
        net.profile(stopping(net, after), checkpoint=path, every=every)
    assert Profile.load(path).samples == held
    seen: list[int] = []
    resumed = net.profile([net.samples[:5], net.samples[5:]], resume=path, progress=seen.append)
    assert seen == list(range(1, 21))
    resumed.save(tmp_path / "resumed.json")
    net.profile([net.samples]).save(tmp_path / "whole.json")
    assert (tmp_path / "resumed.json").read_bytes() == (tmp_path / "whole.json").read_bytes()
    assert samples_path(tmp_path / "resumed.json").read_bytes() == samples_path(tmp_path / "whole.json").read_bytes()
    files = ("checkpoint", "resumed.json", "whole.json")
    assert sorted(os.listdir(tmp_path)) == sorted([*files, *(f"{name}.samples" for name in files)])


def test_nothing_is_written_before_the_first_samples_are_due(net: Profiled, tmp_path: Path) -> None:
    with pytest.raises(_Stopped):
        net.profile(stopping(net, 4), checkpoint=tmp_path / "checkpoint", every=5)
    assert not os.listdir(tmp_path)


def test_a_skipped_sample_is_not_run_again_and_keeps_its_number(net: Profiled, tmp_path: Path) -> None:
    spoiled = net.samples.copy()
    spoiled[12, 0, 0, 0] = np.nan
    first = net.profile([spoiled[:10]])
    first.save(tmp_path / "checkpoint")
    ignored = spoiled.copy()
    ignored[:10] = np.inf
    resumed = net.profile([ignored], resume=tmp_path / "checkpoint")
    whole = net.profile([spoiled])
    (tensor,) = net.model.input_ids
    assert resumed[tensor].first_non_finite == whole[tensor].first_non_finite
    assert resumed[tensor].non_finite == whole[tensor].non_finite == 1


def test_a_checkpoint_of_everything_is_the_profile(net: Profiled, tmp_path: Path) -> None:
    whole = net.profile([net.samples])
    whole.save(tmp_path / "checkpoint")
    net.profile([net.samples], resume=tmp_path / "checkpoint").save(tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == (tmp_path / "checkpoint").read_bytes()


def test_what_does_not_fit_is_refused_before_a_sample_is_run(net: Profiled, tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    profile = net.profile([net.samples[:10]])
    for changed, said in (
        (replace(profile, fingerprint="sha256:other"), "belongs to another model"),
        (replace(profile, preprocessing="halved"), "preprocessed in another way: halved, now unknown"),
        (net.profile([net.samples[:10]], tensors="x"), "only one of the two runs observes"),
    ):
        changed.save(path)
        with pytest.raises(ProfileError, match=said):
            net.profile(stopping(net, 0), resume=path)
    profile.save(path)
    with pytest.raises(DataError, match="the checkpoint holds 10 samples, these are 4"):
        net.profile([net.samples[:4]], resume=path)
    path.write_text("{")
    with pytest.raises(ProfileError, match="not a profile"):
        net.profile([net.samples], resume=path)


@pytest.mark.parametrize("every", [0, -1, 1.5, True])
def test_the_distance_of_checkpoints_is_checked(net: Profiled, tmp_path: Path, every: int) -> None:
    with pytest.raises(ProfileError, match="every must be a number of samples"):
        net.profile([net.samples], checkpoint=tmp_path / "checkpoint", every=every)


def test_a_checkpoint_that_cannot_be_written_is_one_error(net: Profiled, tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match="cannot write the profile"):
        net.profile([net.samples], checkpoint=tmp_path / "missing" / "checkpoint", every=1)


def test_runs_of_several_samples_never_lose_more_than_was_said() -> None:
    checkpoint = Checkpoint(path=Path("unused"), every=10)
    assert [checkpoint.is_due(since, 4) for since in (4, 8)] == [False, True]
    assert checkpoint.is_due(16, 16)


def test_the_last_checkpoint_becomes_the_profile(net: Profiled, tmp_path: Path) -> None:
    checkpoint = Checkpoint(path=tmp_path / "checkpoint", every=10)
    profile = net.profile([net.samples], checkpoint=checkpoint.path, every=10)
    checkpoint.finish(profile, tmp_path / "profile.json")
    assert sorted(os.listdir(tmp_path)) == ["profile.json", "profile.json.samples"]
    assert Profile.load(tmp_path / "profile.json").samples == len(net.samples)


def test_a_profile_that_cannot_be_written_in_the_end_is_whole_in_its_checkpoint(net: Profiled, tmp_path: Path) -> None:
    checkpoint = Checkpoint(path=tmp_path / "checkpoint", every=10)
    with pytest.raises(
        ProfileError,
        match=r"missing/profile.json.samples: cannot write .*; it is whole in .*checkpoint",
    ):
        checkpoint.finish(net.profile([net.samples]), tmp_path / "missing" / "profile.json")
    assert len(Profile.load(checkpoint.path).kept_samples) == len(net.samples)


def test_killed_runs_leave_valid_files_and_resume_to_the_same_bytes(tmp_path: Path) -> None:
    outcome = Killing(tmp_path, samples=100, every=5, seed=1).kills(4)
    assert outcome.kills == 4
    assert outcome.finished >= 1
    assert outcome.most_lost <= 5
