"""A network, its profile and what becomes of it by two recipes, made once: faults are planted in copies."""

from dataclasses import dataclass

import numpy as np
import pytest
from test_root_causes import CORRECTED, PLAIN, net, pictures, weights

import octavo
from apply_steps import with_steps
from octavo.quantizer.causes import RootCause, root_causes
from octavo.quantizer.plan.plan import QuantizedModel


@dataclass(frozen=True, slots=True, eq=False)
class Sound:
    """A model in which nothing is wrong, and what is said of it."""

    model: octavo.Model
    samples: list[np.ndarray]
    profile: octavo.Profile
    quantized: QuantizedModel
    causes: list[RootCause]


@pytest.fixture(scope="session")
def sound_ones() -> dict[str, Sound]:
    rng = np.random.default_rng(4)
    model, samples = net(weights(rng)), pictures(rng)
    profile = octavo.profile(model, samples, keep_samples=len(samples))
    found = {"plain": octavo.quantize(model, profile, recipe=PLAIN), "corrected": with_steps(model, profile, recipe=CORRECTED)}
    return {
        name: Sound(model, samples, profile, quantized, root_causes(model, quantized, samples))
        for name, quantized in found.items()
    }


@pytest.fixture
def plain(sound_ones: dict[str, Sound]) -> Sound:
    """Quantized as its ranges say, without corrections."""
    return sound_ones["plain"]


@pytest.fixture
def corrected(sound_ones: dict[str, Sound]) -> Sound:
    """Quantized with corrections of weights and biases."""
    return sound_ones["corrected"]
