"""Rows as batches: what Hugging Face's datasets gives, and one error for each row that does not fit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from PIL import Image
from profiled_net import Profiled

from octavo.errors import DataError
from octavo.profiling import ImagePreprocessing, Rows


def test_rows_are_profiled_as_arrays_are(net: Profiled) -> None:
    rows = [{"pixels": sample.tolist(), "label": number} for number, sample in enumerate(net.samples)]
    one, other = net.profile(Rows(rows, {"net/x:0": "pixels"})), net.profile(net.samples)
    assert one.content().tensors.keys() == other.content().tensors.keys()
    assert all(one[key].histogram == other[key].histogram for key in other)
    assert one.bucket_samples == other.bucket_samples


def test_images_go_through_their_preprocessing() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (9, 7, 3), np.uint8)
    prepare = ImagePreprocessing(size=(9, 7), mean=(127.5,) * 3, std=(127.5,) * 3, layout="NHWC")
    for value in (pixels, Image.fromarray(pixels)):
        rows = Rows([{"image": value}], {"x": "image"}, transforms={"image": prepare})
        (batch,) = rows
        np.testing.assert_array_equal(batch["x"], (pixels[None].astype(np.float32) - 127.5) / 127.5)
        assert '"mean": [127.5, 127.5, 127.5]' in rows.preprocessing


def test_several_columns_keep_their_dtypes_and_can_be_read_again() -> None:
    rows = Rows([{"ids": [1, 2], "mask": np.ones(2, np.uint8), "more": [0.5, 1]}], {"a": "ids", "b": "mask", "c": "more"})
    for _ in range(2):
        (batch,) = rows
        assert {name: (str(value.dtype), value.shape) for name, value in batch.items()} == {
            "a": ("int64", (1, 2)),
            "b": ("uint8", (1, 2)),
            "c": ("float32", (1, 2)),
        }
    assert rows.preprocessing == ""
    assert Rows([], {"a": "b"}, preprocessing="halved").preprocessing == "halved"


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([{"y": 1}], "row 0 has no column 'x'; it has 'y'"),
        ([{"x": [1]}, 5], "row 1 must be a mapping from column to value, got int"),
        ([{"x": "text"}], "row 0: column 'x' holds str, no array of numbers"),
        ([{"x": [[1], [1, 2]]}], "row 0: column 'x' is no array of numbers"),
        ([{"x": None}], "row 0: column 'x' holds NoneType"),
    ],
)
def test_a_row_that_does_not_fit(rows: list[Any], said: str) -> None:
    with pytest.raises(DataError, match=said):
        list(Rows(rows, {"in": "x"}))


def test_without_columns_there_is_nothing_to_read() -> None:
    with pytest.raises(DataError, match="columns is empty"):
        Rows([], {})


@pytest.mark.parametrize("image", [np.zeros((3, 4, 4), np.uint8), np.zeros((4, 4, 3), np.float32), "cat.png"])
def test_what_is_no_image(image: Any) -> None:
    with pytest.raises(DataError, match=r"pixels must be uint8|expected an image, got str"):
        ImagePreprocessing(size=(4, 4))(image)
