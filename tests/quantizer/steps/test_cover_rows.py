"""Dense layers of a single row have the scale of that row's own values: beyond all samples, or far within the greatest."""

import numpy as np

import octavo
from apply_steps import with_steps
from nets import mlp
from octavo.numerics.statistics.metrics import sqnr_db
from octavo.quantizer.steps import Correct, CoverRows, SingleRows


def rows(rng: np.random.Generator, sizes: np.ndarray) -> list[np.ndarray]:
    """Rows of 16 numbers, each of a size of its own."""
    return [(size * rng.normal(size=(1, 16))).clip(-3 * size, 3 * size).astype(np.float32) for size in sizes]


def test_rows_beyond_all_samples_do_not_saturate(rng):
    model = mlp(rng)
    profile = octavo.profile(model, rows(rng, np.exp(rng.normal(size=64))), keep_samples=64)
    far = rows(rng, np.full(16, 40.0))
    usual = with_steps(model, profile, [Correct()])
    runs = [octavo.compile(made) for made in (model, octavo.quantize(model, profile), usual)]
    known, covered, saturated = (np.concatenate([next(iter(run(row).values())) for row in far]) for run in runs)
    assert sqnr_db(known, saturated) < 20
    assert sqnr_db(known, covered) > 35


def test_rows_far_within_the_greatest_sample_are_not_coarse(rng):
    model = mlp(rng)
    # Ends that half of the samples have are covered.
    sizes = [1.0, 8.0] * 128
    samples = [size * rng.choice([-1, 1], size=(1, 16)).astype(np.float32) for size in sizes]
    profile = octavo.profile(model, samples, keep_samples=64)
    near = rows(rng, np.full(16, 0.1))
    plans = [with_steps(model, profile, steps) for steps in ([Correct()], [SingleRows(), Correct()])]
    runs = [octavo.compile(made) for made in (model, *plans)]
    known, static, own = (np.concatenate([next(iter(run(row).values())) for row in near]) for run in runs)
    assert not with_steps(model, profile, [CoverRows()]).plan.layers[0].per_row, "half of the samples have its ends"
    assert plans[1].plan.layers[0].per_row
    assert sqnr_db(known, own) > sqnr_db(known, static) + 6, "a bit is 6 dB"
