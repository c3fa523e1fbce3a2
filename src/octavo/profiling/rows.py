"""Rows of a table as calibration data, one at a time: what Hugging Face's `datasets` gives, or any iterable of mappings.

It takes columns for the inputs of a model and turns what a row holds into arrays; nothing else of the row is looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import DataError


class Rows:
    """Batches of one from rows.

    Parameters
    ----------
    rows
        Mappings from column to value; read anew each time that these batches are.
    columns
        {input of the model: column}.
    transforms
        {column: function of its value}, giving an array without a batch dimension, an ImagePreprocessing for images, say. Without
        one, arrays are taken as they are, and lists of numbers as float32, of whole numbers as int64.
    preprocessing
        What was done to the samples, for the profile to say; by default what the transforms say of themselves.

    Raises
    ------
    DataError
        No columns. Reading: a row without a column, a value that is no array of numbers.
    """

    def __init__(
        self,
        rows: Iterable[Mapping[str, Any]],
        columns: Mapping[str, str],
        *,
        transforms: Mapping[str, Callable[[Any], Any]] | None = None,
        preprocessing: str | None = None,
    ) -> None:
        if not columns:
            raise DataError("columns is empty: say which column each input of the model takes, {input: column}")
        self._rows = rows
        self._columns = dict(columns)
        self._transforms = dict(transforms or {})
        described = {column: getattr(self._transforms[column], "preprocessing", "") for column in sorted(self._transforms)}
        listed = [str(text) for text in described.values() if text]
        self.preprocessing = "; ".join(listed) if preprocessing is None else preprocessing
        """What was done to the samples."""

    def __iter__(self) -> Iterator[dict[str, npt.NDArray[Any]]]:
        """Read one row after the other."""
        for number, row in enumerate(self._rows):
            if not isinstance(row, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]  # any iterable may be given
                raise DataError(f"row {number} must be a mapping from column to value, got {type(row).__name__}")
            yield {name: self._array(row, column, number)[np.newaxis] for name, column in self._columns.items()}

    def _array(self, row: Mapping[str, Any], column: str, number: int) -> npt.NDArray[Any]:
        if column not in row:
            raise DataError(f"row {number} has no column {column!r}; it has {', '.join(map(repr, row))}")
        value = self._transforms.get(column, lambda value: value)(row[column])
        if isinstance(value, np.ndarray):
            return value
        try:
            array = np.asarray(value)
        except (ValueError, TypeError) as error:
            raise DataError(f"row {number}: column {column!r} is no array of numbers: {error}") from error
        if array.dtype.kind not in "biuf":
            kind = type(value).__name__
            raise DataError(f"row {number}: column {column!r} holds {kind}, no array of numbers; give a transform for it")
        # A list has no dtype of its own; float64 is only what NumPy makes of it.
        return array.astype(np.float32) if array.dtype == np.float64 else array
