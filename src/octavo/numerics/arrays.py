"""Names of the arrays that most functions take."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy.typing as npt

Array = npt.NDArray[Any]
Samples = Sequence[Sequence[Array]]
"""What a model takes or gives, sample by sample."""
