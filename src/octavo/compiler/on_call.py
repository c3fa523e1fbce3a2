"""OnCallExecutable: what compiles a network for the values that decide its shapes when a call feeds them. Generates no code."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import DataError, ExecutableError, UnsupportedOpError
from ..ir.graph import Model
from ..ir.graph.unbound import UnboundModel
from ..runtime.executable import BoundCall, Executable, Outputs

_KEPT = 64
"""Executables: of more values the ones that were not used for longest are compiled anew."""

_OWN = frozenset({"_code", "_check", "_run", "_shares_samples", "description"})


class OnCallExecutable(Executable):
    """An executable for each value of the inputs that decide shapes or branches, made when a call feeds it first.

    The first call with new values takes as long as compiling does; the executables of the last 64 are kept. Where sizes that the
    file leaves open cannot stay so, one is made for each size, too. It needs the compiler, so it is not saved: `executable_for`
    gives one that is.

    Parameters
    ----------
    model
        The network.
    compile
        Makes an executable of the Model of some values.
    """

    def __init__(self, model: UnboundModel, compile: Callable[[Model], Executable]) -> None:
        self._model, self._compile = model, compile
        self._made: OrderedDict[tuple[bytes, ...], Executable] = OrderedDict()
        self._making: dict[tuple[bytes, ...], threading.Lock] = {}
        self._lock = threading.Lock()
        self._is_fixed = False

    def __getattr__(self, name: str) -> Any:
        """Raise ExecutableError for what the executable of some values has."""
        if name in _OWN:
            raise ExecutableError(
                f"it is compiled for the values of {', '.join(self._model.deciding)} when it is called; for an executable that "
                f"can be saved, bound and described {self._model.advice()}"
            )
        raise AttributeError(name)

    def __repr__(self) -> str:
        """One line."""
        return f"OnCallExecutable({self._model!r}; {len(self._made)} compiled)"

    def __reduce__(self) -> Any:
        """Refuse to be copied: the compiler is part of it."""
        return self.description

    def __call__(self, data: npt.NDArray[Any] | Mapping[str, npt.NDArray[Any]]) -> Outputs:
        """Run once, compiled for the values that are fed.

        Raises
        ------
        DataError
            As for any executable.
        ModelError, CompileError
            Nothing can be compiled for these values.
        """
        values, rest = self._split(data)
        return self._fitting(values, rest)(rest)

    def bind(self, data: npt.NDArray[Any] | Mapping[str, npt.NDArray[Any]]) -> BoundCall:
        """Check and place inputs once, those that decide apart."""
        values, rest = self._split(data)
        return self._fitting(values, rest).bind(rest)

    def executable_for(self, values: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]] | None = None) -> Executable:
        """Return the executable in which the inputs that decide have these values, and which takes the others.

        Parameters
        ----------
        values, shapes
            As `UnboundModel.bind` takes them.
        """
        arrays = {name: np.asarray(value) for name, value in values.items()}
        key = tuple(str((name, array.dtype, array.shape)).encode() + array.tobytes() for name, array in sorted(arrays.items()))
        key = (*key, str(sorted((shapes or {}).items())).encode())
        found = self._kept(key)
        if found is not None:
            return found
        with self._lock:
            making = self._making.setdefault(key, threading.Lock())
        with making:  # calls with these values wait for one compilation, calls with others for none
            found = self._kept(key)
            if found is None:
                found = self._compile(self._model.bind(arrays, shapes))
                with self._lock:
                    self._made[key] = found
                    if len(self._made) > _KEPT:
                        self._made.popitem(last=False)
        with self._lock:
            self._making.pop(key, None)
        return found

    def _kept(self, key: tuple[bytes, ...]) -> Executable | None:
        """Return what was made for these values and is kept, now the last that was used."""
        with self._lock:
            if key in self._made:
                self._made.move_to_end(key)
            return self._made.get(key)

    def _fitting(self, values: dict[str, Any], rest: dict[str, Any]) -> Executable:
        """Return the executable of these values: of open sizes where that can be imported, else of the sizes that are fed."""
        if self._is_fixed:
            return self.executable_for(values, {name: np.shape(value) for name, value in rest.items()})
        try:
            return self.executable_for(values)
        except UnsupportedOpError:
            if all(None not in shape for name, (_, shape) in self._model.inputs.items() if name in rest):
                raise
        made = self.executable_for(values, {name: np.shape(value) for name, value in rest.items()})
        self._is_fixed = True
        return made

    def _split(self, data: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return what decides, and what the executable of that takes."""
        names = list(self._model.inputs)
        if not isinstance(data, Mapping):
            if len(names) != 1:
                raise DataError(f"input: the model has {len(names)} inputs ({', '.join(names)}); give a dict of them")
            data = {names[0]: data}
        given: dict[str, Any] = dict(data)
        missing = next((name for name in self._model.deciding if name not in given), None)
        if missing is not None:
            raise DataError(f"input: {missing!r} is missing; expected {', '.join(names)}")
        unknown = next((name for name in given if name not in names), None)
        if unknown is not None:
            raise DataError(f"input: there is no input {unknown!r}; expected {', '.join(names)}")
        values = {name: given.pop(name) for name in self._model.deciding}
        return values, given
