"""Runners: call compiled code on tensors. One for native programs, one for TVM's virtual machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import tvm
from tvm import relax

from .codegen import Code
from .crew import Crew
from .crew_code import Layout
from .huge_pages import empty_bytes, tensor_of
from .program import ENTRY, takes_table


class Prepared(Protocol):
    """A call whose inputs are in place."""

    def run(self) -> None:
        """Run and leave the results where `results` finds them."""
        ...

    def results(self) -> list[Any]:
        """Return the tensors of the last run, in order."""
        ...


class Runner(Protocol):
    """Code that can be called from several Python threads."""

    def __call__(self, inputs: Sequence[Any]) -> list[Any]:
        """Run on tvm tensors, in order; return fresh ones."""
        ...

    def prepare(self, inputs: Sequence[Any]) -> Prepared:
        """Return a call on these very tensors, for many runs."""
        ...


def runner_of(code: Code) -> Runner:
    """Return what calls this code."""
    if code.constants is None or code.workspace is None or code.outputs is None:
        return MachineRunner(code.library)
    return NativeRunner(code.library, code.constants, code.workspace, code.outputs, code.control)


class NativeRunner:
    """Calls the entry of a Program. Calls share nothing but the constants, so they may overlap.

    Parameters
    ----------
    library
        A tvm.runtime.Module with the entry.
    constants
        The Program's.
    workspace
        Bytes of the block for intermediate tensors.
    outputs
        Shape and dtype of each result.
    control
        How a crew of threads is controlled that shares a call; None where one thread does it all.
    """

    def __init__(
        self,
        library: Any,
        constants: npt.NDArray[np.uint8],
        workspace: int,
        outputs: Sequence[tuple[tuple[int, ...], str]],
        control: Layout | None = None,
    ) -> None:
        self._library = library
        self._control = control
        self._entry: Callable[..., None] = library[ENTRY]
        self._constants: Any = tensor_of(constants)
        self._workspace = workspace
        self._outputs = list(outputs)
        self._idle: list[_Place] = []

    def __call__(self, inputs: Sequence[Any]) -> list[Any]:
        """Run on fresh outputs, in a place that no other call has."""
        outputs = self._empty_outputs()
        try:
            place = self._idle.pop()  # atomic, as append is
        except IndexError:
            place = self._place()
        self._entry(*entry_inputs(inputs), self._constants, *place.arguments, *outputs)
        self._idle.append(place)
        return outputs

    def prepare(self, inputs: Sequence[Any]) -> Prepared:
        """Return a call with outputs and a place of its own."""
        outputs = self._empty_outputs()
        place = self._place()
        arguments = (*entry_inputs(inputs), self._constants, *place.arguments, *outputs)
        return _PreparedNative(self._entry, arguments, outputs, place, inputs)

    def _place(self) -> _Place:
        workspace = empty_bytes(self._workspace)
        if self._control is None:
            return _Place(arguments=(workspace,))
        crew = Crew(self._library, self._control)
        return _Place(arguments=(workspace, crew.control), crew=crew)

    def _empty_outputs(self) -> list[Any]:
        return [tvm.runtime.empty(shape, dtype) for shape, dtype in self._outputs]


def entry_inputs(inputs: Sequence[Any]) -> Sequence[Any]:
    """Return what the entry takes for its inputs: they themselves, or the table of their addresses."""
    if not takes_table(len(inputs)):
        return inputs
    return [tvm.runtime.tensor(np.array([tensor.data_ptr() for tensor in inputs], np.int64))]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Place:
    """Where one call at a time takes place: arguments of the entry for its workspace and its crew, which must live as long."""

    arguments: tuple[Any, ...]
    crew: Crew | None = None


class _PreparedNative:
    def __init__(
        self, entry: Callable[..., None], arguments: tuple[Any, ...], outputs: list[Any], place: _Place, inputs: Sequence[Any]
    ) -> None:
        self._entry = entry
        self._inputs = inputs  # kept alive, for a table holds their addresses alone
        self._arguments = arguments
        self._place = place
        self._outputs = outputs

    def run(self) -> None:
        self._entry(*self._arguments)

    def results(self) -> list[Any]:
        return self._outputs


class MachineRunner:
    """Calls "main" on TVM's virtual machine, which keeps a call's registers in itself: calls take turns."""

    def __init__(self, library: Any) -> None:
        device: Any = tvm.cpu()
        self._machine = relax.VirtualMachine(library, device)
        self._main = self._machine["main"]
        self._lock = Lock()

    def __call__(self, inputs: Sequence[Any]) -> list[Any]:
        """Run when no other call does."""
        with self._lock:
            results: Any = self._main(*inputs)
        return [results] if isinstance(results, tvm.runtime.Tensor) else list(results)

    def prepare(self, inputs: Sequence[Any]) -> Prepared:
        """Return the same call with its inputs; the machine allocates outputs anew."""
        return _PreparedMachine(self, inputs)


class _PreparedMachine:
    def __init__(self, runner: MachineRunner, inputs: Sequence[Any]) -> None:
        self._runner = runner
        self._inputs = inputs
        self._outputs: list[Any] = []

    def run(self) -> None:
        self._outputs = self._runner(self._inputs)

    def results(self) -> list[Any]:
        return self._outputs
