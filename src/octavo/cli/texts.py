"""Tokens that a command line names: one array in a file, or numbers in text. It makes no inputs of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import DataError
from .samples import read_samples

Tokens = npt.NDArray[Any]


def read_tokens(paths: Sequence[Path]) -> list[Tokens] | None:
    """Return the tokens in .npy, .npz and .txt files, of which each line is a text; None where one has arrays for several inputs.

    Raises
    ------
    DataError
        A file that cannot be read; what is no number.
    """
    found: list[Tokens] = []
    for path in paths:
        if path.suffix == ".txt":
            found += _of_lines(path)
            continue
        samples = read_samples(path)
        if isinstance(samples, dict):
            return None
        found.append(samples)
    return found


def _of_lines(path: Path) -> Iterator[Tokens]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot read the tokens: {error}; give a text file of whole numbers") from error
    for number, line in enumerate(lines, 1):
        try:
            tokens = np.array([int(word) for word in line.replace(",", " ").split()], np.int64)
        except ValueError as error:
            raise DataError(f"{path}: line {number}: {error}; write numbers of tokens, those of one text on each line") from error
        if tokens.size:
            yield tokens
