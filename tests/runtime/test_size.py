"""Sizes: what arithmetic makes of them has the value that the numbers give, and one value is written in one way."""

import numpy as np
import pytest

from octavo.runtime.shapes import evaluated, largest, smallest
from octavo.runtime.size import OpenSizeError, Size

H, W = Size.named("H"), Size.named("W")


def test_quotients_have_the_values_of_numbers(rng: np.random.Generator) -> None:
    for _ in range(300):
        steps = rng.integers((-3, -5, 1), (4, 6, 5), (4, 3))
        divisors = steps[:, 2] * rng.choice([1, -1], 4)
        size = H
        numbers = np.arange(1, 40)
        for (factor, added, _), divisor in zip(steps.tolist(), divisors.tolist(), strict=True):
            size, numbers = (size * factor + added) // divisor, (numbers * factor + added) // divisor
            found = [evaluated((size,), {"H": value})[0] for value in range(1, 40)]
            assert found == numbers.tolist(), (size, steps)
            if isinstance(size, int):
                break


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (2 * ((H + 1) // 2) // 32, (H + 1) // 32),  # an image is halved five times, in whichever steps
        ((6 * H + 5) // 4, (3 * H + 2) // 2),
        (H - H % -2, 2 * ((H + 1) // 2)),  # as TVM rounds up
        (-((1 - H) // 3), (H + 1) // 3),
        (-((H - W) // 2), (W - H + 1) // 2),
        (smallest((H, 9)) - 1, smallest((8, H - 1))),
    ],
)
def test_one_value_is_written_in_one_way(one: Size, other: Size) -> None:
    assert one == other


def test_nothing_is_divided_by_zero() -> None:
    with pytest.raises(OpenSizeError, match="the size H is divided by 0"):
        _ = H // 0


def test_the_lesser_of_two_sizes_is_one_factor() -> None:
    """Written by the greater one, H + 70000 - max(H, 70000), its products with others don't fit the integers of kernels."""
    assert str(smallest((H, 70000)) * smallest((W, 70000))) == "min(H, 70000)*min(W, 70000)"
    assert not smallest((H, 70000)).may_be_negative


def test_a_quotient_of_what_is_negative_has_no_bound() -> None:
    """Blocks of a kernel: rounded up by an open divisor they are more than one, however they are written."""
    blocks = -(-H // largest((W, 2)))
    assert (H // largest((W, 2)) * W).may_be_negative is False
    assert (-blocks).may_be_negative
    assert (blocks * -blocks).may_be_negative
    assert largest((blocks, smallest((2, H)))).evaluate({"H": 70, "W": 4}) == 18


def test_no_value_surpasses_its_bound(rng: np.random.Generator) -> None:
    sizes = [3 * H * W + 2, (H + 5) // 2 * W, largest((H, 9)) * smallest((W, 7)), H * H - 4 * H // 3, 7 - H]
    for size in sizes:
        for each in (0, 1, 8, 40):
            found = [size.evaluate({"H": h, "W": w}) for h, w in rng.integers(0, each, (50, 2), endpoint=True).tolist()]
            assert max(found) <= size.most(each) < np.inf, (size, each)
    assert (3 * H * W + 2).most(8) == 194
    assert ((H - 9) * (W - 3) // largest((H, 1)) * W).most(8) == np.inf
