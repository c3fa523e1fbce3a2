"""Depthwise convolutions: every group has one input channel."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ...isa import Isa
from ...kernel import Kernel
from ..language.calls import KernelCall
from .spec import Conv2dSpec

_THREADS = 128
_BLOCKS = 4
"""Of a multiprocessor: loads are waited for by the threads of other blocks, which 128 registers a thread leave room for."""
_THREADS_OF_PROCESSOR = 1024
"""Threads of a multiprocessor that hide the latency of each other's loads: with fewer, each takes fewer pixels."""

_COLUMNS = 16
"""Pixels of a row that a thread holds in registers at most."""

_TAPS = 128
"""Taps up to which a kernel's loops are unrolled."""


def is_depthwise(spec: Conv2dSpec) -> bool:
    """Return whether a convolution is depthwise, with a window that the kernel unrolls."""
    fits = spec.kernel[0] * spec.kernel[1] <= _TAPS and _columns(spec, 1) <= _COLUMNS
    return spec.groups == spec.in_channels > 1 and fits and _items(spec, 1) < 2**31


def _columns(spec: Conv2dSpec, pixels: int) -> int:
    return (pixels - 1) * spec.strides[1] + (spec.kernel[1] - 1) * spec.dilation[1] + 1


def _items(spec: Conv2dSpec, pixels: int) -> int:
    return spec.batch * spec.out_height * -(-spec.out_width // pixels) * -(-spec.out_channels // 4)


def pixels_of_thread(spec: Conv2dSpec, isa: Isa) -> int:
    """Return how many results in a row a thread computes: 4 or 2 where enough threads remain, which share loads, else 1."""
    for pixels in (4, 2):
        enough = _items(spec, pixels) >= isa.multiprocessors * _THREADS_OF_PROCESSOR
        if enough and spec.out_width >= pixels and _columns(spec, pixels) <= _COLUMNS:
            return pixels
    return 1


def depthwise_conv2d(spec: Conv2dSpec, isa: Isa, *, pixels: int | None = None) -> tuple[KernelCall, ...]:
    """Return the launch of a depthwise convolution; `pixels` of a thread are chosen where they are not given."""
    pixels = pixels_of_thread(spec, isa) if pixels is None else pixels
    items = _items(spec, pixels)
    kernel = Kernel(
        name=f"depthwise{spec.output.suffix}",
        header="depthwise.cuh",
        function="depthwise",
        parameters={**spec.parameters(), "items": items, "threads": _THREADS, "pixels_of_thread": pixels},
        types=spec.types,
        structures=spec.output.tail.structures(),
        members=spec.output.function,
        arguments=spec.arguments("int32"),
        grid=(-(-items // _THREADS), 1, 1),
        block=(_THREADS, 1, 1),
        isa=isa.name,
        least_blocks=_BLOCKS,
    )
    return (KernelCall(kernel=kernel, operands=spec.operands(_fours(spec), spec.constants())),)


def _fours(spec: Conv2dSpec) -> npt.NDArray[np.int32]:
    """Return weights as int32 (rows, columns, fours): four output channels in each."""
    rows, columns, _, outputs = spec.weights.shape
    padded = np.zeros((rows, columns, -(-outputs // 4) * 4), np.int8)
    padded[:, :, :outputs] = spec.weights[:, :, 0]
    return padded.view(np.int32)
