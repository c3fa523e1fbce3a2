"""The labelled data that the benchmarks and the end-to-end tests run on, as each shared model takes it."""

from __future__ import annotations

import os
import wave
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

Samples = tuple[list[np.ndarray], np.ndarray]
Preprocess = Callable[[np.ndarray], np.ndarray]


def shared_folder() -> Path:
    """Folder of the models and data: OCTAVO_SHARED, or `shared` beside the checkout."""
    return Path(os.environ.get("OCTAVO_SHARED", Path(__file__).resolve().parents[2] / "shared"))


def images(preprocess: Preprocess, *, calibration: bool, size: int = 224, limit: int | None = None) -> Samples:
    """ImageNet crops, each preprocessed to a batch of one, and their classes (0..999).

    File names start with the class; classes divisible by 10 are for calibration, the others for evaluation. `limit` takes that
    many, spread evenly.
    """
    files = sorted((shared_folder() / "data" / "images").glob("*.jpg"))
    files = [file for file in files if (int(file.name[:4]) % 10 == 0) == calibration]
    if limit is not None and limit < len(files):
        files = [files[index * len(files) // limit] for index in range(limit)]
    batches: list[np.ndarray] = []
    for file in files:
        with Image.open(file) as image:
            picture = image.convert("RGB")
            if picture.size != (size, size):
                picture = picture.resize((size, size), Image.Resampling.BILINEAR)
            batches.append(preprocess(np.asarray(picture))[None])
    return batches, np.array([int(file.name[:4]) for file in files])


def scenes(preprocess: Preprocess, *, size: int, limit: int | None = None) -> list[np.ndarray]:
    """COCO photographs as detectors take them: scaled to fit a square, the rest of it gray (114). `limit` takes the first."""
    batches: list[np.ndarray] = []
    for file in sorted((shared_folder() / "data" / "coco").glob("*.jpg"))[:limit]:
        with Image.open(file) as image:
            picture = image.convert("RGB")
            ratio = size / max(picture.size)
            fitted = (round(picture.width * ratio), round(picture.height * ratio))
            square = Image.new("RGB", (size, size), (114, 114, 114))
            square.paste(picture.resize(fitted, Image.Resampling.BILINEAR))
            batches.append(preprocess(np.asarray(square))[None])
    return batches


def scene_boxes(*, size: int) -> list[np.ndarray]:
    """What is in each of `scenes`: rows of class, left, top, right and bottom, in pixels of the square."""
    boxes: list[np.ndarray] = []
    for file in sorted((shared_folder() / "data" / "coco").glob("*.jpg")):
        with Image.open(file) as image:
            width, height = (round(side * size / max(image.size)) for side in image.size)
        label, x, y, w, h = np.loadtxt(file.with_suffix(".txt"), ndmin=2).reshape(-1, 5).T
        boxes.append(np.stack([label, (x - w / 2) * width, (y - h / 2) * height, (x + w / 2) * width, (y + h / 2) * height], 1))
    return boxes


def speech(*, start: int, end: int | None = None) -> np.ndarray:
    """Seconds `start` to `end` of a minute of speech, 16 kHz, float32 in [-1, 1]."""
    with wave.open(str(shared_folder() / "data" / "audio" / "speech_60s_16k.wav")) as file:
        rate = file.getframerate()
        samples = np.frombuffer(file.readframes(file.getnframes()), np.int16).astype(np.float32) / 32768
    return samples[start * rate : None if end is None else end * rate]


def cifar10(preprocess: Preprocess, limit: int | None = None) -> Samples:
    """CIFAR-10 pictures, [1, 32, 32, 3] each."""
    return _archive("cifar10/cifar10.npz", preprocess, limit)


def keywords(preprocess: Preprocess, limit: int | None = None) -> Samples:
    """Spectrograms of spoken words, int8 [1, 49, 10, 1] each (scale 0.5847029, zero_point 83)."""
    return _archive("kws/kws.npz", preprocess, limit)


def _archive(name: str, preprocess: Preprocess, limit: int | None) -> Samples:
    with np.load(shared_folder() / "data" / name) as archive:
        x, y = archive["x"][:limit], archive["y"][:limit]
    return [preprocess(sample)[None] for sample in x], y


def pixels(picture: np.ndarray) -> np.ndarray:
    """uint8 as they are, NHWC."""
    return picture


def pixels_minus_128(picture: np.ndarray) -> np.ndarray:
    """int8 = pixel - 128, NHWC."""
    return (picture.astype(np.int16) - 128).astype(np.int8)


def plus_minus_one(picture: np.ndarray) -> np.ndarray:
    """float32 pixel / 127.5 - 1, NCHW."""
    return np.ascontiguousarray((picture.astype(np.float32) / 127.5 - 1.0).transpose(2, 0, 1))


def blue_first(picture: np.ndarray) -> np.ndarray:
    """float32 pixels as they are, NCHW with blue first."""
    return np.ascontiguousarray(picture[:, :, ::-1].astype(np.float32).transpose(2, 0, 1))


def imagenet_normalized(picture: np.ndarray) -> np.ndarray:
    """float32 (pixel / 255 - mean) / std per channel, NCHW."""
    mean = np.array([0.485, 0.456, 0.406], np.float32)
    std = np.array([0.229, 0.224, 0.225], np.float32)
    return np.ascontiguousarray(((picture.astype(np.float32) / 255.0 - mean) / std).transpose(2, 0, 1))


def keyword_as_float(sample: np.ndarray) -> np.ndarray:
    """float32 (x - 83) * 0.5847029, NHWC."""
    return (sample.astype(np.float32) - 83.0) * np.float32(0.5847029)
