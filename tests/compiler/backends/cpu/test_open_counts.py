"""What a compile says where two forms of one open size are not seen to be equal: a line, with the dimensions to fix."""

import pytest

from octavo.compiler.backends.cpu.context import check_count
from octavo.errors import CompileError
from octavo.runtime.shapes import largest
from octavo.runtime.size import Size

N, H, W = map(Size.named, "NHW")


@pytest.mark.parametrize(
    ("given", "wanted", "fixed"),
    [
        (N * (largest((H, 5)) + W), N * (H + W), '{"H": N} in Python, --size H=N on'),
        (N * largest((H, 65)) * W, N * H * (W + 1), '{"H": N, "W": N} in Python, --size H=N --size W=N on'),
    ],
)
def test_sizes_that_are_not_seen_to_be_equal(given: Size, wanted: Size, fixed: str) -> None:
    check_count(given, given, "conv2d of y")
    with pytest.raises(CompileError) as error:
        check_count(given, wanted, "conv2d of y")
    message = str(error.value)
    assert message.startswith(f"conv2d of y: {given} values are not seen to be the {wanted} that its kernel takes")
    assert f"sizes={fixed}" in message


def test_long_sizes_are_cut() -> None:
    size = sum((Size.named(f"dimension{place}") * (place + 2) for place in range(30)), 0)
    with pytest.raises(CompileError) as error:
        check_count(size, size + 1, "conv2d of y")
    assert "... (" in str(error.value)
    assert "\n" not in str(error.value)


def test_numbers_that_differ_are_a_broken_invariant() -> None:
    with pytest.raises(AssertionError, match="conv2d of y: 6 values are not 7"):
        check_count(6, 7, "conv2d of y")
