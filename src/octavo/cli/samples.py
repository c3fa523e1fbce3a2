"""Samples in files: .npz and .npy, read without ever running code that a file holds. It runs no model."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import DataError
from ..numerics.arrays import NO_ARRAYS, check_members
from ..runtime.inputs import InputSpec
from ..runtime.size import is_open

Samples = npt.NDArray[Any] | dict[str, npt.NDArray[Any]]
"""One array where the file holds one, else arrays by name."""

_NPY_MAGIC = b"\x93NUMPY"
_EPOCH = (1980, 1, 1, 0, 0, 0)


def read_samples(path: Path) -> Samples:
    """Read a .npy, or a .npz of one array or of one array for each input of a model.

    Raises
    ------
    DataError
        No such file, another kind of file, Python objects instead of numbers, no arrays.
    """
    advice = "write one with numpy.savez(path, x=array)"
    if path.exists() and not path.is_file() and not path.is_dir():
        raise DataError(f"{path}: not a file (a device or a pipe); {advice}")
    try:
        arrays = _load(path)
    except OSError as error:
        raise DataError(f"{path}: cannot read the samples: {error.strerror or error}; {advice}") from error
    except NO_ARRAYS as error:
        raise DataError(f"{path}: not a .npz or .npy file of numbers ({_first_line(error)}); {advice}") from error
    if not isinstance(arrays, dict):
        return arrays
    if not arrays:
        raise DataError(f"{path}: the file holds no arrays; {advice}")
    for name, array in arrays.items():
        if not isinstance(array, np.ndarray):  # a .npz may hold files of any kind
            raise DataError(f"{path}: {name} is not an array; {advice}")
    return next(iter(arrays.values())) if len(arrays) == 1 else arrays


def batch_size(specs: Sequence[InputSpec]) -> int | None:
    """Return the first dimension that every input shares, or None; None, too, where it is open."""
    sizes = {spec.shape[0] if spec.shape else None for spec in specs}
    return None if len(sizes) != 1 or any(map(is_open, sizes)) else sizes.pop()


def named(specs: Sequence[InputSpec], values: Sequence[npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
    """Return the inputs of one inference by their names in the source."""
    return {spec.source_name: value for spec, value in zip(specs, values, strict=True)}


def write_npz(file: Any, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
    """Write arrays by name so that the same arrays give the same bytes; any name is allowed, unlike with numpy.savez.

    Parameters
    ----------
    file
        A binary file open for writing.
    """
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
        for name, array in arrays.items():
            member = zipfile.ZipInfo(f"{name}.npy", date_time=_EPOCH)
            with archive.open(member, "w", force_zip64=True) as stream:
                np.lib.format.write_array(stream, np.asarray(array), allow_pickle=False)


def _load(path: Path) -> Any:
    with path.open("rb") as file:
        magic = file.read(len(_NPY_MAGIC))
        if magic == _NPY_MAGIC:
            return np.load(path, mmap_mode="r", allow_pickle=False)
        file.seek(0)
        if not zipfile.is_zipfile(file):
            raise ValueError("neither of the two formats" if magic else "the file is empty")
        file.seek(0)
        check_members(path)
        with np.load(file, allow_pickle=False) as archive:
            return dict(archive.items())


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
