"""What an evaluation runs: a model of any source behind one face, with the scales of inputs and outputs that are integers.

A model that takes or gives integers and one of floats are compared in real numbers: what each takes is made of the same samples.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ..compiler.compile import compile_model
from ..compiler.target_choice import TargetLike
from ..errors import DataError, ModelError
from ..ir.graph import Model
from ..ir.qdq.interface import input_params, output_params
from ..numerics import QuantParams, dequantize, quantize
from ..numerics.arrays import Array
from ..runtime.executable import Executable
from ..runtime.inputs import Bounds, InputSpec, check_inputs
from ..runtime.shapes import fits
from ..runtime.size import names_in


@dataclass(frozen=True, kw_only=True, slots=True)
class Port:
    """One input or output: its name, shape and dtype, and what its integers stand for, where it has some of known scale.

    `bounds` and `start` are those of an InputSpec.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    params: QuantParams | None = None
    bounds: Mapping[str, Bounds] = field(default_factory=dict[str, Bounds])
    start: Array | None = field(default=None, repr=False, compare=False)

    def real(self, array: Array) -> Array:
        """Return the real numbers that an array of this port stands for."""
        return array if self.params is None else dequantize(array, self.params)

    @property
    def spec(self) -> InputSpec:
        """An input as `split_batch` takes it."""
        return InputSpec(
            id=self.name, source_name=self.name, shape=self.shape, dtype=self.dtype, bounds=self.bounds, start=self.start
        )


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
        return tuple(port.spec for port in self.inputs)


def of_model(model: Model, label: str, *, target: TargetLike = None, threads: int | None = None) -> InferenceModel:
    """Return a model that Octavo compiles."""
    executable = compile_model(model, target=target, threads=threads)
    module = model.bound()
    given, wanted = input_params(module), output_params(module)
    inputs = [
        Port(name=spec.source_name, shape=spec.shape, dtype=spec.dtype, params=params, bounds=spec.bounds, start=spec.start)
        for spec, params in zip(executable.inputs, given, strict=True)
    ]
    outputs = [
        Port(name=spec.source_name, shape=spec.shape, dtype=spec.dtype, params=params)
        for spec, params in zip(executable.outputs, wanted, strict=True)
    ]
    return InferenceModel(label=label, inputs=tuple(inputs), outputs=tuple(outputs), run=_runner(executable), model=model)


def of_executable(executable: Executable, label: str) -> InferenceModel:
    """Return an executable; its file keeps no scales of integer inputs and outputs."""
    inputs = [
        Port(name=spec.source_name, shape=spec.shape, dtype=spec.dtype, bounds=spec.bounds, start=spec.start)
        for spec in executable.inputs
    ]
    outputs = [Port(name=spec.source_name, shape=spec.shape, dtype=spec.dtype) for spec in executable.outputs]
    return InferenceModel(label=label, inputs=tuple(inputs), outputs=tuple(outputs), run=_runner(executable))


def _runner(executable: Executable) -> Callable[[Sequence[Array]], list[Array]]:
    is_open = bool(names_in(dim for spec in executable.inputs for dim in spec.shape))

    def run(arrays: Sequence[Array]) -> list[Array]:
        if is_open:  # what fits one model, and each model's own state, is not known to fit before
            named = {spec.source_name: array for spec, array in zip(executable.inputs, arrays, strict=True)}
            check_inputs(executable.inputs, named, limits=executable.description.limits)
        # Copies: what it returns lies in memory that the next call may take.
        return [np.array(value) for value in executable.run_flat(list(arrays))]

    return run


def converted(array: Array, port: Port, source: Port) -> Array:
    """Return samples that fit `source`, one model's input, as the other model's input `port` takes them.

    Raises
    ------
    DataError
        One takes integers of unknown scale, or their shapes differ.
    """
    if not fits(array.shape, port.shape):
        raise DataError(f"input {source.name} has shape {list(array.shape)} in one model and {list(port.shape)} in the other")
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
