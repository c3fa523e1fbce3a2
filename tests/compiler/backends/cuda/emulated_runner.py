"""A launch plan on the CPU: what a GPU's memory would hold, in buffers of the emulator."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import tvm
from cuda_emulator import Call, Check, Emulator

import octavo
from octavo import Executable
from octavo.compiler.backends.cuda import backend
from octavo.compiler.backends.cuda.code import CudaCode
from octavo.compiler.backends.cuda.plan import LaunchPlan, Place


class EmulatedRunner:
    """Calls a plan in the emulator: for its results alone, thousands of times slower than a GPU.

    Parameters
    ----------
    plan
        What a call does.
    outputs
        Shape and dtype of each result.
    check, seed
        As `Emulator` and `Emulator.run` take them.
    """

    def __init__(
        self, plan: LaunchPlan, outputs: Sequence[tuple[tuple[int, ...], str]], check: Check = "none", seed: int = 0
    ) -> None:
        self._plan = plan
        self._outputs = list(outputs)
        self._check: Check = check
        self._seed = seed
        self._emulator: Emulator | None = None

    def __call__(self, inputs: Sequence[Any]) -> list[Any]:
        """Run on tvm tensors of the host, in order; return fresh ones."""
        return self.run([np.from_dlpack(each) for each in inputs], ())

    def run(self, inputs: Sequence[npt.NDArray[Any]], states: Sequence[npt.NDArray[Any]]) -> list[Any]:
        """Run on arrays, of which `states` stand behind the inputs and are changed in place; return fresh tensors."""
        plan = self._plan
        if self._emulator is None:
            self._emulator = Emulator(plan.kernels, check=self._check)
        arrays = [_bytes(each) for each in (*inputs, *states)]
        buffers = [*arrays, plan.constants, np.zeros(plan.workspace, np.uint8)]
        first = len(buffers)
        buffers += [np.zeros(size, np.uint8) for size in plan.output_sizes]
        start = {"input": 0, "constant": len(arrays), "workspace": len(arrays) + 1, "output": first}

        def at(place: Place) -> tuple[int, int]:
            return start[place.region] + place.index, place.offset

        calls = [Call(kernel=each.kernel, arguments=tuple(at(place) for place in each.places)) for each in plan.launches]
        returned = [*range(len(inputs), len(arrays)), *range(first, len(buffers))]
        results = self._emulator.run(calls, buffers, returned, self._seed)
        for state, result in zip(states, results, strict=False):
            state[...] = result.view(state.dtype).reshape(state.shape)
        shaped = zip(results[len(states) :], self._outputs, strict=True)
        return [tvm.runtime.tensor(each.view(dtype).reshape(shape)) for each, (shape, dtype) in shaped]

    def prepare(self, inputs: Sequence[Any]) -> _PreparedEmulation:
        """Return a call on these very tensors."""
        return _PreparedEmulation(self, inputs, ())

    def prepare_observing(self, inputs: Sequence[Any], states: Sequence[npt.NDArray[Any]]) -> _PreparedEmulation:
        """Return a call of an instrumented model on these very tensors; see `runtime.runner.ObservingRunner`."""
        return _PreparedEmulation(self, inputs, states)


class EmulatedCode(CudaCode):
    """Code for a GPU whose calls run in the emulator."""

    def runner(self) -> EmulatedRunner:
        return EmulatedRunner(self.plan, self.outputs)


def emulated(executable: Executable) -> Executable:
    """Return an executable for a GPU, to be called on this machine's CPU."""
    code = executable.code
    assert isinstance(code, CudaCode)
    return Executable(
        EmulatedCode(plan=code.plan, isa=code.isa, cubins=code.cubins, outputs=code.outputs), executable.description
    )


@contextmanager
def no_machine_code() -> Iterator[None]:
    """Let NVRTC compile no kernel of an executable whose calls run in the emulator alone: it takes most of the time.

    That it compiles every family, for every generation, test_compiled_ops.py and test_cuda_machine_code.py see.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backend, "compile_kernels", lambda *_: [])
        yield


def emulation(model: octavo.Model, isa: str) -> Executable:
    """Compile a model for a GPU, to be called on this machine's CPU and nowhere else."""
    with no_machine_code():
        return emulated(octavo.compile(model, target=isa))


class _PreparedEmulation:
    def __init__(self, runner: EmulatedRunner, inputs: Sequence[Any], states: Sequence[npt.NDArray[Any]]) -> None:
        self._runner = runner
        self._inputs = [np.from_dlpack(each) for each in inputs]
        self._states = states
        self._results: list[Any] = []

    def run(self) -> None:
        self._results = self._runner.run(self._inputs, self._states)

    def results(self) -> list[Any]:
        return self._results

    def fetch(self) -> None:
        """Do nothing: a run counts where the states lie."""


def _bytes(array: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)
