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
from ....numerics.arrays import Array
from ....numerics.statistics.observer_state import COUNTS_SIZE, empty_ranges
from .driver import DeviceCall, LoadedModule, Owned, checked
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


_NUMBER = 4
"""Bytes of a float32, or of a count."""
_PITCH = _NUMBER * COUNTS_SIZE


class ObservingDeviceCall:
    """A call on the host's memory, for one thread at a time.

    Parameters
    ----------
    inputs
        Read at each run.
    states
        Ranges and counts of each observer, one behind the other: see `runtime.runner.ObservingRunner`.
    outputs
        Where `results` leaves the results.
    """

    def __init__(self, module: LoadedModule, inputs: Sequence[Array], states: Sequence[Array], outputs: Sequence[Array]) -> None:
        self._module = module
        self._inputs, self._outputs = inputs, outputs
        self._host_ranges, self._host_counts = states[0::2], states[1::2]
        empty = [empty_ranges(each.size // 2) for each in self._host_ranges]
        self._ends = np.cumsum([each.size for each in empty])
        self._found = np.concatenate(empty)
        self._positions = np.zeros(len(empty), np.int32)
        module.enter()
        self._owned = Owned(self, module)
        self._given = [self._allocated(each.nbytes) for each in inputs]
        self._empty, self._ranges = (self._allocated(self._found.nbytes) for _ in range(2))
        self._counts = self._allocated(_PITCH * len(empty))
        ranges = (int(self._ranges) + _NUMBER * int(end - each.size) for each, end in zip(empty, self._ends, strict=True))
        counts = (int(self._counts) + _PITCH * number for number in range(len(empty)))
        pairs = [address for pair in zip(ranges, counts, strict=True) for address in pair]
        self._call = DeviceCall(module, inputs=[*self._given, *pairs])
        source, size = self._found.ctypes.data, self._found.nbytes
        checked(module.cuda.cuMemcpyHtoDAsync(self._empty, source, size, self._call.stream), "upload empty ranges")
        self._clear_counts()
        self._call.wait()

    def run(self) -> None:
        """Run once; add ranges, and the positions of what is not finite, to the host's."""
        cuda, stream, count = self._module.cuda, self._call.stream, len(self._positions)
        self._module.enter()
        for own, array in zip(self._given, self._inputs, strict=True):
            checked(cuda.cuMemcpyHtoDAsync(own, array.ctypes.data, array.nbytes, stream), "upload an input")
        checked(cuda.cuMemcpyDtoDAsync(self._ranges, self._empty, self._found.nbytes, stream), "empty the ranges")
        checked(cuda.cuMemsetD2D32Async(self._counts, _PITCH, 0, 1, count, stream), "empty the positions")
        self._call.launch()
        checked(cuda.cuMemcpyDtoHAsync(self._found.ctypes.data, self._ranges, self._found.nbytes, stream), "download the ranges")
        checked(cuda.cuMemcpy2DAsync(self._copy_of_positions(), stream), "download the positions")
        self._call.wait()
        for own, found in zip(self._host_ranges, np.split(self._found, self._ends[:-1]), strict=True):
            channels = own.size // 2
            np.minimum(own[:channels], found[:channels], out=own[:channels])
            np.maximum(own[channels:], found[channels:], out=own[channels:])
        for counts, position in zip(self._host_counts, self._positions, strict=True):
            counts[0] = max(counts[0], position)

    def results(self) -> list[Array]:
        """Return what the last run gave, as memory that the next overwrites."""
        self._call.download(self._outputs)
        return list(self._outputs)

    def fetch(self) -> None:
        """Move all counts, but for the positions, to the host."""
        found = np.empty(COUNTS_SIZE, np.int32)
        self._module.enter()
        for number, own in enumerate(self._host_counts):
            source = int(self._counts) + _PITCH * number
            stream = self._call.stream
            checked(self._module.cuda.cuMemcpyDtoHAsync(found.ctypes.data, source, found.nbytes, stream), "download counts")
            self._call.wait()
            own[1:] += found[1:]
        self._clear_counts()
        self._call.wait()

    def _clear_counts(self) -> None:
        numbers = COUNTS_SIZE * len(self._positions)
        checked(self._module.cuda.cuMemsetD32Async(self._counts, 0, numbers, self._call.stream), "empty the counts")

    def _copy_of_positions(self) -> Any:
        """Return the copy of each observer's first count, one behind the other."""
        cuda = self._module.cuda
        copy = cuda.CUDA_MEMCPY2D()
        copy.srcMemoryType, copy.dstMemoryType = cuda.CUmemorytype.CU_MEMORYTYPE_DEVICE, cuda.CUmemorytype.CU_MEMORYTYPE_HOST
        copy.srcDevice, copy.srcPitch = self._counts, _PITCH
        copy.dstHost, copy.dstPitch = self._positions.ctypes.data, _NUMBER
        copy.WidthInBytes, copy.Height = _NUMBER, len(self._positions)
        return copy

    def _allocated(self, size: int) -> Any:
        memory = checked(self._module.cuda.cuMemAlloc(max(size, 1)), f"allocate {size} bytes")
        return self._owned.add(self._module.cuda.cuMemFree, memory)
