"""A small network and its samples, for all tests of this folder; the first profile compiles it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from profiled_net import Profiled

from nets import residual_net
from octavo.profiling.kept_samples import KEEP_SAMPLES
from octavo.profiling.profile import profile


@pytest.fixture(scope="module", autouse=True)
def default_of_kept_samples(no_kept_samples: None) -> Iterator[None]:
    """Profiles of these tests keep samples, as a user's do: what they keep is what is tested."""
    profile.__kwdefaults__["keep_samples"] = KEEP_SAMPLES
    yield
    profile.__kwdefaults__["keep_samples"] = 0


@pytest.fixture(scope="session")
def net() -> Profiled:
    samples = np.random.default_rng(7).standard_normal((20, 3, 8, 8)).astype(np.float32)
    # Samples of very different magnitudes, so that histograms meet at different exponents.
    samples *= np.exp2(np.arange(20) % 7 - 3).astype(np.float32)[:, None, None, None]
    return Profiled(model=residual_net(), samples=samples)
