"""NVIDIA's driver as far as `octavo.compiler.backends.cuda.driver` calls it, with the emulator as its GPU.

Device memory is memory of the host; kernels are found by their symbols. It keeps to the order of a stream and checks what the
driver would refuse: a launch outside a capture, memory that is freed or too small, shared memory that nobody asked for.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from types import SimpleNamespace
from typing import Any

import numpy as np
from cuda_emulator import Call, Emulator

from octavo.compiler.backends.cuda.kernel import Kernel


class CUresult(IntEnum):
    CUDA_SUCCESS = 0
    CUDA_ERROR_INVALID_VALUE = 1
    CUDA_ERROR_NOT_FOUND = 500


OK, INVALID, MISSING = CUresult


@dataclass
class Stream:
    graph: list[tuple[str, tuple[int, ...]]] | None = None


@dataclass
class Event:
    us: float = 0.0


@dataclass
class FakeDriver:
    """`kernels` are those that any module holds.

    `cost` gives the microseconds of a kernel's launch, by which events tell the time; that is all it does with `emulates` false.
    """

    kernels: Sequence[Kernel]
    capability: tuple[int, int] = (8, 0)
    name: str = "Fake GPU"
    cost: Callable[[Kernel], float] = lambda kernel: 0.0
    emulates: bool = True
    known: dict[str, Kernel] = field(default_factory=dict)
    emulator: tuple[Sequence[Kernel], Emulator] | None = None
    us: float = 0.0
    memory: dict[int, np.ndarray] = field(default_factory=dict)
    log: list[str] = field(default_factory=list)
    shared: dict[str, int] = field(default_factory=dict)
    CUresult = CUresult
    CUdevice_attribute = SimpleNamespace(
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR=0, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR=1
    )
    CUfunction_attribute = SimpleNamespace(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES=8)
    CUDA_MEMCPY2D = SimpleNamespace
    CUmemorytype = SimpleNamespace(CU_MEMORYTYPE_HOST=1, CU_MEMORYTYPE_DEVICE=2)
    CUevent_flags = SimpleNamespace(CU_EVENT_DEFAULT=0)
    CUstream_flags = SimpleNamespace(CU_STREAM_NON_BLOCKING=1)
    CUstreamCaptureMode = SimpleNamespace(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL=1)

    def cuDeviceGet(self, number: int) -> Any:
        return OK, number

    def cuDeviceGetAttribute(self, attribute: int, _device: int) -> Any:
        return OK, self.capability[attribute]

    def cuDeviceGetName(self, length: int, _device: int) -> Any:
        return OK, self.name.encode().ljust(length, b"\0")

    def cuDevicePrimaryCtxRetain(self, _device: int) -> Any:
        return OK, "context"

    def cuCtxSetCurrent(self, context: str) -> Any:
        return (OK if context == "context" else INVALID,)

    def cuCtxSynchronize(self) -> Any:
        self.log.append("wait for all")
        return (OK,)

    def cuModuleLoadData(self, cubin: bytes) -> Any:
        return (OK, cubin) if cubin[:4] == b"\x7fELF" else (INVALID, None)

    def cuModuleUnload(self, _module: bytes) -> Any:
        return (OK,)

    def cuDevicePrimaryCtxRelease(self, _device: int) -> Any:
        self.log.append("leave")
        return (OK,)

    def cuGraphDestroy(self, _graph: list[Any]) -> Any:
        return (OK,)

    def cuModuleGetFunction(self, module: bytes, symbol: bytes) -> Any:
        return (OK, symbol.decode()) if symbol in module else (MISSING, None)

    def cuFuncSetAttribute(self, function: str, _attribute: int, value: int) -> Any:
        self.shared[function] = value
        return (OK,)

    def cuMemAlloc(self, size: int) -> Any:
        array = np.random.default_rng(len(self.memory)).integers(0, 256, size, np.uint8)  # nobody wrote there yet
        self.memory[array.ctypes.data] = array
        return OK, array.ctypes.data

    def cuMemFree(self, address: int) -> Any:
        return (OK if self.memory.pop(address, None) is not None else INVALID,)

    def cuMemGetInfo(self) -> Any:
        return OK, (1 << 30) - sum(each.nbytes for each in self.memory.values()), 1 << 30

    def cuMemcpyHtoD(self, to: int, source: int, size: int) -> Any:
        if to not in self.memory or size > self.memory[to].nbytes:
            return (INVALID,)
        ctypes.memmove(to, source, size)
        self.log.append("upload")
        return (OK,)

    def cuMemcpyHtoDAsync(self, to: int, source: int, size: int, _stream: Stream) -> Any:
        return self.cuMemcpyHtoD(to, source, size)

    def cuMemcpyDtoHAsync(self, to: int, source: int, size: int, _stream: Stream) -> Any:
        if not self._has(source, size):
            return (INVALID,)
        ctypes.memmove(to, source, size)
        self.log.append("download")
        return (OK,)

    def cuMemcpyDtoDAsync(self, to: int, source: int, size: int, _stream: Stream) -> Any:
        if not (self._has(to, size) and self._has(source, size)):
            return (INVALID,)
        ctypes.memmove(to, source, size)
        self.log.append("copy")
        return (OK,)

    def cuMemcpy2DAsync(self, copy: Any, _stream: Stream) -> Any:
        if (copy.srcMemoryType, copy.dstMemoryType) != (2, 1) or min(copy.srcPitch, copy.dstPitch) < copy.WidthInBytes:
            return (INVALID,)
        for row in range(copy.Height):
            source = copy.srcDevice + row * copy.srcPitch
            if not self._has(source, copy.WidthInBytes):
                return (INVALID,)
            ctypes.memmove(copy.dstHost + row * copy.dstPitch, source, copy.WidthInBytes)
        self.log.append("download rows")
        return (OK,)

    def cuMemsetD32Async(self, to: int, value: int, count: int, stream: Stream) -> Any:
        return self.cuMemsetD2D32Async(to, 4, value, 1, count, stream)

    def cuMemsetD2D32Async(self, to: int, pitch: int, value: int, width: int, height: int, _stream: Stream) -> Any:
        if not self._has(to, pitch * (height - 1) + 4 * width) or pitch < 4 * width:
            return (INVALID,)
        rows = (ctypes.c_uint32 * ((pitch * (height - 1)) // 4 + width)).from_address(to)
        np.lib.stride_tricks.as_strided(np.frombuffer(rows, np.uint32), (height, width), (pitch, 4))[:] = value
        self.log.append("set")
        return (OK,)

    def _has(self, address: int, size: int) -> bool:
        """Return whether so many bytes from an address on are allocated, in one piece."""
        return any(start <= address and address + size <= start + each.nbytes for start, each in self.memory.items())

    def cuStreamCreate(self, _flags: int) -> Any:
        return OK, Stream()

    def cuStreamDestroy(self, _stream: Stream) -> Any:
        return (OK,)

    def cuStreamSynchronize(self, _stream: Stream) -> Any:
        self.log.append("wait")
        return (OK,)

    def cuEventCreate(self, _flags: int) -> Any:
        return OK, Event()

    def cuEventDestroy(self, _event: Event) -> Any:
        return (OK,)

    def cuEventRecord(self, event: Event, stream: Stream) -> Any:
        event.us = self.us
        return (OK if isinstance(stream, Stream) else INVALID,)

    def cuEventSynchronize(self, _event: Event) -> Any:
        return (OK,)

    def cuEventElapsedTime(self, first: Event, last: Event) -> Any:
        return OK, (last.us - first.us) / 1e3

    def cuStreamBeginCapture(self, stream: Stream, _mode: int) -> Any:
        stream.graph = []
        return (OK,)

    def cuStreamEndCapture(self, stream: Stream) -> Any:
        graph, stream.graph = stream.graph, None
        return OK, graph

    def cuGraphInstantiate(self, graph: list[Any], _flags: int) -> Any:
        return OK, list(graph)

    def cuGraphExecDestroy(self, _graph: list[Any]) -> Any:
        return (OK,)

    def cuLaunchKernel(self, function: str, *rest: Any) -> Any:
        *sizes, shared, stream, arguments, extra = rest
        kernel = self._kernel(function)
        if stream.graph is None or extra != 0 or tuple(sizes) != (*kernel.grid, *kernel.block) or shared != kernel.shared_bytes:
            return (INVALID,)
        if shared > max(48 << 10, self.shared.get(function, 0)):
            return (INVALID,)
        count = len(kernel.arguments)
        slots = (ctypes.c_uint64 * count).from_address(arguments)
        stream.graph.append((function, tuple(ctypes.c_uint64.from_address(slot).value for slot in slots)))
        return (OK,)

    def cuGraphLaunch(self, graph: list[tuple[str, tuple[int, ...]]], _stream: Stream) -> Any:
        self.log.append("launch")
        self.us += sum(self.cost(self._kernel(name)) for name, _ in graph)
        if not self.emulates:
            return (OK,)
        addresses = sorted(self.memory)
        emulator = self._emulator()

        def place(address: int) -> tuple[int, int]:
            number = max(index for index, start in enumerate(addresses) if start <= address)
            offset = address - addresses[number]
            assert offset < self.memory[addresses[number]].nbytes, "an argument points to memory that is nobody's"
            return number, offset

        calls = [Call(kernel=self._kernel(name), arguments=tuple(map(place, pointers))) for name, pointers in graph]
        results = emulator.run(calls, [self.memory[each] for each in addresses], range(len(addresses)))
        for address, result in zip(addresses, results, strict=True):
            self.memory[address][:] = result
        return (OK,)

    def _emulator(self) -> Emulator:
        """Return one of the kernels as they are, made anew where they have become others."""
        if self.emulator is None or self.emulator[0] is not self.kernels:
            self.emulator = self.kernels, Emulator(self.kernels)
        return self.emulator[1]

    def _kernel(self, symbol: str) -> Kernel:
        if symbol not in self.known:
            self.known[symbol] = next(kernel for kernel in self.kernels if kernel.symbol == symbol)
        return self.known[symbol]
