"""The range whose integers are exactly the numbers that a tensor can hold: a sensor's, or an image's, were integers before."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ...numerics import QuantParams
from ...numerics.arrays import Array
from .estimator import Range

_ALIKE = 2.0**-20
"""Of the greatest magnitude: by so much a number in float32, itself computed, may be beside a multiple."""
_LEAST = 1 / 4
"""Of the integers: as many different values tell that there are no others between them."""


def range_on_grid(values: Iterable[Array], params: QuantParams) -> Range | None:
    """Return the range whose integers are as far from each other as a tensor's values are, 0 among them.

    Those that were not observed are beyond both ends, or beyond the one where 0 is the other.

    Parameters
    ----------
    values
        Of the tensor, sample by sample.
    params
        The tensor's: how many integers there are. None where these stand for all values as they are, or the values are no
        multiples of one number, or are spread wider, or too few are different to tell.
    """
    most, known = params.qmax - params.qmin, np.zeros(1, np.float32)
    for each in values:
        known = np.union1d(known, each)
        if known.size > most + 1 or not np.isfinite(known).all():
            return None
    if known.size < _LEAST * most:
        return None
    multiples = np.rint(known / np.diff(known).min()).astype(np.float64)
    unit = float(known @ multiples / (multiples @ multiples))
    spare = most - int(multiples[-1] - multiples[0])
    if spare < 0 or abs(known - multiples * unit).max() > _ALIKE * abs(known).max() or _is_exact(known, params):
        return None
    below = 0 if known[0] == 0 else spare if known[-1] == 0 else spare // 2
    return (float(multiples[0]) - below) * unit, (float(multiples[-1]) + spare - below) * unit


def _is_exact(known: Array, params: QuantParams) -> bool:
    steps = known / params.scale
    return bool((abs(steps - np.rint(steps)) < 1 / 64).all())
