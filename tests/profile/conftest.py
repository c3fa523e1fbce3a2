"""A small network, instrumented and compiled once for all tests of this folder."""

from __future__ import annotations

import numpy as np
import pytest
from profiled_net import Profiled

from nets import compiled, residual_net
from octavo.profile import instrument


@pytest.fixture(scope="session")
def net() -> Profiled:
    model = residual_net()
    instrumented = instrument(model)
    samples = np.random.default_rng(7).standard_normal((20, 3, 8, 8)).astype(np.float32)
    # Samples of very different magnitudes, so that histograms meet at different exponents.
    samples *= np.exp2(np.arange(20) % 7 - 3).astype(np.float32)[:, None, None, None]
    return Profiled(model=model, instrumented=instrumented, run=compiled(instrumented.module), samples=samples)
