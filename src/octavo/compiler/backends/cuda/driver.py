"""Launch plans on a GPU, by NVIDIA's driver: constants stay there, and a call is one graph of its launches. Needs no TVM."""

from __future__ import annotations

import importlib
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ....errors import ExecutableError, TargetError
from .compiler import INSTALL
from .isa import ISAS, Isa
from .plan import Launch, LaunchPlan, Place

_DEFAULT_SHARED = 48 << 10
"""Bytes of dynamic shared memory that a launch may ask for without saying so first."""
_NAME_BYTES = 256
"""Of a device's name at most."""


def driver() -> Any:
    """Return the driver's bindings, initialized; ExecutableError where there is no driver or no GPU."""
    try:
        found = importlib.import_module("cuda.bindings.driver")
    except ImportError as error:
        raise ExecutableError(f"NVIDIA's driver is called by a package that is not installed ({INSTALL})") from error
    try:
        (status,) = found.cuInit(0)
    except Exception as error:  # the bindings raise errors of their own where there is no library of the driver's
        raise ExecutableError("this machine has no driver for NVIDIA GPUs") from error
    if status != found.CUresult.CUDA_SUCCESS:
        raise ExecutableError(f"this machine has no usable NVIDIA GPU ({status.name})")
    return found


def checked(returned: tuple[Any, ...], what: str) -> Any:
    """Return what a call of the driver gives; ExecutableError where it failed."""
    status, *values = returned
    if int(status) != 0:
        raise ExecutableError(f"the GPU's driver failed to {what}: {status.name}")
    return values[0] if len(values) == 1 else tuple(values)


@dataclass(frozen=True, slots=True)
class Gpu:
    """This machine's first GPU: its name, as the driver has it, and its compute capability, 86 for 8.6."""

    name: str
    capability: int


def present_gpu(why: str, instead: str = "") -> Gpu:
    """Return this machine's first GPU; without one a TargetError that says `why` one is needed, and what there is `instead`."""
    try:
        cuda = driver()
        device = checked(cuda.cuDeviceGet(0), "find a GPU")
        attribute = cuda.CUdevice_attribute
        names = (attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)
        major, minor = (checked(cuda.cuDeviceGetAttribute(name, device), "tell its capability") for name in names)
        name = checked(cuda.cuDeviceGetName(_NAME_BYTES, device), "tell its name")
    except ExecutableError as error:
        raise TargetError(f"{why}: {error}{instead}") from error
    return Gpu(bytes(name).split(b"\0")[0].decode(errors="replace"), 10 * major + minor)


def this_gpu() -> Gpu:
    """Return what target "cuda" is; TargetError without one."""
    return present_gpu("target 'cuda' is this machine's GPU", f"; to compile for another, name it: {', '.join(ISAS)}")


def present_isa() -> Isa:
    """Return the newest ISA that this machine's first GPU has; TargetError without one."""
    return isa_for(this_gpu().capability)


def gpu_running(isa: Isa, why: str = "", instead: str = "") -> Gpu:
    """Return this machine's first GPU, which runs code for an ISA; TargetError otherwise, with words as of `present_gpu`."""
    gpu = present_gpu(f"target {isa.name}{why}", instead)
    if not runs_on(isa, gpu.capability):
        raise TargetError(
            f"target {isa.name}: this machine's {gpu.name} (compute capability {gpu.capability / 10:.1f}) does not run it; "
            f"it runs {isa_for(gpu.capability).name}"
        )
    return gpu


def isa_for(capability: int) -> Isa:
    """Return the newest ISA whose machine code a GPU of a capability (86 for 8.6) runs; TargetError where there is none.

    A cubin runs on later minor versions of its major one; that of an "a" architecture on no other (CUDA C++ Programming Guide,
    binary compatibility).
    """
    fitting = [isa for isa in ISAS.values() if runs_on(isa, capability)]
    if not fitting:
        raise TargetError(
            f"this machine's GPU is of compute capability {capability / 10:.1f}; there are kernels for {', '.join(ISAS)}"
        )
    return fitting[-1]


