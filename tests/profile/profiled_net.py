"""A model ready to be profiled, as the tests of this folder share it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from octavo.graph import Model
from octavo.profile import Instrumented, Profile, collect


@dataclass(frozen=True, kw_only=True, slots=True)
class Profiled:
    """A model ready to be profiled; `profile(batches)` does it."""

    model: Model
    instrumented: Instrumented
    run: Callable[[list[np.ndarray]], list[np.ndarray]]
    samples: np.ndarray

    def profile(self, batches: Any, **options: Any) -> Profile:
        return collect(self.model, self.instrumented, self.run, batches, **options)
