"""Samples that a command line names: arrays in files and folders of images, read as a stream. It runs no model.

Of a .npz as much is in memory as one run of the model takes; of a .npy the system keeps what it likes.
"""

from __future__ import annotations

import argparse
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from ..errors import DataError
from ..numerics.arrays import NO_ARRAYS, check_members
from ..profiling import ImageFolder
from ..runtime.inputs import InputSpec, at_sizes, split_batch
from ..runtime.size import names_in
from .samples import Samples, named, read_samples
from .sources import UsageError

Arrays = dict[str, npt.NDArray[Any]]
_IMAGE_OPTIONS = ("resize", "fit", "mean", "std", "layout", "colour")


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """Samples of one --data: how many runs of the model, what reads them, and how they were preprocessed."""

    runs: int
    read: Callable[[], Iterator[Arrays]]
    preprocessing: str


class Stream:
    """All sources, one after the other, as batches for `profile`."""

    def __init__(self, sources: Sequence[Source]) -> None:
        self._sources = sources
        self.runs = sum(source.runs for source in sources)
        self.preprocessing = "; ".join(sorted({source.preprocessing for source in sources if source.preprocessing}))

    def __iter__(self) -> Iterator[Arrays]:
        """Read the samples."""
        for source in self._sources:
            yield from source.read()


def add_data(parser: argparse.ArgumentParser, *, is_required: bool = True) -> None:
    """Add --data, and what is done to images."""
    parser.add_argument(
        "--data",
        type=Path,
        action="append",
        required=is_required,
        metavar="FILE",
        help="samples: .npy, .npz with one array for each input, samples first, or a folder of such files or of images "
        "(may be repeated)",
    )
    parser.add_argument("--preprocessing", metavar="TEXT", help="what was done to the samples in files, for the profile to say")
    group = parser.add_argument_group("a folder of images")
    group.add_argument("--resize", type=_pair, metavar="H,W", help="resize to this many pixels (default: what the model takes)")
    group.add_argument(
        "--fit", choices=("stretch", "crop"), help="resize each side, or keep the ratio and cut (default: stretch)"
    )
    group.add_argument("--mean", type=_three, metavar="M", help="subtract, of pixels 0 to 255: one number or three")
    group.add_argument("--std", type=_three, metavar="S", help="then divide by: one number or three")
    group.add_argument("--layout", choices=("NCHW", "NHWC"), help="where the channels lie (default: as the model's input says)")
    group.add_argument("--colour", choices=("RGB", "BGR"), help="order of the channels (default: RGB)")


def open_data(args: argparse.Namespace, specs: Sequence[InputSpec]) -> Stream:
    """Look at every --data, so that what does not fit is found before anything is compiled.

    Raises
    ------
    DataError
        What does not fit the model or cannot be read.
    UsageError
        Options for images without a folder of them.
    """
    given = [name for name in _IMAGE_OPTIONS if getattr(args, name) is not None]
    if given and not any(path.is_dir() for path in args.data):
        raise UsageError(f"--{given[0]} goes with a folder of images; give one as --data")
    described = args.preprocessing or ""
    sources: list[Source] = []
    for path in args.data:
        files = data_files(path) if path.is_dir() else [path]
        sources += [file_source(file, specs, described) for file in files] or [_images(path, args, specs)]
    return Stream(sources)


def data_files(folder: Path) -> list[Path]:
    """Return the .npz and .npy files of a folder, in the order of their names."""
    return sorted(path for path in folder.iterdir() if path.suffix in (".npz", ".npy"))


def _images(path: Path, args: argparse.Namespace, specs: Sequence[InputSpec]) -> Source:
    if len(specs) != 1 or len(specs[0].shape) != 4:
        raise DataError(
            f"{path}: a folder of images is for a model with one input of 4 dimensions; this one takes {_listed(specs)}"
        )
    (spec,) = specs
    layout = args.layout or ("NHWC" if spec.shape[3] == 3 and spec.shape[1] != 3 else "NCHW")
    first = 2 if layout == "NCHW" else 1
    size: tuple[int, int] = args.resize or (spec.shape[first], spec.shape[first + 1])
    if names_in(size):
        raise DataError(f"{path}: the model takes images of any size, {_listed(specs)}: give them one by --resize H,W")
    options: dict[str, Any] = {name: getattr(args, name) for name in ("fit", "mean", "std", "colour") if getattr(args, name)}
    folder = ImageFolder(folder=path, size=size, layout=layout, dtype="uint8" if spec.dtype == "uint8" else "float32", **options)
    shape = (1, 3, *size) if layout == "NCHW" else (1, *size, 3)
    # Images come one at a time; a model that takes more at once is none for a folder.
    next(split_batch(specs, np.zeros(shape, folder.dtype), where=str(path), finite=False))

    def read() -> Iterator[Arrays]:
        return ({spec.source_name: image} for image in folder)

    return Source(runs=len(folder), read=read, preprocessing=folder.preprocessing)


def file_source(path: Path, specs: Sequence[InputSpec], preprocessing: str = "") -> Source:
    """Look at a .npy or .npz: the samples of every input of a model, read as they are asked for.

    Raises
    ------
    DataError
        What does not fit the model or cannot be read; whether values are finite is not looked at.
    """
    headers = _npz_headers(path)
    if headers is None:
        samples = read_samples(path)
        return Source(runs=_runs(path, specs, samples), read=lambda: _cut(path, specs, samples), preprocessing=preprocessing)
    # Arrays of these shapes and dtypes that take no memory.
    shells: Arrays = {name: np.broadcast_to(np.zeros((), header.dtype), header.shape) for name, header in headers.items()}
    samples = next(iter(shells.values())) if len(shells) == 1 else shells
    sized = at_sizes(specs, samples, where=str(path))
    runs = _runs(path, sized, samples)
    return Source(runs=runs, read=lambda: _streamed(path, sized, headers, runs), preprocessing=preprocessing)