def runs_on(isa: Isa, capability: int) -> bool:
    """Return whether a GPU of a capability runs machine code for an ISA."""
    own = int(isa.arch.removeprefix("sm_").rstrip("a"))
    return own == capability if isa.arch.endswith("a") else own // 10 == capability // 10 and own <= capability


class Owned:
    """What an object has of the driver, given back when it goes, the last first; also of one that was never finished.

    `module` is whose context that is in.
    """

    def __init__(self, owner: Any, module: LoadedModule) -> None:
        self._handles: list[tuple[Callable[[Any], Any], Any]] = []
        weakref.finalize(owner, _give_back, module.cuda.cuCtxSetCurrent, module.context, self._handles)

    def add(self, give_back: Callable[[Any], Any], handle: Any) -> Any:
        """Return a handle that the driver takes back by this function."""
        self._handles.append((give_back, handle))
        return handle


def _give_back(enter: Callable[[Any], Any], context: Any, handles: Sequence[tuple[Callable[[Any], Any], Any]]) -> None:
    enter(context)  # whichever thread this is
    for give_back, handle in reversed(handles):
        give_back(handle)


class LoadedModule:
    """The kernels and constants of a plan on the first GPU, in its primary context, which other libraries use too."""

    def __init__(self, plan: LaunchPlan, cubins: Sequence[bytes], isa: str) -> None:
        try:
            self.cuda = cuda = driver()
        except ExecutableError as error:
            raise ExecutableError(f"{error}: save the executable, and load it where there is one") from error
        self.plan = plan
        self.isa = isa
        device = checked(cuda.cuDeviceGet(0), "find a GPU")
        self.context = checked(cuda.cuDevicePrimaryCtxRetain(device), "open a context")
        owned = Owned(self, self)
        owned.add(cuda.cuDevicePrimaryCtxRelease, device)
        self.enter()
        loading = f"load code for {isa}, which this GPU may not run"
        modules = [owned.add(cuda.cuModuleUnload, checked(cuda.cuModuleLoadData(cubin), loading)) for cubin in cubins]
        self.functions: dict[str, Any] = {}
        for kernel in {kernel.symbol: kernel for kernel in plan.kernels}.values():
            function = self._found(modules, kernel.symbol)
            if kernel.shared_bytes > _DEFAULT_SHARED:
                most = cuda.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
                checked(cuda.cuFuncSetAttribute(function, most, kernel.shared_bytes), f"give {kernel.name} its shared memory")
            self.functions[kernel.symbol] = function
        constants = checked(cuda.cuMemAlloc(max(plan.constants.nbytes, 1)), "allocate the constants")
        self.constants = owned.add(cuda.cuMemFree, constants)
        if plan.constants.nbytes:
            checked(cuda.cuMemcpyHtoD(self.constants, plan.constants.ctypes.data, plan.constants.nbytes), "upload the constants")

    def enter(self) -> None:
        """Make its context the calling thread's."""
        checked(self.cuda.cuCtxSetCurrent(self.context), "enter the context")

    def free_memory(self) -> int:
        """Return how many bytes of the GPU's memory nobody has."""
        self.enter()
        free, _ = checked(self.cuda.cuMemGetInfo(), "tell how much memory is free")
        return int(free)

    def _found(self, modules: Sequence[Any], symbol: str) -> Any:
        for module in modules:
            status, function = self.cuda.cuModuleGetFunction(module, symbol.encode())
            if int(status) == 0:
                return function
        raise ExecutableError(f"the code for {self.isa} lacks kernel {symbol}; compile the model again")


