"""Weights that make up for errors of inputs: better on samples that they never saw, and left alone where errors are chance."""

import numpy as np
import pytest

from octavo.numerics.statistics.covariance import CovarianceSums
from octavo.numerics.statistics.inherited import InheritedErrors, SampleErrors

GROUPS, OUTPUTS, INPUTS = 2, 3, 9


def read_and_exact(
    rng: np.random.Generator, weight: np.ndarray, samples: int, positions: int, *, noise: float
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return what a layer reads, whole numbers that are much alike, and what it gives of them before they were rounded."""
    found: list[tuple[np.ndarray, np.ndarray]] = []
    for _ in range(samples):
        common = rng.normal(size=(GROUPS, positions, 1))
        inputs = 40 + 20 * common + 3 * rng.normal(size=(GROUPS, positions, INPUTS))
        read = np.rint(inputs + noise * rng.normal(size=inputs.shape))
        found.append((read.astype(np.int16), (inputs @ weight.transpose(0, 2, 1)).astype(np.float32)))
    return found


def sums_of(weight: np.ndarray, samples: list[tuple[np.ndarray, np.ndarray]]) -> InheritedErrors:
    sums = InheritedErrors(weight, samples[0][0])
    sums.add(batch(sums, samples))
    return sums


def batch(sums: InheritedErrors, samples: list[tuple[np.ndarray, np.ndarray]]) -> tuple[SampleErrors, ...]:
    return sums.of(np.stack([read for read, _ in samples]), np.stack([exact for _, exact in samples]))


def left(weight: np.ndarray, samples: list[tuple[np.ndarray, np.ndarray]]) -> float:
    """Return the power of the error, means apart."""
    errors = np.concatenate([exact - read @ weight.transpose(0, 2, 1) for read, exact in samples], axis=1)
    return float(errors.var(axis=1).sum())


def test_less_is_left_on_other_samples(rng: np.random.Generator) -> None:
    weight = rng.normal(size=(GROUPS, OUTPUTS, INPUTS))
    seen, others = (read_and_exact(rng, weight, 10, 60, noise=4) for _ in range(2))
    found = sums_of(weight, seen).made_up_for()
    # What is alike among the inputs tells each one's noise from what it holds: plain weights pass all of it on.
    assert left(found, others) < 0.6 * left(weight, others)


def test_weights_stay_where_errors_have_nothing_to_do_with_inputs(rng: np.random.Generator) -> None:
    weight = rng.normal(size=(GROUPS, OUTPUTS, INPUTS))
    samples = read_and_exact(rng, weight, 6, 2, noise=0)
    by_chance = [(read, exact + rng.normal(size=exact.shape).astype(np.float32)) for read, exact in samples]
    others = read_and_exact(rng, weight, 50, 20, noise=0)
    assert left(sums_of(weight, by_chance).made_up_for(), others) < 1.05 * left(weight, others)
    assert np.array_equal(sums_of(weight, samples[:1]).made_up_for(), weight)


def test_sums_depend_on_no_order(rng: np.random.Generator) -> None:
    """BLAS adds up in the order that suits a CPU: weights that differ in bits would be rounded apart on one in some million."""
    weight = rng.normal(size=(GROUPS, OUTPUTS, INPUTS))
    samples = read_and_exact(rng, weight, 4, 500, noise=4)
    order = rng.permutation(500)
    mixed = [(read[:, order], exact[:, order]) for read, exact in samples]
    sums, again = sums_of(weight, samples[:1]), sums_of(weight, mixed[:1])
    for one, two in zip(batch(sums, samples[1:]), batch(again, mixed[1:]), strict=True):
        assert np.array_equal(one.total, two.total)
        assert np.array_equal(one.product, two.product)
    assert np.array_equal(sums_of(weight, samples).made_up_for(), sums_of(weight, mixed).made_up_for())


@pytest.mark.parametrize("outputs", [1, OUTPUTS])
@pytest.mark.parametrize("together", [2, 4, 20])
def test_samples_may_come_a_few_at_a_time(rng: np.random.Generator, together: int, outputs: int) -> None:
    """Of contiguous groups, and of groups that lie side by side as a depthwise layer's channels do."""
    weight = rng.normal(size=(GROUPS, outputs, INPUTS))
    samples = read_and_exact(rng, weight, 9, 30, noise=4)
    beside = [(np.ascontiguousarray(read.transpose(1, 2, 0)).transpose(2, 0, 1), exact) for read, exact in samples]
    for order in (samples, beside):
        few = InheritedErrors(weight, samples[0][0])
        for start in range(0, len(order), together):
            few.add(batch(few, order[start : start + together]))
        np.testing.assert_allclose(few.made_up_for(), sums_of(weight, samples).made_up_for(), rtol=1e-12)
        assert np.array_equal(few.covariances().plain(), sums_of(weight, samples).covariances().plain())


def test_inputs_that_never_vary_are_no_trouble(rng: np.random.Generator) -> None:
    weight = rng.normal(size=(GROUPS, OUTPUTS, INPUTS))
    samples = read_and_exact(rng, weight, 4, 30, noise=4)
    for read, _ in samples:
        read[:, :, 3] = 7
    found = sums_of(weight, samples).made_up_for()
    assert np.isfinite(found).all()
    assert np.array_equal(found[:, :, 3], weight[:, :, 3])


def test_halves_make_the_covariances_of_all(rng: np.random.Generator) -> None:
    weight = rng.normal(size=(GROUPS, OUTPUTS, INPUTS))
    for positions in (30, 5):  # more than inputs, and fewer: products wait
        samples = read_and_exact(rng, weight, 5, positions, noise=1)
        plain = CovarianceSums(samples[0][0])
        for read, _ in samples:
            plain.add(plain.of(read[np.newaxis]))
        found = sums_of(weight, samples).covariances()
        assert np.array_equal(found.plain(), plain.plain())
        assert np.array_equal(found.shrunk(), plain.shrunk())
