"""Convolutions by dot products of four input channels, straight from global memory: for few sums, and few channels of a group."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ...isa import Isa
from ...kernel import Kernel
from ..language.calls import KernelCall
from .spec import Conv2dSpec

_THREADS = 128


def channels_of_thread(spec: Conv2dSpec) -> int:
    """Return the output channels that one thread computes."""
    return next(count for count in (4, 2, 1) if spec.out_channels // spec.groups % count == 0)


def dot_conv2d(spec: Conv2dSpec, isa: Isa) -> tuple[KernelCall, ...]:
    """Return the kernel of dot products of four channels: any convolution."""
    channels = channels_of_thread(spec)
    steps = -(-spec.out_channels // channels)
    kernel = Kernel(
        name=f"conv2d_dot{spec.output.suffix}",
        header="conv2d_dot.cuh",
        function="conv2d_dot",
        parameters={**spec.parameters(), "channels_of_thread": channels, "threads": _THREADS},
        types=spec.types,
        structures=spec.output.tail.structures(),
        members=spec.output.function,
        arguments=spec.arguments("int32"),
        grid=(-(-spec.pixels * steps // _THREADS), 1, 1),
        block=(_THREADS, 1, 1),
        isa=isa.name,
    )
    return (KernelCall(kernel=kernel, operands=spec.operands(_quads(spec), spec.constants())),)


def _quads(spec: Conv2dSpec) -> npt.NDArray[np.int32]:
    """Return weights as int32 (groups, rows, columns, quads, outputs of a group): four input channels in each."""
    rows, columns, inputs, outputs = spec.weights.shape
    padded = np.zeros((rows, columns, -(-inputs // 4) * 4, outputs), np.int8)
    padded[:, :, :inputs] = spec.weights
    quads = padded.reshape(rows, columns, -1, 4, spec.groups, outputs // spec.groups).transpose(4, 0, 1, 2, 5, 3)
    return np.ascontiguousarray(quads).view(np.int32)[..., 0]
