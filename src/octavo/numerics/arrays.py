"""Names of the arrays that most functions take, and whether arrays by name are equal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Samples = Sequence[Sequence[Array]]
"""What a model takes or gives, sample by sample."""


def equal_arrays(first: Mapping[Any, Array], second: Mapping[Any, Array]) -> bool:
    """Return whether both have the same names, and the same numbers by each."""
    return first.keys() == second.keys() and all(np.array_equal(each, second[name]) for name, each in first.items())
