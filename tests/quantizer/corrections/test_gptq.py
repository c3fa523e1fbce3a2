"""Rounding by a Gram matrix against its definition: the power of the error, and what is known of special cases."""

import itertools

import numpy as np
import pytest

from octavo.numerics.statistics.gptq import DAMPING, Gram, gptq_round, gptq_round_and_scale


def error_power(weight: np.ndarray, integers: np.ndarray, scale: np.ndarray, gram: np.ndarray) -> float:
    error = integers * scale[..., None] - weight
    return float(np.einsum("goi,gij,goj->", error, gram, error))


def correlated(rng: np.random.Generator, groups: int, inputs: int) -> np.ndarray:
    mixed = rng.normal(size=(groups, 4 * inputs, inputs)) @ rng.normal(size=(groups, inputs, inputs))
    return mixed.transpose(0, 2, 1) @ mixed / (4 * inputs)


def test_it_is_near_the_best_of_all_roundings(rng: np.random.Generator) -> None:
    """Of 6 weights all 3^6 roundings to neighbours of the nearest are tried."""
    offsets = np.array(list(itertools.product((-1, 0, 1), repeat=6)))
    ratios: list[float] = []
    for _ in range(40):
        weight, scale = rng.normal(size=(1, 1, 6)), np.array([[0.5]])
        gram = correlated(rng, 1, 6)
        nearest = np.rint(weight / scale[..., None])
        tried = nearest[0] + offsets
        errors = tried * 0.5 - weight[0]
        best = float(np.einsum("ni,ij,nj->n", errors, gram[0], errors).min())
        found = error_power(weight, gptq_round(weight, Gram.of(gram), scale, qmin=-127, qmax=127), scale, gram)
        ratios.append(found / best)
        assert found >= best * (1 - 1e-9) or found < error_power(weight, nearest, scale, gram)
    assert np.median(ratios) < 1.6


@pytest.mark.parametrize(("groups", "outputs", "inputs"), [(1, 5, 300), (7, 1, 9), (3, 4, 31), (1, 1, 1)])
def test_it_beats_rounding_to_nearest(rng: np.random.Generator, groups: int, outputs: int, inputs: int) -> None:
    weight, scale = rng.normal(size=(groups, outputs, inputs)), rng.uniform(0.02, 0.05, (groups, outputs))
    gram = correlated(rng, groups, inputs)
    found = gptq_round(weight, Gram.of(gram), scale, qmin=-127, qmax=127)
    nearest = np.clip(np.rint(weight / scale[..., None]), -127, 127)
    assert found.min() >= -127
    assert found.max() <= 127
    assert error_power(weight, found, scale, gram) <= error_power(weight, nearest, scale, gram) * (1 + 1e-12)
    if inputs > 1:
        assert error_power(weight, found, scale, gram) < 0.8 * error_power(weight, nearest, scale, gram)


def test_no_single_move_by_1_lowers_the_error(rng: np.random.Generator) -> None:
    """The polish is at rest on small problems: of the damped matrix, to which the test adds the same."""
    weight, scale, gram = rng.normal(size=(3, 2, 12)), np.full((3, 2), 0.4), correlated(rng, 3, 12)
    found = gptq_round(weight, Gram.of(gram), scale, qmin=-7, qmax=7)
    damped = gram + np.eye(12) * (DAMPING * np.diagonal(gram, axis1=1, axis2=2).mean(axis=1))[:, None, None]
    least = error_power(weight, found, scale, damped)
    for index in np.ndindex(found.shape):
        for move in (-1, 1):
            other = found.copy()
            other[index] += move
            if abs(other[index]) <= 7:
                assert error_power(weight, other, scale, damped) >= least * (1 - 1e-12)


def test_inputs_that_do_not_vary_together_give_rounding_to_nearest(rng: np.random.Generator) -> None:
    weight, scale = rng.normal(size=(2, 3, 20)), np.full((2, 3), 0.03)
    nearest = np.rint(weight / 0.03)
    for gram in (np.zeros((2, 20, 20)), np.stack([np.diag(rng.uniform(0.1, 9, 20))] * 2)):
        assert np.array_equal(gptq_round(weight, Gram.of(gram), scale, qmin=-127, qmax=127), nearest)


def test_groups_are_rounded_each_by_its_own_inputs(rng: np.random.Generator) -> None:
    weight, scale, gram = rng.normal(size=(4, 2, 9)), rng.uniform(0.02, 0.05, (4, 2)), correlated(rng, 4, 9)
    together = gptq_round(weight, Gram.of(gram), scale, qmin=-7, qmax=7)
    for group in range(4):
        part = slice(group, group + 1)
        assert np.array_equal(together[part], gptq_round(weight[part], Gram.of(gram[part]), scale[part], qmin=-7, qmax=7))
    assert np.abs(together).max() <= 7


def test_few_integers_are_given_to_most_weights_and_sums_keep_their_size(rng: np.random.Generator) -> None:
    weight, gram = rng.standard_t(4, size=(2, 5, 120)), correlated(rng, 2, 120)
    largest = np.abs(weight).max(axis=2) / 7
    found, scale = gptq_round_and_scale(weight, Gram.of(gram), largest, qmin=-7, qmax=7)
    plain = gptq_round(weight, Gram.of(gram), largest, qmin=-7, qmax=7)
    assert np.abs(found).max() == 7
    assert error_power(weight, found, scale, gram) < 0.8 * error_power(weight, plain, largest, gram)
    made, exact = found * scale[..., None], np.einsum("goi,gij->goj", weight, gram)
    slopes = np.einsum("goi,goi->go", exact, made) / np.einsum("goi,goi->go", exact, weight)
    np.testing.assert_allclose(slopes, 1, atol=0.01)


def test_a_row_of_zeros_keeps_its_scale(rng: np.random.Generator) -> None:
    found, scale = gptq_round_and_scale(np.zeros((1, 2, 9)), Gram.of(correlated(rng, 1, 9)), np.ones((1, 2)), qmin=-7, qmax=7)
    assert not found.any()
    assert (scale == 1).all()


def test_any_number_of_threads_gives_the_same_integers(rng: np.random.Generator) -> None:
    weight, scale = rng.normal(size=(2, 300, 40)), rng.uniform(0.02, 0.05, (2, 300))
    gram, parts = correlated(rng, 2, 40), []

    def last_first(find, slices):
        parts.extend(slices)
        return [find(each) for each in slices[::-1]][::-1]

    expected = gptq_round(weight, Gram.of(gram), scale, qmin=-127, qmax=127)
    found = gptq_round(weight, Gram.of(gram), scale, qmin=-127, qmax=127, over=last_first)
    np.testing.assert_array_equal(found, expected)
    assert [len(range(300)[each]) for each in parts] == [150, 150]
