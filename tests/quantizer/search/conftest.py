"""A network and its profile, and what a search makes of them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from test_search import PLAIN, SAMPLES

import octavo
from nets import residual_net
from octavo.quantizer.search import SearchResult


@pytest.fixture(scope="session")
def model() -> octavo.Model:
    return residual_net()


@pytest.fixture(scope="session")
def profile(model: octavo.Model) -> octavo.Profile:
    return octavo.profile(model, SAMPLES, keep_samples=16)


@pytest.fixture(scope="session")
def found(model: octavo.Model, profile: octavo.Profile) -> SearchResult:
    """A whole search, by the outputs alone."""
    return octavo.search(model, profile, recipe=PLAIN, seconds=None)


@pytest.fixture(scope="session")
def closeness(model: octavo.Model) -> Callable[[octavo.Executable], float]:
    """A metric: minus the mean error on the samples."""
    exact = octavo.compile(model)
    expected = [next(iter(exact(x).values())) for x in SAMPLES]

    def evaluate(executable: octavo.Executable) -> float:
        outputs = [next(iter(executable(x).values())) for x in SAMPLES]
        return -float(np.abs(np.subtract(expected, outputs)).mean())

    return evaluate
