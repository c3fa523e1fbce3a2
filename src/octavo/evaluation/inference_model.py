"""What an evaluation runs: a model of any source behind one face, with the scales of inputs and outputs that are integers.

A model that takes or gives integers and one of floats are compared in real numbers: what each takes is made of the same samples.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ..compiler.compile import compile_model
from ..compiler.target_choice import TargetLike
from ..errors import DataError, ModelError
from ..ir.graph import Model
from ..ir.qdq.interface import input_params, output_params
from ..numerics import QuantParams, dequantize, quantize
from ..numerics.arrays import Array
from ..runtime.executable import Executable
from ..runtime.inputs import InputSpec


@dataclass(frozen=True, kw_only=True, slots=True)
class Port:
    """One input or output: its name, shape and dtype, and what its integers stand for, where it has some of known scale."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    params: QuantParams | None = None

    def real(self, array: Array) -> Array:
        """Return the real numbers that an array of this port stands for."""
        return array if self.params is None else dequantize(array, self.params)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class InferenceModel:
    """A model that can be run, of any source and runtime.

    Parameters
    ----------
    label
        As people know it.
    inputs, outputs
        In the order in which `run` takes and returns arrays.
    run
        One inference.
    model
        Where Octavo loaded it.
    run_usual, usual_note
        The same with a runtime's own defaults, where `run` is an exact evaluation, and what a difference means.
    """

    label: str
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    run: Callable[[Sequence[Array]], list[Array]]
    model: Model | None = None
    run_usual: Callable[[Sequence[Array]], list[Array]] | None = None
    usual_note: str = ""

    @property
    def specs(self) -> tuple[InputSpec, ...]:
        """The inputs as `split_batch` takes them."""
        return tuple(InputSpec(id=port.name, source_name=port.name, shape=port.shape, dtype=port.dtype) for port in self.inputs)


def of_model(model: Model, label: str, *, target: TargetLike = None, threads: int | None = None) -> InferenceModel:
    """Return a model that Octavo compiles."""
    executable = compile_model(model, target=target, threads=threads)
    module = model.bound()
    given, wanted = input_params(module), output_params(module)
    inputs = [
        Port(name=spec.source_name, shape=spec.shape, dtype=spec.dtype, params=params)
        for spec, params in zip(executable.inputs, given, strict=True)
    ]
    outputs = [
        Port(name=spec.source_name, shape=spec.shape, dtype=spec.dtype, params=params)
        for spec, params in zip(executable.outputs, wanted, strict=True)
    ]
    return InferenceModel(label=label, inputs=tuple(inputs), outputs=tuple(outputs), run=_runner(executable), model=model)


def of_executable(executable: Executable, label: str) -> InferenceModel:
    """Return an executable; its file keeps no scales of integer inputs and outputs."""
    inputs = [Port(name=spec.source_name, shape=spec.shape, dtype=spec.dtype) for spec in executable.inputs]
    outputs = [Port(name=spec.source_name, shape=spec.shape, dtype=spec.dtype) for spec in executable.outputs]
    return InferenceModel(label=label, inputs=tuple(inputs), outputs=tuple(outputs), run=_runner(executable))


def _runner(executable: Executable) -> Callable[[Sequence[Array]], list[Array]]:
    # Copies: what it returns lies in memory that the next call may take.
    return lambda arrays: [np.array(value) for value in executable.run_flat(list(arrays))]


def converted(array: Array, port: Port, source: Port) -> Array:
    """Return samples that fit `source`, one model's input, as the other model's input `port` takes them.

    Raises
    ------
    DataError
        One takes integers of unknown scale, or their shapes differ.
    """
    if array.shape != port.shape:
        raise DataError(f"input {source.name} has shape {list(source.shape)} in one model and {list(port.shape)} in the other")
    if str(array.dtype) == port.dtype and (port.params == source.params or None in (port.params, source.params)):
        return array
    value = source.real(array)
    if value.dtype.kind == "f" and port.params is not None:
        return quantize(value.astype(np.float32), port.params)
    if value.dtype.kind == "f" and np.dtype(port.dtype).kind == "f":
        return value.astype(port.dtype)
    raise DataError(
        f"input {source.name} is {array.dtype} in one model and {port.dtype} in the other, and no scale says what its integers "
        "mean (an executable keeps none): give the model file"
    )


def paired(ours: Sequence[Port], theirs: Sequence[Port], what: str) -> list[int]:
    """Return for each port the place of the other's: of its name where both have the same names, else the same place.

    Raises
    ------
    ModelError
        There are more of one than of the other.
    """
    if len(ours) != len(theirs):
        names = [", ".join(port.name for port in ports) for ports in (ours, theirs)]
        raise ModelError(f"one model has {len(ours)} {what} ({names[0]}), the other {len(theirs)} ({names[1]})")
    by_name = {port.name: place for place, port in enumerate(theirs)}
    if {port.name for port in ours} == by_name.keys():
        return [by_name[port.name] for port in ours]
    return list(range(len(ours)))
