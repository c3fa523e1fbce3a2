"""float32 transposed convolution: an ordinary one for each phase of the output, which stores its pixels among the others.

With strides (s, t) the outputs whose row is r modulo s and whose column is c modulo t read the same taps, and neighbours of them
read neighbours of the input: no zero is multiplied and nothing is woven afterwards.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm.script.ir_builder import tirx as B

from ......runtime.shapes import bounded, smallest
from ..language.kernel import Kernel
from ..language.vectors import CHUNK_CYCLES, Buffer, prim_func
from .float_conv2d import core_of, tile_of
from .float_gemm import FloatGemm
from .float_spec import FloatConv2dSpec, Interleave
from .stored_weights import WeightDtype


@dataclass(frozen=True, kw_only=True, slots=True)
class FloatConv2dTransposeSpec:
    """A transposed convolution of float32 NHWC to [batch, out_height, out_width, out_channels].

    Pixel i of x and tap k meet at output i * stride + k * dilation - padding, for each axis; `padding` is (top, left).
    With `adds`, a tensor of the result's shape is added to the sums. The result is clamped to [low; high]. `weight_dtype` is what
    weights lie in memory as.
    """

    batch: int
    in_height: int
    in_width: int
    in_channels: int
    out_height: int
    out_width: int
    out_channels: int
    kernel: tuple[int, int]
    strides: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    groups: int
    adds: bool
    low: float
    high: float
    threads: int
    weight_dtype: WeightDtype = "float32"


@dataclass(frozen=True, slots=True)
class _Phase:
    """The taps that the outputs of one phase of an axis read, in the order of the inputs, and how these lie.

    Output number n of the phase reads inputs n - before + i * dilation through the taps [i].
    """

    taps: tuple[int, ...]
    before: int
    dilation: int
    outputs: int


def _phase(phase: int, *, outputs: int, taps: int, stride: int, padding: int, dilation: int) -> _Phase:
    """Return a phase of an axis: its output n and tap k meet at input n + (phase + padding - k * dilation) / stride."""
    count = -(-(outputs - phase) // stride)  # at least 0, for there is an output, and phases are less than the stride
    distances = {k: phase + padding - k * dilation for k in reversed(range(taps))}
    places = {k: distance // stride for k, distance in distances.items() if distance % stride == 0}
    steps = list(places.values())
    return _Phase(
        taps=tuple(places),
        before=-steps[0] if steps else 0,
        dilation=steps[1] - steps[0] if len(steps) > 1 else 1,
        outputs=count,
    )


def transposed_obstacle(spec: FloatConv2dTransposeSpec) -> str:
    """Return why no kernel is written for a transposed convolution, "" where one is."""
    for axis, phases in enumerate(_phases(spec)):
        for phase in phases:
            if not phase.taps:
                return f"stride {spec.strides[axis]} leaves outputs that no tap reaches"
    return ""


def float_conv2d_transpose(
    spec: FloatConv2dTransposeSpec, *, weight: npt.NDArray[np.float32], bias: npt.NDArray[np.float32], isa: str
) -> Kernel:
    """Return a kernel of clamp(conv2d_transpose(x, weight) + bias + addend), float32.

    Each output is one sum in the order of its inputs' rows, columns and channels, so it depends neither on tiles nor on threads.

    Parameters
    ----------
    spec
        Shapes and clamp; without `transposed_obstacle`.
    weight
        float32 (kernel_h, kernel_w, in_channels / groups, out_channels), the outputs of one group side by side.
    bias
        float32 (out_channels,).
    """
    assert not transposed_obstacle(spec), "the rule asks before"
    gemms = [
        FloatGemm(phase, weight[np.ix_(rows, columns)], bias, tile=tile_of(phase, isa), core=core_of(isa))
        for phase, rows, columns in _convolutions(spec)
    ]
    in_size = spec.batch * spec.in_height * spec.in_width * spec.in_channels
    out_size = spec.batch * spec.out_height * spec.out_width * spec.out_channels
    packed: list[npt.NDArray[Any]] = [*(gemm.constants["weights"] for gemm in gemms), gemms[0].constants["bias"]]
    names = [*(f"weights{number}" for number in range(len(gemms))), "bias"]
    arguments = [
        ("x", in_size, "float32"),
        *([("addend", out_size, "float32")] if spec.adds else []),
        *((name, values.size, str(values.dtype)) for name, values in zip(names, packed, strict=True)),
        ("out", out_size, "float32"),
    ]
    threads = max(1, min(spec.threads, len(gemms), int(sum(gemm.cycles for gemm in gemms) / CHUNK_CYCLES)))

    def emit(x: Buffer, *rest: Buffer) -> None:
        others, weights, (shared, out) = rest[: -2 - len(gemms)], rest[-2 - len(gemms) : -2], rest[-2:]

        def one(number: int) -> None:
            gemms[number].emit_serial(isa, x, *others, weights[number], shared, out)

        if threads == 1:
            for number in range(len(gemms)):
                one(number)
            return
        with B.parallel(0, threads) as chunk:
            for number in range(len(gemms)):
                with B.If(chunk == number * threads // len(gemms)), B.Then():
                    one(number)

    name = f"float.transposed {gemms[0].tile}"
    return Kernel(name=name, isa=isa, func=prim_func(arguments, emit), constants=tuple(packed))


def _phases(spec: FloatConv2dTransposeSpec) -> list[list[_Phase]]:
    sizes = (spec.out_height, spec.out_width)
    return [
        [
            _phase(
                phase,
                outputs=sizes[axis],
                taps=spec.kernel[axis],
                stride=spec.strides[axis],
                padding=spec.padding[axis],
                dilation=spec.dilation[axis],
            )
            for phase in range(bounded(smallest((spec.strides[axis], sizes[axis])), spec.strides[axis]))
        ]
        for axis in (0, 1)
    ]


def _convolutions(spec: FloatConv2dTransposeSpec) -> list[tuple[FloatConv2dSpec, tuple[int, ...], tuple[int, ...]]]:
    """Return the convolution of each phase with the taps of the kernel's rows and columns that it reads."""
    plain = FloatConv2dSpec(
        batch=spec.batch,
        in_height=spec.in_height,
        in_width=spec.in_width,
        in_channels=spec.in_channels,
        out_channels=spec.out_channels,
        kernel=(1, 1),
        groups=spec.groups,
        adds=spec.adds,
        low=spec.low,
        high=spec.high,
        weight_dtype=spec.weight_dtype,
    )
    rows, columns = _phases(spec)
    found: list[tuple[FloatConv2dSpec, tuple[int, ...], tuple[int, ...]]] = []
    for down, row in enumerate(rows):
        for across, column in enumerate(columns):
            place = Interleave(strides=spec.strides, first=(down, across), height=spec.out_height, width=spec.out_width)
            behind = [_behind(row, spec.in_height), _behind(column, spec.in_width)]
            phase = replace(
                plain,
                kernel=(len(row.taps), len(column.taps)),
                padding=(row.before, column.before, *behind),
                dilation=(row.dilation, column.dilation),
                interleave=place,
            )
            assert (phase.out_height, phase.out_width) == (row.outputs, column.outputs), "padding makes up for what is missing"
            found.append((phase, row.taps, column.taps))
    return found


def _behind(phase: _Phase, inputs: int) -> int:
    """Return the padding behind: how far the last output reads beyond the inputs, below 0 if it doesn't reach their end."""
    return (phase.outputs - 1) - phase.before + (len(phase.taps) - 1) * phase.dilation - (inputs - 1)
