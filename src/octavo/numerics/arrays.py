"""Names of the arrays that most functions take, whether arrays by name are equal, and whether a file holds what it claims."""

from __future__ import annotations

import lzma
import math
import struct
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
NO_ARRAYS = (
    *(ValueError, AttributeError, KeyError, EOFError, struct.error),
    RuntimeError,  # an encrypted member, a version or a compression that zipfile does not know
    *(zipfile.BadZipFile, zlib.error, lzma.LZMAError),
)
"""What reading a file as .npy or .npz raises where it is none, beside OSError."""
Samples = Sequence[Sequence[Array]]
"""What a model takes or gives, sample by sample."""

_MAX_DEFLATED = 1100
"""How many bytes one of deflate's makes at most, 1032, with what a header takes."""


def equal_arrays(first: Mapping[Any, Array], second: Mapping[Any, Array]) -> bool:
    """Return whether both have the same names, and the same numbers by each."""
    return first.keys() == second.keys() and all(np.array_equal(each, second[name]) for name, each in first.items())


def check_members(path: Path) -> None:
    """Raise ValueError for an archive of arrays whose headers claim more than it holds, before memory for them is asked for."""
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            if not member.filename.endswith(".npy"):
                continue
            with archive.open(member) as stream:
                version = np.lib.format.read_magic(stream)
                if version not in ((1, 0), (2, 0)):
                    continue
                read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
                shape, _, dtype = read(stream)
            claimed = math.prod(shape) * dtype.itemsize
            most = min(member.file_size, _MAX_DEFLATED * member.compress_size)
            if not dtype.hasobject and claimed > most:
                raise ValueError(f"{member.filename} claims {dtype} {shape}, {claimed} bytes, and holds {most} at most")
