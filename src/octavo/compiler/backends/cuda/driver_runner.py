"""Calls of a launch plan on a GPU with TVM's tensors of the host, or with tensors that lie on the GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Lock
from typing import Any

import numpy as np
import numpy.typing as npt
import tvm
import tvm_ffi

from ....errors import DataError
from .driver import DeviceCall, LoadedModule
from .driver_observing import ObservingDeviceCall
from .plan import LaunchPlan


class DriverRunner:
    """Calls a plan on the first GPU. Calls from several threads may overlap: each has a workspace and a stream of its own.

    Parameters
    ----------
    plan
        What a call does.
    cubins
        The machine code of its kernels.
    outputs
        Shape and dtype of each result.
    isa
        Name of what the code is for.
    """

    def __init__(
        self, plan: LaunchPlan, cubins: Sequence[bytes], outputs: Sequence[tuple[tuple[int, ...], str]], isa: str
    ) -> None:
        self._plan = plan
        self._cubins = tuple(cubins)
        self._outputs = list(outputs)
        self._isa = isa
        self._lock = Lock()
        self._module: LoadedModule | None = None
        self._idle: list[DeviceCall] = []

    def __call__(self, inputs: Sequence[Any]) -> list[Any]:
        """Run on tvm tensors of the host, in order; return fresh ones."""
        try:
            call = self._idle.pop()  # atomic, as append is
        except IndexError:
            call = DeviceCall(self.module())
        outputs = [tvm.runtime.empty(shape, dtype) for shape, dtype in self._outputs]
        call.run(_arrays(inputs), _arrays(outputs))
        self._idle.append(call)
        return outputs

    def prepare(self, inputs: Sequence[Any]) -> _PreparedCall:
        """Return a call on these very tensors, for many runs: they are uploaded at each."""
        outputs = [tvm.runtime.empty(shape, dtype) for shape, dtype in self._outputs]
        return _PreparedCall(DeviceCall(self.module()), inputs, outputs)

    def prepare_observing(self, inputs: Sequence[Any], states: Sequence[npt.NDArray[Any]]) -> ObservingDeviceCall:
        """Return a call of an instrumented model on these very tensors; see `runtime.runner.ObservingRunner`."""
        outputs = [np.empty(shape, dtype) for shape, dtype in self._outputs]
        return ObservingDeviceCall(self.module(), _arrays(inputs), states, outputs)

    def prepare_on_device(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> Callable[[], None]:
        """Return a call on tensors of the first GPU; DataError for one that lies elsewhere."""
        for tensor in (*inputs, *outputs):
            if (tensor.device.dlpack_device_type(), tensor.device.index) != (tvm_ffi.DLDeviceType.kDLCUDA, 0):
                raise DataError(f"a tensor lies on {tensor.device}, expected cuda:0: move it there first")
        return _CallThere(self.module(), inputs, outputs)

    def module(self) -> LoadedModule:
        """Return kernels and constants on the GPU, loaded once."""
        with self._lock:
            if self._module is None:
                self._module = LoadedModule(self._plan, self._cubins, self._isa)
            return self._module


class _CallThere:
    """A call on tensors of the GPU, which it keeps alive."""

    def __init__(self, module: LoadedModule, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        self._tensors = inputs, outputs
        self._call = DeviceCall(module, *([each.data_ptr() for each in tensors] for tensors in self._tensors))

    def __call__(self) -> None:
        self._call.run_there()


class _PreparedCall:
    def __init__(self, call: DeviceCall, inputs: Sequence[Any], outputs: list[Any]) -> None:
        self._call = call
        self._inputs = inputs
        self._outputs = outputs
        self._arrays = _arrays(inputs), _arrays(outputs)

    def run(self) -> None:
        self._call.run(*self._arrays)

    def results(self) -> list[Any]:
        return self._outputs


def _arrays(tensors: Sequence[Any]) -> list[npt.NDArray[Any]]:
    """See tensors of the host as arrays."""
    return [np.from_dlpack(each) for each in tensors]