def steps_source(path: Path, specs: Sequence[InputSpec]) -> tuple[Source, bool]:
    """Look at a .npy or .npz of steps: samples of a fixed batch, or arrays with an axis of steps before the inputs' own.

    Returns
    -------
    source, has_axis
        What reads them, and whether there is such an axis.

    Raises
    ------
    DataError
        What does not fit the model or cannot be read; of an axis of steps only that it is as long in every array.
    """
    samples = read_samples(path)
    values = samples if isinstance(samples, dict) else {spec.source_name: samples for spec in specs[:1]}
    ranks = {spec.source_name: len(spec.shape) for spec in specs}
    longer = {name: array for name, array in values.items() if array.ndim == ranks.get(name, array.ndim) + 1}
    if not any(ranks[name] for name in longer):
        return file_source(path, specs), False
    counts = {array.shape[0] for array in longer.values()}
    if len(counts) > 1:
        said = ", ".join(f"{name} {array.shape[0]}" for name, array in longer.items())
        raise DataError(f"{path}: the inputs hold different numbers of steps: {said}")
    [count] = counts

    def read() -> Iterator[Arrays]:
        for number in range(count):
            yield {name: array[number, ...] if name in longer else array for name, array in values.items()}

    return Source(runs=count, read=read, preprocessing=""), True


def _runs(path: Path, specs: Sequence[InputSpec], samples: Samples) -> int:
    return sum(1 for _ in split_batch(specs, samples, where=str(path), finite=False))


def _cut(path: Path, specs: Sequence[InputSpec], samples: Samples) -> Iterator[Arrays]:
    for values in split_batch(specs, samples, where=str(path), finite=False):
        yield named(specs, values)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Header:
    """What the start of an array in a .npz says of it, and which member of the archive it is."""

    member: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]


def _npz_headers(path: Path) -> dict[str, _Header] | None:
    """Return the arrays of a .npz that can be read as a stream; None for what `read_samples` is to look at as a whole."""
    headers: dict[str, _Header] = {}
    try:
        if not path.is_file() or not zipfile.is_zipfile(path):
            return None
        check_members(path)
        with zipfile.ZipFile(path) as archive:
            for member in archive.namelist():
                with archive.open(member) as stream:
                    shape, is_fortran, dtype = _header(stream)
                if is_fortran or dtype.hasobject or not member.endswith(".npy"):
                    return None
                headers[member.removesuffix(".npy")] = _Header(member=member, shape=shape, dtype=dtype)
    except (OSError, *NO_ARRAYS):
        return None
    return headers or None


def _header(stream: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    version = np.lib.format.read_magic(stream)
    if version == (1, 0):
        return np.lib.format.read_array_header_1_0(stream)
    if version == (2, 0):
        return np.lib.format.read_array_header_2_0(stream)
    raise ValueError(f"version {version} of the format")


def _streamed(path: Path, specs: Sequence[InputSpec], headers: dict[str, _Header], runs: int) -> Iterator[Arrays]:
    """Read all inputs side by side, as many rows at a time as one run takes."""
    alone = next(iter(headers)) if len(headers) == 1 else None
    chosen = [headers[alone or (spec.source_name if spec.source_name in headers else spec.id)] for spec in specs]
    try:
        with zipfile.ZipFile(path) as archive:
            streams = [archive.open(header.member) for header in chosen]
            for stream in streams:
                _header(stream)
            parts = list(zip(specs, streams, chosen, strict=True))
            fixed = {spec.source_name: _next(stream, spec, header.dtype) for spec, stream, header in parts if not header.shape}
            for _ in range(runs):
                yield {
                    spec.source_name: fixed[spec.source_name] if not header.shape else _next(stream, spec, header.dtype)
                    for spec, stream, header in parts
                }
    except (OSError, *NO_ARRAYS) as error:
        raise DataError(f"{path}: cannot read the samples: {error}; write the file anew with numpy.savez") from error


def _next(stream: IO[bytes], spec: InputSpec, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    size = int(np.prod(spec.shape, dtype=np.int64)) * dtype.itemsize
    content = stream.read(size)
    if len(content) != size:
        raise EOFError("the file ends before its last sample")
    return np.frombuffer(content, dtype).reshape(spec.shape)


def _listed(specs: Sequence[InputSpec]) -> str:
    return ", ".join(str(spec) for spec in specs)


def _pair(text: str) -> tuple[int, int]:
    parts = text.split(",")
    if len(parts) != 2 or not all(part.isdecimal() and int(part) for part in parts):
        raise argparse.ArgumentTypeError(f"expected a height and a width, 224,224, got {text!r}")
    return int(parts[0]), int(parts[1])


def _three(text: str) -> tuple[float, float, float]:
    try:
        numbers = [float(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if len(numbers) not in (1, 3):
        raise argparse.ArgumentTypeError(f"expected one number or three, got {text!r}")
    return (numbers[0], numbers[-1], numbers[-1]) if len(numbers) == 1 else (numbers[0], numbers[1], numbers[2])
