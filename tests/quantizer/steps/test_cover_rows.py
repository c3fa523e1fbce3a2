"""Dense layers of a single row: where the samples hardly cover what they read, each row has the scale of its own values."""

import numpy as np

import octavo
from apply_steps import with_steps
from nets import mlp
from octavo.numerics.statistics.metrics import sqnr_db
from octavo.quantizer.steps import Correct, CoverRows


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


def test_what_the_samples_cover_stays_as_it_is(rng):
    model = mlp(rng)
    profile = octavo.profile(model, [rng.choice([-1, 1], size=(1, 16)).astype(np.float32) for _ in range(256)], keep_samples=64)
    layers = with_steps(model, profile, [CoverRows()]).plan.layers
    assert not layers[0].per_row, "its inputs are -1 and 1"
