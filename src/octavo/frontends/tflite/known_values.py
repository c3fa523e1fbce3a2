"""What ops of a .tflite file give whose operands are known: counters of loops, shapes and places. In NumPy, of few values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from .flatbuffer import Table

Array = npt.NDArray[Any]
_MAX_VALUES = 64
_PLAIN = frozenset({"float32", "int32", "int64", "bool"})
"""Types that are no integers of a quantized tensor. Of floats, what is computed here is exact, or rounded once."""
_BINARY: dict[str, Callable[[Array, Array], Array]] = {
    "ADD": np.add,
    "EQUAL": np.equal,
    "GREATER": np.greater,
    "GREATER_EQUAL": np.greater_equal,
    "LESS": np.less,
    "LESS_EQUAL": np.less_equal,
    "LOGICAL_AND": np.logical_and,
    "LOGICAL_OR": np.logical_or,
    "MAXIMUM": np.maximum,
    "MINIMUM": np.minimum,
    "MUL": np.multiply,
    "NOT_EQUAL": np.not_equal,
    "SUB": np.subtract,
}
_WITH_ACTIVATION = frozenset({"ADD", "MUL", "SUB"})


def computed(name: str, op: Table, known: Sequence[Array | None], shapes: Sequence[Sequence[int]]) -> list[Array] | None:
    """Return the results of an op on numbers or booleans that are known; None where it is none.

    Parameters
    ----------
    known
        The value of each operand.
    shapes
        That the file states for the results.
    """
    values = [value for value in known if value is not None]
    if len(values) < len(known) or not values or any(value.size > _MAX_VALUES for value in values):
        return None
    if any(value.dtype.name not in _PLAIN for value in values):
        return None
    options = op["BuiltinOptions"]
    if name in _WITH_ACTIVATION and options is not None and options.number("FusedActivationFunction"):
        return None
    if name in _BINARY and len(values) == 2:
        with np.errstate(all="ignore"):  # integers wrap around, floats are infinite
            return [np.asarray(_BINARY[name](*values))]
    if name == "LOGICAL_NOT":
        return [np.logical_not(values[0])]
    if name in ("RESHAPE", "EXPAND_DIMS", "SQUEEZE") and np.prod(shapes[0], dtype=int) == values[0].size:
        return [values[0].reshape(shapes[0])]
    if name == "PACK" and options is not None:
        return [np.stack(values, options.number("Axis"))]
    if name == "CONCATENATION" and options is not None:
        return [np.concatenate(values, options.number("Axis"))]
    return None
