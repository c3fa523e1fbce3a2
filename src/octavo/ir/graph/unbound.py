"""UnboundModel: a network of which values that are fed decide what is computed. Builds nothing.

Shapes and branches of a Model are known before a run. Where the values of some inputs decide them (the shape that a Reshape is
fed, the rate that an If asks for), there is one Model for each value of these, and this makes it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

import numpy as np
import numpy.typing as npt

from ...errors import DataError, ModelError
from .model import Model

_FIELDS = frozenset(field.name for field in fields(Model))


class UnboundModel(Model):
    """A network that is a Model once the values of some of its inputs are known.

    `octavo.compile` makes an executable of it that compiles for each new value that a call feeds; all else (profiles, quantizing,
    explanations, files) takes what `bind` returns.

    Parameters
    ----------
    inputs
        All inputs by name: dtype and shape, None for a dimension that is open.
    deciding
        Names of the inputs whose values decide.
    reason
        What could not be done without the values.
    make
        Returns the Model of these values, and of these shapes of other inputs.
    """

    inputs: Mapping[str, tuple[str, tuple[int | None, ...]]]
    deciding: tuple[str, ...]
    reason: str

    def __init__(
        self,
        *,
        inputs: Mapping[str, tuple[str, tuple[int | None, ...]]],
        deciding: tuple[str, ...],
        reason: str,
        make: Callable[[Mapping[str, npt.NDArray[Any]], Mapping[str, tuple[int, ...]]], Model],
    ) -> None:
        # The fields of a Model are left out: there is none yet.
        for name, value in {"inputs": inputs, "deciding": deciding, "reason": reason, "_make": make}.items():
            object.__setattr__(self, name, value)

    def __getattr__(self, name: str) -> Any:
        """Raise ModelError for what a Model has and this has not yet."""
        if name in _FIELDS:
            raise ModelError(f"values that are fed decide what is computed ({self.reason}): {self.advice()}")
        raise AttributeError(name)

    def __repr__(self) -> str:
        """One line."""
        return f"UnboundModel(inputs {', '.join(self.inputs)}; decided by the values of {', '.join(self.deciding)})"

    def bind(self, values: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]] | None = None) -> Model:
        """Return the Model in which these inputs are constants.

        Parameters
        ----------
        values
            {input name: array or number}, all of `deciding`.
        shapes
            {input name: shape} for others that are to be of one shape.

        Raises
        ------
        DataError
            A value is missing, of no such input, or of another dtype or shape.
        ModelError
            As `octavo.load` raises it.
        """
        unknown = [name for name in values if name not in self.deciding]
        missing = [name for name in self.deciding if name not in values]
        if unknown or missing:
            what = f"there is no value {unknown[0]!r} to bind" if unknown else f"the value of {missing[0]!r} is missing"
            raise DataError(f"{what}; give those of {', '.join(self.deciding)}")
        bound = {name: bound_value(name, value, *self.inputs[name]) for name, value in values.items()}
        return self._make(bound, shapes or {})

    def advice(self) -> str:
        """Say how to get a Model."""
        names = ", ".join(f'"{name}": ...' for name in self.deciding)
        options = " ".join(f"--value {name}=..." for name in self.deciding)
        return f"load it with values={{{names}}} in Python, {options} on the command line"


def bound_value(name: str, value: Any, dtype: str, shape: tuple[int | None, ...] | None) -> npt.NDArray[Any]:
    """Return a value as an input takes it; DataError where it is another one in that dtype, or does not fit the shape.

    Where the shape is a single number, [1] or [], a number may be given as either.
    """
    array = np.asarray(value)
    if array.dtype.kind not in "biuf" and str(array.dtype) != dtype:
        raise DataError(f"the value of input {name} must be numbers of {dtype}, got {array.dtype}")
    with np.errstate(all="ignore"):
        converted = array.astype(dtype)
        is_same = np.array_equal(converted.astype(array.dtype), array) or (
            np.dtype(dtype).kind == "f" and array.dtype.kind == "f"
        )
    if not is_same:
        raise DataError(f"the value of input {name} must be of {dtype}, in which {array.reshape(-1)[:4].tolist()} is another")
    if shape is None:
        return converted
    if array.size == 1 and all(dim in (1, None) for dim in shape):
        converted = converted.reshape([1] * len(shape))
    if len(shape) != converted.ndim or any(dim not in (size, None) for dim, size in zip(shape, converted.shape, strict=True)):
        shown = ",".join("?" if dim is None else str(dim) for dim in shape)
        raise DataError(f"the value of input {name} must have shape [{shown}], got {list(converted.shape)}")
    return converted
