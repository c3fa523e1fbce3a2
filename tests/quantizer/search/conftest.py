"""A network and its profile, and what searches make of them: each candidate is quantized, compiled and scored once for all."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from test_search import PLAIN, SAMPLES

import octavo
from nets import residual_net
from octavo.quantizer.search import SearchResult

SEARCH = "octavo.quantizer.search"
REMEMBERED: dict[str, tuple[str, ...]] = {
    f"{SEARCH}.bench": ("quantize_with", "compile_model"),
    f"{SEARCH}.search": ("quantize",),
    f"{SEARCH}.sensitivity": ("equalized_float", "Referee", "explain"),
}
"""What takes the time of a search, by the module that calls it. The same arguments give the same."""


class Memory:
    """Results of functions by their arguments: by identity where that is all that two objects have in common."""

    def __init__(self) -> None:
        self._results: dict[Any, tuple[Any, Any]] = {}

    def of(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A function that is called once for the same arguments."""

        def remembered(*args: Any, **options: Any) -> Any:
            key = (function, *map(_known_by, args), *((name, _known_by(value)) for name, value in sorted(options.items())))
            if key not in self._results:
                # With what it was made of, so that no other object gets the identity of one of those.
                self._results[key] = function(*args, **options), (args, options)
            return self._results[key][0]

        return remembered

    def clear(self) -> None:
        """Let all that follows be made anew."""
        self._results.clear()


def _known_by(value: Any) -> Any:
    """The value's text where that says all of it: of recipes, choices of searches, targets' names."""
    says_all = isinstance(value, (str, int, float, bool, octavo.Recipe, type(None))) or type(value).__name__ == "Choices"
    return repr(value) if says_all else id(value)


@pytest.fixture(scope="session", autouse=True)
def memory() -> Iterator[Memory]:
    memory = Memory()
    with pytest.MonkeyPatch.context() as patch:
        for name, functions in REMEMBERED.items():
            __import__(name)
            for function in functions:
                patch.setattr(sys.modules[name], function, memory.of(getattr(sys.modules[name], function)))
        yield memory


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
