"""Sizes that one dimension alone makes: read back from an axis, and said what they may be."""

from __future__ import annotations

import numpy as np
import pytest

from octavo.errors import DataError
from octavo.runtime.input_check import InputCheck
from octavo.runtime.inputs import InputSpec
from octavo.runtime.shapes import Line, dimension_places, line_of, read_sizes
from octavo.runtime.size import Size

H, B = Size.named("h"), Size.named("b")


def test_a_line_has_one_name_a_factor_and_an_offset() -> None:
    assert line_of(H) == Line("h")
    assert line_of(H * 32) == Line("h", 32)
    assert line_of(H * 4 + 1) == Line("h", 4, 1)
    for other in (7, H * B, H + B, -H, H // 2, H * H):
        assert line_of(other) is None


def test_sizes_are_read_where_a_dimension_stands_alone_if_it_does() -> None:
    shapes = (H * 4 + 1, B), (H, B * 2)
    assert read_sizes(dimension_places(shapes), [(9, 3), (2, 6)]) == {"b": 3, "h": 2}
    assert dimension_places(shapes)["h"].input == 1
    assert read_sizes(dimension_places(shapes[:1]), [(9, 3)]) == {"b": 3, "h": 2}


@pytest.mark.parametrize(
    ("size", "said"),
    [
        (8, r"dimension 4\*h \+ 1 takes 5 or 9"),
        (2, r"dimension 4\*h \+ 1 takes 5"),
        (45, r"dimension 4\*h \+ 1 takes 5 to 41"),
        (99, r"dimension 4\*h \+ 1 takes 5 to 41"),
    ],
)
def test_other_sizes_are_refused_with_those_beside_them(size: int, said: str) -> None:
    check = InputCheck([InputSpec(id="x", source_name="x", shape=(H * 4 + 1,), dtype="float32", bounds={"h": (1, 10)})])
    assert check(np.zeros(41, np.float32))[0].shape == (41,)
    with pytest.raises(DataError, match=rf"^input: input x has {size} along axis 0, {said}$"):
        check(np.zeros(size, np.float32))
