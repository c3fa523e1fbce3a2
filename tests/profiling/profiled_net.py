"""A model ready to be profiled, as the tests of this folder share it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

import octavo
from octavo.ir.graph import Model
from octavo.profiling import Profile


@dataclass(frozen=True, kw_only=True, slots=True)
class Profiled:
    """A model ready to be profiled; `profile(batches)` does it."""

    model: Model
    samples: np.ndarray

    def profile(self, batches: Any, **options: Any) -> Profile:
        return octavo.profile(self.model, batches, **options)
