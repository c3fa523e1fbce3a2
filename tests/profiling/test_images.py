"""A folder of images: the preprocessing, to the value, and one error for what cannot be read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import octavo
from nets import residual_net
from octavo.errors import DataError
from octavo.ir.identity import TensorId

PIXELS = np.random.default_rng(0).integers(0, 256, (8, 8, 3), np.uint8)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, pixels in (("b.png", PIXELS), ("a.PNG", 255 - PIXELS), ("wide.png", np.repeat(PIXELS, 2, axis=1))):
        Image.fromarray(pixels).save(tmp_path / name)
    (tmp_path / "notes.txt").write_text("no image")
    (tmp_path / "inner.png").mkdir()
    return tmp_path


def test_pixels_become_what_the_description_says(folder: Path) -> None:
    mean, std = (1.0, 2.0, 3.0), (10.0, 20.0, 40.0)
    images = octavo.ImageFolder(folder=folder, size=(8, 8), mean=mean, std=std)
    assert [path.name for path in images.files()] == ["a.PNG", "b.png", "wide.png"]
    assert len(images) == 3
    first, second, _ = images
    expected = (PIXELS.astype(np.float32) - np.array(mean, np.float32)) / np.array(std, np.float32)
    np.testing.assert_array_equal(second, expected.transpose(2, 0, 1)[None])
    assert (first.dtype, first.shape, first.flags.c_contiguous) == (np.float32, (1, 3, 8, 8), True)
    reverse = list(octavo.ImageFolder(folder=folder, size=(8, 8), layout="NHWC", colour="BGR", dtype="uint8"))[1]
    np.testing.assert_array_equal(reverse, PIXELS[None, :, :, ::-1])


def test_cropping_takes_the_middle_and_stretching_everything(folder: Path) -> None:
    crop = list(octavo.ImageFolder(folder=folder, size=(8, 8), fit="crop", layout="NHWC", dtype="uint8"))[2]
    np.testing.assert_array_equal(crop[0], np.repeat(PIXELS, 2, axis=1)[:, 4:12])
    assert next(iter(octavo.ImageFolder(folder=folder, size=(5, 3)))).shape == (1, 3, 5, 3)
    assert next(iter(octavo.ImageFolder(folder=folder, size=(20, 6), fit="crop"))).shape == (1, 3, 20, 6)


def test_a_profile_says_how_its_images_were_preprocessed(folder: Path, tmp_path: Path) -> None:
    images = octavo.ImageFolder(folder=folder, size=(8, 8), std=(255.0,) * 3)
    profile = octavo.profile(residual_net(), images)
    assert (profile.samples, profile.preprocessing) == (3, images.preprocessing)
    x = np.concatenate(list(images))
    assert profile[TensorId("x")].maximum == float(x.max())
    profile.save(tmp_path / "p.json")
    assert octavo.Profile.load(tmp_path / "p.json").preprocessing == images.preprocessing
    other = octavo.profile(residual_net(), octavo.ImageFolder(folder=folder, size=(8, 8)))
    with pytest.raises(octavo.OctavoError, match="preprocessed in different ways"):
        profile.merge(other)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"folder": "nowhere"}, "nowhere: no such folder"),
        ({"size": (0, 8)}, "size must be"),
        ({"size": (8,)}, "size must be"),
        ({"std": (1.0, 0.0, 1.0)}, "std not 0"),
        ({"mean": (1.0, float("nan"), 1.0)}, "finite"),
        ({"mean": (1.0,)}, "three"),
        ({"layout": "HWC"}, "layout must be NCHW or NHWC, got 'HWC'"),
        ({"colour": "grey"}, "colour must be RGB or BGR"),
        ({"dtype": "uint8", "std": (2.0, 2.0, 2.0)}, "as they are"),
    ],
)
def test_a_description_that_cannot_be(folder: Path, change: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        octavo.ImageFolder(**{"folder": folder, "size": (8, 8), **change})


def test_a_file_that_is_no_image(folder: Path) -> None:
    (folder / "c.jpg").write_bytes(b"no image")
    with pytest.raises(DataError, match=r"c\.jpg: cannot read the image"):
        list(octavo.ImageFolder(folder=folder, size=(8, 8)))
    (folder / "empty").mkdir()
    with pytest.raises(DataError, match="no images in it"):
        octavo.ImageFolder(folder=folder / "empty", size=(8, 8))
