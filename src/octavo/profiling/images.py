"""Images as calibration data, with the whole preprocessing described; those of a folder are read one at a time, when asked for.

Needs Pillow, which `pip install 'octavo[images]'` brings.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from ..errors import DataError

SUFFIXES = (".bmp", ".jpeg", ".jpg", ".png", ".ppm", ".webp")


@dataclass(frozen=True, kw_only=True, slots=True)
class ImagePreprocessing:
    """What is done to an image before a model sees it: (resized pixels - mean) / std.

    Parameters
    ----------
    size
        (height, width) in pixels.
    fit
        "stretch" resizes each side by itself; "crop" resizes until the shorter side fits and takes the middle. Both bilinear.
    mean, std
        Of the three channels in `colour` order, in units of pixels, 0 to 255: (127.5,) * 3 twice maps pixels to [-1; 1].
    layout
        "NCHW" gives (1, 3, height, width), "NHWC" (1, height, width, 3).
    colour
        "RGB" or "BGR".
    dtype
        "float32", or "uint8" for a model that takes pixels as they are (mean 0, std 1).

    Raises
    ------
    DataError
        A size, mean or std that cannot be. Calling: what is no image.
    """

    size: tuple[int, int]
    fit: Literal["stretch", "crop"] = "stretch"
    mean: tuple[float, float, float] = (0.0, 0.0, 0.0)
    std: tuple[float, float, float] = (1.0, 1.0, 1.0)
    layout: Literal["NCHW", "NHWC"] = "NCHW"
    colour: Literal["RGB", "BGR"] = "RGB"
    dtype: Literal["float32", "uint8"] = "float32"

    def __post_init__(self) -> None:
        """Check the description before anything is read."""
        if len(self.size) != 2 or min(self.size) < 1:
            raise DataError(f"size must be (height, width), both at least 1, got {self.size}")
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                raise DataError(f"{name} must be {' or '.join(choices)}, got {getattr(self, name)!r}")
        if len(self.mean) != 3 or len(self.std) != 3 or not all(map(math.isfinite, (*self.mean, *self.std))) or 0 in self.std:
            raise DataError(f"mean and std must be three finite numbers, std not 0, got {self.mean} and {self.std}")
        if self.dtype == "uint8" and (any(self.mean) or set(self.std) != {1.0}):
            raise DataError("uint8 pixels are taken as they are; leave out mean and std, or make dtype float32")

    @property
    def preprocessing(self) -> str:
        """What is done to an image, as JSON: everything but where the images lie."""
        described = {key: value for key, value in asdict(self).items() if key != "folder"}
        return json.dumps(described, sort_keys=True)

    def __call__(self, image: Any) -> npt.NDArray[Any]:
        """Return an image of Pillow's, or pixels (height, width, 3) uint8, as the model takes it, without a batch dimension."""
        height, width = self.size
        if isinstance(image, np.ndarray):
            if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3:
                raise DataError(f"pixels must be uint8 (height, width, 3), got {image.dtype} {image.shape}")
            image = _pillow().fromarray(image)
        bilinear = _pillow().Resampling.BILINEAR
        try:
            image = image.convert("RGB")
            if self.fit == "crop":
                ratio = max(height / image.height, width / image.width)
                fitted = (max(width, round(image.width * ratio)), max(height, round(image.height * ratio)))
                image = image.resize(fitted, bilinear)
                left, top = (fitted[0] - width) // 2, (fitted[1] - height) // 2
                image = image.crop((left, top, left + width, top + height))
            elif image.size != (width, height):
                image = image.resize((width, height), bilinear)
        except AttributeError as error:
            raise DataError(f"expected an image, got {type(image).__name__}") from error
        pixels = np.asarray(image)
        if self.colour == "BGR":
            pixels = pixels[:, :, ::-1]
        if self.dtype == "float32":
            mean, std = np.array(self.mean, np.float32), np.array(self.std, np.float32)
            pixels = ((pixels.astype(np.float32) - mean) / std).astype(np.float32)
        return np.ascontiguousarray(pixels.transpose(2, 0, 1) if self.layout == "NCHW" else pixels)


@dataclass(frozen=True, kw_only=True, slots=True)
class ImageFolder(ImagePreprocessing):
    """The images of a folder, in the order of their names, each a batch of one: (resized pixels - mean) / std.

    Parameters
    ----------
    folder
        Holds .jpg, .png, .bmp, .ppm or .webp files; folders inside are not entered.
    size, fit, mean, std, layout, colour, dtype
        As ImagePreprocessing takes them.

    Raises
    ------
    DataError
        No such folder, no images in it, a size, mean or std that cannot be. Reading: a file that is no image.
    """

    folder: str | Path

    def __post_init__(self) -> None:
        """Check the description, and that there are images, before anything is read."""
        ImagePreprocessing.__post_init__(self)
        if not Path(self.folder).is_dir():
            raise DataError(f"{self.folder}: no such folder")
        if not self.files():
            raise DataError(f"{self.folder}: no images in it; expected files ending in {', '.join(SUFFIXES)}")

    def files(self) -> list[Path]:
        """Return the images, sorted by name."""
        return sorted(path for path in Path(self.folder).iterdir() if path.suffix.lower() in SUFFIXES and path.is_file())

    def __len__(self) -> int:
        """Count the images."""
        return len(self.files())

    def __iter__(self) -> Iterator[npt.NDArray[Any]]:
        """Read one image after the other."""
        return (self.read(path) for path in self.files())

    def read(self, path: Path) -> npt.NDArray[Any]:
        """Read and preprocess one image."""
        image = _pillow()
        try:
            with image.open(path) as file:
                return self(file)[np.newaxis]
        except (OSError, ValueError, SyntaxError) as error:
            raise DataError(f"{path}: cannot read the image: {error}") from error


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError as error:
        raise DataError("reading images needs Pillow: pip install 'octavo[images]'") from error
    return Image


_CHOICES = {"fit": ("stretch", "crop"), "layout": ("NCHW", "NHWC"), "colour": ("RGB", "BGR"), "dtype": ("float32", "uint8")}
