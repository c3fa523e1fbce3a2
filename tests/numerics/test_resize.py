"""Resizing against LiteRT, bit for bit, and against real numbers."""

import litert_op
import numpy as np
import pytest
from ai_edge_litert import schema_py_generated as schema

from octavo.numerics import INTEGER_RANGE, gather, linear_taps, nearest_indices, resize_bilinear

MODES = {"asymmetric": (False, False), "align_corners": (True, False), "half_pixel": (False, True)}
SIZES = [((5, 7), (10, 14)), ((8, 8), (5, 6)), ((13, 9), (20, 31)), ((1, 1), (4, 4)), ((7, 7), (1, 1)), ((3, 4), (3, 4))]


def litert(operator: str, options, mode: str, x: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    options.alignCorners, options.halfPixelCenters = MODES[mode]
    common = {"dtype": str(x.dtype), "scale": 0.1, "zero_point": 5}
    sizes = litert_op.Quantized(shape=(2,), dtype="int32", values=np.asarray(size, np.int32), constant=True)
    inputs = [litert_op.Quantized(shape=x.shape, values=x, **common), sizes]
    return litert_op.run(operator, options, inputs, litert_op.Quantized(shape=(1, *size, x.shape[3]), **common))


def image(dtype: str, size: tuple[int, int]) -> np.ndarray:
    low, high = INTEGER_RANGE[dtype]
    return np.random.default_rng(0).integers(low, high + 1, (1, *size, 5)).astype(dtype)


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("before", "after"), SIZES)
def test_equals_litert(before: tuple[int, int], after: tuple[int, int], mode: str, dtype: str) -> None:
    x = image(dtype, before)
    taps = [linear_taps(a, b, mode) for a, b in zip(before, after, strict=True)]
    want = litert("RESIZE_BILINEAR", schema.ResizeBilinearOptionsT(), mode, x, after)
    assert np.array_equal(resize_bilinear(x, *taps), want)
    rounding = "floor" if mode == "asymmetric" else "round_prefer_ceil"
    rows, columns = (nearest_indices(a, b, mode, rounding) for a, b in zip(before, after, strict=True))
    want = litert("RESIZE_NEAREST_NEIGHBOR", schema.ResizeNearestNeighborOptionsT(), mode, x, after)
    assert np.array_equal(gather(x, [(0,), rows, columns, range(5)]), want)


def test_ties_go_to_the_even_neighbour() -> None:
    x = np.asarray([1, 2, 4, 5], np.uint8).reshape(1, 1, 4, 1)
    taps = linear_taps(1, 1, "asymmetric"), linear_taps(4, 8, "asymmetric")
    assert resize_bilinear(x, *taps, rounding="half_even").ravel().tolist() == [1, 2, 2, 3, 4, 4, 5, 5]
    assert resize_bilinear(x, *taps).ravel().tolist() == [1, 2, 2, 3, 4, 5, 5, 5]


def test_unknown_names() -> None:
    with pytest.raises(ValueError, match="'cubic' is none of those known"):
        linear_taps(3, 4, "cubic")
    with pytest.raises(ValueError, match="rounding 'down' is none of round, round_prefer_floor"):
        nearest_indices(3, 4, "half_pixel", "down")
