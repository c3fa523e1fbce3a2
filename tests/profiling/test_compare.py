"""Two profiles side by side: which tensors changed, by how much, and what tells the models of two profiles apart."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from profiled_net import Profiled

from octavo.errors import ProfileError
from octavo.ir.identity import TensorEntry, TensorId
from octavo.profiling import Profile, check_model, check_same_model, diff
from octavo.profiling.statistics import constant_statistics

OTHER = "sha256:" + "f" * 64
X = TensorId("x")


def profile_of(*values: float, id: str = "x", kind: str = "input") -> Profile:
    """One tensor that held these values; its kind is set afterwards, for the statistics of a constant are the easiest made."""
    entry = TensorEntry(
        id=TensorId(id), source_name=id, kind="constant", op="", layer="", shape=(len(values),), dtype="float32", is_output=False
    )
    statistics = replace(constant_statistics(entry, np.array(values, np.float32)), kind=kind)
    return Profile(fingerprint="sha256:0", samples=1, tensors={TensorId(id): statistics})


def test_a_profile_has_no_change_from_itself(net: Profiled) -> None:
    profile = net.profile([net.samples[:4]])
    found = diff(profile, profile)
    assert {change.id for change in found.changes} == set(profile)
    assert not any(change.has_changed for change in found.changes)
    assert (found.only_before, found.only_after) == ((), ())


@pytest.mark.parametrize(
    ("before", "after", "range_change", "values_change"),
    [
        ((0.0, 4.0), (0.0, 8.0), 0.5, 0.5),
        ((0.0, 4.0), (-1.0, 4.0), 0.2, 0.5),
        ((0.0, 1.0, 4.0), (0.0, 2.0, 4.0), 0.0, 1 / 3),
        ((1.0, 2.0), (3.0, 4.0), 2.0, 1.0),
        ((2.0,), (3.0,), 1 / 3, 1.0),
        ((0.0,), (0.0,), 0.0, 0.0),
        ((np.nan,), (5.0,), 1.0, 1.0),
        ((1.0, 2.0), (1.0, 1.0, 2.0, 2.0), 0.0, 0.0),
    ],
)
def test_how_far_a_tensor_changed(
    before: tuple[float, ...], after: tuple[float, ...], range_change: float, values_change: float
) -> None:
    for first, second in ((before, after), (after, before)):
        (change,) = diff(profile_of(*first), profile_of(*second)).changes
        assert change.range_change == pytest.approx(range_change)
        assert change.values_change == pytest.approx(values_change)
        assert change.has_changed == (before != after and range_change + values_change > 0)


def test_the_tensor_that_changed_most_comes_first(net: Profiled) -> None:
    found = diff(net.profile([net.samples[:2]]), net.profile([net.samples]))
    keys = [(-change.range_change, -change.values_change, change.id) for change in found.changes]
    assert keys == sorted(keys)
    assert found.changes[0].range_change > 0
    weights = [change for change in found.changes if net.model.tensors[change.id].kind == "constant"]
    assert weights
    assert not any(change.has_changed for change in weights)


def test_tensors_that_one_profile_observes_are_named(net: Profiled) -> None:
    whole, part = net.profile([net.samples[:2]]), net.profile([net.samples[:2]], tensors="x")
    found = diff(whole, part)
    assert set(found.only_before) == set(whole) - set(part)
    assert [change.id for change in found.changes] == list(part)


def test_profiles_of_different_models_are_refused_with_what_differs() -> None:
    profile = profile_of(1.0, 2.0)
    statistics = profile[X]
    for other, said in (
        (profile_of(1.0, 2.0, id="z"), "only first holds x; only second holds z"),
        (replace(profile, tensors={X: replace(statistics, shape=(1, 2))}), r"shape of x is \[2\] and \[1, 2\]"),
        (replace(profile, tensors={X: replace(statistics, op="Relu")}), "op of x is '' and 'Relu'"),
        (profile, "attributes of the ops or in the weights"),
    ):
        with pytest.raises(ProfileError, match=said) as error:
            diff(profile, replace(other, fingerprint=OTHER))
        assert OTHER in str(error.value)
    weights = [replace(profile_of(*values, kind="constant"), fingerprint=str(values)) for values in ((1.0,), (2.0,))]
    with pytest.raises(ProfileError, match="the same tensors, but other values in x"):
        check_same_model(*weights)


def test_a_model_refuses_the_profile_of_another_with_what_differs(net: Profiled) -> None:
    other = replace(net.profile([net.samples[:1]]), fingerprint=OTHER)
    renamed = {key: replace(value, shape=(9, *value.shape)) if key == X else value for key, value in other.items()}
    with pytest.raises(ProfileError, match=r"shape of x is \[9, 1, 3, 8, 8\] and \[1, 3, 8, 8\]"):
        check_model(replace(other, tensors=renamed), net.model)
