"""Covariances from few samples: against their definition, and against those of the distribution that samples were drawn from."""

import numpy as np
import pytest

from octavo.numerics.statistics.covariance import SHRINKAGE, CovarianceSums
from octavo.numerics.statistics.gptq import Gram, gptq_round


def drawn(rng: np.random.Generator, mixing: np.ndarray, samples: int) -> list[np.ndarray]:
    """Samples of 5 positions that are much alike, as pixels of a picture are: whole numbers, (1, positions, inputs)."""
    inputs = len(mixing)
    of_sample = rng.normal(size=(samples, 1, 1, inputs)) + 0.3 * rng.normal(size=(samples, 1, 5, inputs))
    return list(np.rint(100 + 40 * of_sample @ mixing).astype(np.int16))


def sums_of(samples: list[np.ndarray]) -> CovarianceSums:
    sums = CovarianceSums(samples[0])
    for rows in samples:
        sums.add(sums.of(rows[np.newaxis]))
    return sums


@pytest.mark.parametrize("groups", [1, 3])
def test_sums_give_covariances_and_their_sureness_as_defined(rng: np.random.Generator, groups: int) -> None:
    samples = list(rng.integers(0, 255, (6, groups, 40, 7)))
    sums = sums_of(samples)
    for group in range(groups):
        rows = np.concatenate([each[group] for each in samples]).astype(np.float64)
        plain = np.cov(rows.T, bias=True)
        np.testing.assert_allclose(sums.plain()[group], plain, rtol=1e-9, atol=1e-6)
        off = ~np.eye(7, dtype=bool)
        centre = np.rint(samples[0][group].mean(axis=0))
        moments = np.stack([(each[group] - centre).T @ (each[group] - centre) / 40 for each in samples])
        share = min(moments.var(axis=0, ddof=1)[off].sum() / 6 / np.square(plain[off]).sum(), 1.0)
        expected = np.where(off, plain * (1 - SHRINKAGE * share), plain)
        np.testing.assert_allclose(sums.shrunk()[group], expected, rtol=1e-9, atol=1e-6)


def test_they_depend_on_samples_and_not_on_how_many_positions_each_repeats(rng: np.random.Generator) -> None:
    samples = drawn(rng, rng.normal(size=(8, 8)), 12)
    repeated = [np.concatenate([each] * 9, axis=1) for each in samples]
    np.testing.assert_allclose(sums_of(repeated).shrunk(), sums_of(samples).shrunk(), rtol=1e-9)


def test_what_is_sure_stays_and_what_is_chance_goes(rng: np.random.Generator) -> None:
    alike, apart = np.full((20, 20), 0.2), np.eye(20)
    for mixing, low, high in ((alike, 0.95, 1.0), (apart, 1 - SHRINKAGE, 1 - 0.7 * SHRINKAGE)):
        sums = sums_of(drawn(rng, mixing, 60))
        kept = (sums.shrunk()[0, 0, 1:] / sums.plain()[0, 0, 1:]).mean()
        assert low <= kept <= high
        assert np.array_equal(np.diagonal(sums.shrunk()[0]), np.diagonal(sums.plain()[0]))


def test_one_sample_and_inputs_that_never_vary_are_no_trouble() -> None:
    constant = sums_of([np.full((2, 4, 3), 7)] * 3)
    assert not constant.shrunk().any()
    one = sums_of([np.arange(12).reshape(1, 4, 3) % 5])
    assert np.array_equal(one.shrunk(), one.plain())


@pytest.mark.parametrize(("inputs", "samples", "draws"), [(96, 20, 3), (96, 60, 1), (200, 64, 1)])
def test_weights_rounded_by_them_are_better_on_what_no_sample_showed(
    rng: np.random.Generator, inputs: int, samples: int, draws: int
) -> None:
    """Of 4 bits behind a ReLU, as most layers are; the power of the error is that on 1000 other samples."""
    for _ in range(draws):
        mixing = rng.normal(size=(inputs, inputs)) * rng.uniform(0.2, 2, inputs) / 10
        below = 20 * mixing.std() * np.sqrt(inputs)
        seen, others = ([np.maximum(rows - 100 - below, 0) for rows in drawn(rng, mixing, count)] for count in (samples, 1000))
        truth, sums = sums_of(others).plain()[0], sums_of(seen)
        weight, scale = rng.normal(size=(1, 16, inputs)), np.full((1, 16), 0.4)
        powers: list[float] = []
        for gram in (sums.plain(), sums.shrunk()):
            error = gptq_round(weight, Gram.of(gram), scale, qmin=-7, qmax=7) * 0.4 - weight
            powers.append(float(np.einsum("goi,ij,goj->", error, truth, error)))
        assert powers[1] < 0.85 * powers[0]
