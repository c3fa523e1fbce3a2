"""Extremes of groups: the closed forms against every choice of groups, and against drawing them."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from octavo.numerics.statistics.convergence import MIN_GROUPS, bootstrap_reach, convergence_of, expected_maximum


@pytest.mark.parametrize("drawn", [1, 2, 3, 6, 7])
def test_the_expected_maximum_is_the_mean_over_every_choice(drawn: int) -> None:
    values = np.random.default_rng(drawn).normal(0, 3, 7)
    expected = np.mean([max(chosen) for chosen in combinations(values, drawn)])
    assert expected_maximum(values, drawn) == pytest.approx(float(expected), rel=1e-12)


@pytest.mark.parametrize("drawn", [0, 8])
def test_more_than_there_are_cannot_be_chosen(drawn: int) -> None:
    with pytest.raises(ValueError, match=f"cannot choose {drawn} of 7"):
        expected_maximum(np.zeros(7), drawn)


@pytest.mark.parametrize("n", [8, 20, 32])
def test_the_bootstrap_is_that_of_many_draws(n: int) -> None:
    random = np.random.default_rng(n)
    values = random.normal(0, 1, n)
    drawn = random.choice(values, (20_000, n)).max(axis=1)
    # The value below which 2.5% of the draws lie; the probabilities of neighbouring values are far enough from it.
    low = np.quantile(drawn, 0.025, method="inverted_cdf")
    assert bootstrap_reach(values) == pytest.approx(values.max() - low, abs=1e-12)


def test_a_range_that_half_of_the_groups_reach_has_converged() -> None:
    minima, maxima = np.zeros(32, np.float32), np.where(np.arange(32) % 2, 6, 3).astype(np.float32)
    found = convergence_of(minima, maxima)
    assert found is not None
    assert not found.growing
    assert (found.minimum_interval, found.maximum_interval) == ((0.0, 0.0), (6.0, 6.0))
    assert [share for share, _ in found.curve] == [1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2, 1]
    widths = [width for _, width in found.curve]
    assert widths == sorted(widths)
    assert widths[0] == pytest.approx(0.75)
    assert widths[-1] == 1


def test_a_range_that_one_group_widens_still_grows() -> None:
    maxima = np.array([1.0] * 31 + [3.0])
    found = convergence_of(np.zeros(32), maxima)
    assert found is not None
    assert found.growing
    assert found.growth == pytest.approx(0.5 * 2 / 3)
    assert found.maximum_interval == (3.0, 5.0)


def test_neither_the_order_of_the_groups_nor_a_common_factor_matters() -> None:
    random = np.random.default_rng(5)
    low, high = -random.exponential(1, 20), random.exponential(2, 20)
    one, other = convergence_of(low, high), convergence_of(8 * low[::-1], 8 * high[::-1])
    assert one is not None
    assert other is not None
    assert (one.growth, one.curve) == (other.growth, other.curve)


def test_a_single_value_and_too_few_groups() -> None:
    found = convergence_of(np.full(MIN_GROUPS, 2.0), np.full(MIN_GROUPS, 2.0))
    assert found is not None
    assert (found.growth, found.maximum_interval) == (0.0, (2.0, 2.0))
    assert convergence_of(np.zeros(MIN_GROUPS - 1), np.ones(MIN_GROUPS - 1)) is None


def test_reach_is_the_larger_share_that_an_end_may_lie_further_out() -> None:
    steady, rare = np.linspace(0.95, 1.0, 32), np.linspace(0.0, 1.0, 32) ** 4
    found = convergence_of(-steady, steady)
    assert found is not None
    assert found.reach == pytest.approx(bootstrap_reach(steady) / 2)
    assert found.covered
    for minima, maxima in ((-steady, rare), (-rare, steady)):
        one_end = convergence_of(minima, maxima)
        assert one_end is not None
        assert one_end.reach == pytest.approx(bootstrap_reach(rare) / 2)
        assert not one_end.covered
    point = convergence_of(np.full(32, 2.0), np.full(32, 2.0))
    assert point is not None
    assert point.covered
