"""Functions of sizes give the numbers that sizes evaluate to."""

from __future__ import annotations

from typing import Any

from octavo.runtime.size import Size
from octavo.runtime.size_functions import size_function

TEXTS = (
    "past",
    "-past + 3*batch*past - 7",
    "64*floordiv(max(512*batch, 256*past + 256*batch) + 63, 64)",
    "min(past, 9) + max(batch, floordiv(past, batch))",
)


def test_functions_equal_the_sizes_they_are_made_of() -> None:
    sizes = [Size.parse(text) for text in TEXTS]
    numbers = size_function([*sizes, 5], ["batch", "past"])
    for batch, past in ((1, 0), (1, 1), (3, 17), (64, 2048)):
        values = {"batch": batch, "past": past}
        assert numbers(batch, past) == (*(size.evaluate(values) if isinstance(size, Size) else size for size in sizes), 5)


def test_what_sizes_share_is_computed_once() -> None:
    """Each step holds the one before three times."""
    size = Size.named("n")
    for step in range(6):
        size = Size.parse(f"max({size}, floordiv({size} + 2*floordiv({size}, 3), 2)) + {step}")
    assert isinstance(size, Size)
    numbers: Any = size_function([size], ["n"])
    assert len(numbers.__wrapped__.__code__.co_code) < 2000
    assert numbers(7) == (size.evaluate({"n": 7}),)


def test_names_that_no_python_name_can_be_are_dimensions_too() -> None:
    odd = Size.named("a b; import os") * 2 + 1
    assert size_function([odd], ["a b; import os"])(4) == (9,)


def test_known_sizes_take_no_dimension() -> None:
    assert size_function([1, 2, 3], [])() == (1, 2, 3)
    assert size_function([], ["n"])(4) == ()