class DeviceCall:
    """Memory of one call at a time on the GPU, and the graph of its launches, which is made once.

    Parameters
    ----------
    inputs, outputs
        Addresses on the GPU of the tensors that it reads and writes; None where memory of its own stands between them and the
        host's.
    """

    def __init__(self, module: LoadedModule, inputs: Sequence[Any] | None = None, outputs: Sequence[Any] | None = None) -> None:
        self._module = module
        self._cuda = cuda = module.cuda
        module.enter()
        self._owned = Owned(self, module)
        stream = checked(cuda.cuStreamCreate(cuda.CUstream_flags.CU_STREAM_NON_BLOCKING), "make a stream")
        self.stream = self._owned.add(cuda.cuStreamDestroy, stream)
        plan = module.plan
        self._workspace = self._allocated(plan.workspace)
        self._inputs = [self._allocated(size) for size in plan.input_sizes] if inputs is None else []
        self._outputs = [self._allocated(size) for size in plan.output_sizes] if outputs is None else []
        self._start: dict[str, Sequence[Any]] = {
            "input": self._inputs if inputs is None else inputs,
            "output": self._outputs if outputs is None else outputs,
            "constant": [module.constants],
            "workspace": [self._workspace],
        }
        self.graph = self.recorded(plan.launches)

    def run(self, inputs: Sequence[npt.NDArray[Any]], outputs: Sequence[npt.NDArray[Any]]) -> None:
        """Upload arrays of the host, run, and download the results into others; wait for that. All are dense."""
        cuda, stream = self._cuda, self.stream
        self._module.enter()
        for own, array in zip(self._inputs, inputs, strict=True):
            checked(cuda.cuMemcpyHtoDAsync(own, array.ctypes.data, array.nbytes, stream), "upload an input")
        self.launch()
        self.download(outputs)

    def launch(self) -> None:
        """Queue the kernels in the stream."""
        checked(self._cuda.cuGraphLaunch(self.graph, self.stream), "launch the kernels")

    def download(self, outputs: Sequence[npt.NDArray[Any]]) -> None:
        """Download the results into arrays of the host, behind all that was queued; wait for that."""
        self._module.enter()
        for own, array in zip(self._outputs, outputs, strict=True):
            checked(self._cuda.cuMemcpyDtoHAsync(array.ctypes.data, own, array.nbytes, self.stream), "download a result")
        self.wait()

    def wait(self) -> None:
        """Wait for all that was queued in the stream."""
        checked(self._cuda.cuStreamSynchronize(self.stream), "run the kernels")

    def run_there(self) -> None:
        """Run on the tensors that it was given, behind all that was queued on the GPU before; wait for that."""
        self._module.enter()
        checked(self._cuda.cuCtxSynchronize(), "wait for what was queued before")
        self.launch()
        self.wait()

    def _allocated(self, size: int) -> Any:
        memory = checked(self._cuda.cuMemAlloc(max(size, 1)), f"allocate {size} bytes")
        return self._owned.add(self._cuda.cuMemFree, memory)

    def recorded(self, launches: Sequence[Launch]) -> Any:
        """Return a graph of launches on this memory."""
        cuda, stream = self._cuda, self.stream

        def address(place: Place) -> int:
            return int(self._start[place.region][place.index]) + place.offset

        mode = cuda.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        checked(cuda.cuStreamBeginCapture(stream, mode), "record the launches")
        for launch in launches:
            kernel = launch.kernel
            pointers = np.array([address(place) for place in launch.places], np.uint64)
            # The driver takes the address of each argument, and reads the arguments while it records.
            arguments = np.array([pointers.ctypes.data + 8 * number for number in range(pointers.size)], np.uint64)
            launched = cuda.cuLaunchKernel(
                self._module.functions[kernel.symbol],
                *kernel.grid,
                *kernel.block,
                kernel.shared_bytes,
                stream,
                arguments.ctypes.data,
                0,
            )
            checked(launched, f"record {kernel.name}")
        graph = checked(cuda.cuStreamEndCapture(stream), "record the launches")
        self._owned.add(cuda.cuGraphDestroy, graph)
        executable = checked(cuda.cuGraphInstantiate(graph, 0), "make a graph of the launches")
        return self._owned.add(cuda.cuGraphExecDestroy, executable)
