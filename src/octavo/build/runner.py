"""Runners: call compiled code on tensors. One for native programs, one for TVM's virtual machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Lock
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import tvm
from tvm import relax

from .codegen import Code
from .program import ENTRY


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
    return NativeRunner(code.library, code.constants, code.workspace, code.outputs)


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
    """

    def __init__(
        self,
        library: Any,
        constants: npt.NDArray[np.uint8],
        workspace: int,
        outputs: Sequence[tuple[tuple[int, ...], str]],
    ) -> None:
        self._entry: Callable[..., None] = library[ENTRY]
        self._constants: Any = tvm.runtime.tensor(constants)
        self._workspace = workspace
        self._outputs = list(outputs)
        self._idle: list[Any] = []

    def __call__(self, inputs: Sequence[Any]) -> list[Any]:
        """Run on fresh outputs and a workspace that no other call has."""
        outputs = self._empty_outputs()
        try:
            workspace = self._idle.pop()  # atomic, as append is
        except IndexError:
            workspace = self._empty_workspace()
        self._entry(*inputs, self._constants, workspace, *outputs)
        self._idle.append(workspace)
        return outputs

    def prepare(self, inputs: Sequence[Any]) -> Prepared:
        """Return a call with outputs and workspace of its own."""
        outputs = self._empty_outputs()
        return _PreparedNative(self._entry, (*inputs, self._constants, self._empty_workspace(), *outputs), outputs)

    def _empty_outputs(self) -> list[Any]:
        return [tvm.runtime.empty(shape, dtype) for shape, dtype in self._outputs]

    def _empty_workspace(self) -> Any:
        return tvm.runtime.empty((max(self._workspace, 1),), "uint8")


class _PreparedNative:
    def __init__(self, entry: Callable[..., None], arguments: tuple[Any, ...], outputs: list[Any]) -> None:
        self._entry = entry
        self._arguments = arguments
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
