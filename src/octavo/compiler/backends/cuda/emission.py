"""What emitters write to: launches in their order, and where each tensor of the graph lies."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ....numerics.arrays import Array
from ..tunable import Schedules
from .isa import Isa
from .kernel import BYTES, BoundKernel
from .kernels.language.calls import Input, KernelCall, Result, Scratch, one_call
from .kernels.matmuls.tile_choice import TilingChoice
from .kernels.move.transpose import transpose
from .plan import Buffer, Step

TO_NHWC = (0, 2, 3, 1)
TO_NCHW = (0, 3, 1, 2)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Value:
    """A tensor as it lies in memory, dense.

    `shape` is that of the source's graph; with `is_nhwc`, of rank 4 only, the graph has it as NCHW and memory as NHWC. With
    `axes` its axes are these of what lies in memory: a transposition that nobody has made, which products of two variables read.
    """

    buffer: Buffer
    shape: tuple[int, ...]
    dtype: str
    is_nhwc: bool = False
    axes: tuple[int, ...] | None = None

    @property
    def lying_shape(self) -> tuple[int, ...]:
        """Shape in memory."""
        return tuple(self.shape[axis] for axis in TO_NHWC) if self.is_nhwc else self.shape


@dataclass(frozen=True, slots=True)
class ResultType:
    """Shape and dtype of a composite's result in the source's graph."""

    shape: tuple[int, ...]
    dtype: str


@dataclass(kw_only=True, slots=True, eq=False)
class Emission:
    """The launches written so far.

    Attributes
    ----------
    isa
        What kernels may use.
    schedules
        Tilings that were measured to be best, by the keys of products.
    choice
        Of the tiles of products: by `schedules`, else by the model.
    steps
        Launches in their order.
    keys
        Of what can be chosen of a launch, by its place in `steps`.
    """

    isa: Isa
    schedules: Schedules = field(default_factory=dict[str, Any])
    choice: TilingChoice = field(init=False)
    steps: list[Step] = field(default_factory=list[Step])
    keys: dict[int, str] = field(default_factory=dict[int, str])
    _converted: dict[tuple[Buffer, tuple[int, ...], bool], Value] = field(
        default_factory=dict[tuple[Buffer, tuple[int, ...], bool], Value]
    )
    _constants: dict[tuple[str, tuple[int, ...], bytes], Buffer] = field(
        default_factory=dict[tuple[str, tuple[int, ...], bytes], Buffer]
    )
    _known: dict[tuple[object, ...], Value] = field(default_factory=dict[tuple[object, ...], Value])

    def __post_init__(self) -> None:
        """Make the choice."""
        self.choice = TilingChoice(isa=self.isa, schedules=self.schedules)

    def once(self, key: tuple[object, ...], make: Callable[[], Value]) -> Value:
        """Return what launches make, written when it is first asked for; `key` says what it is made of."""
        if key not in self._known:
            self._known[key] = make()
        return self._known[key]

    def new(self, shape: tuple[int, ...], dtype: str, *, is_nhwc: bool = False) -> Value:
        """Return a tensor whose memory nobody has written."""
        return Value(buffer=Buffer(math.prod(shape) * BYTES[dtype]), shape=shape, dtype=dtype, is_nhwc=is_nhwc)

    def constant(self, values: Array) -> Buffer:
        """Return memory that holds these values; equal ones share it."""
        values = np.ascontiguousarray(values)
        key = str(values.dtype), values.shape, values.tobytes()
        return self._constants.setdefault(key, Buffer(values.nbytes, "constant", 0, values))

    def given(self, values: Array) -> Value:
        """Return a constant as a tensor."""
        return Value(buffer=self.constant(values), shape=tuple(values.shape), dtype=str(values.dtype))

    def launch(self, bound: BoundKernel, inputs: Sequence[Value], result: Value) -> Value:
        """Launch a kernel on tensors that lie as it reads them, then its constants; return `result`, which it writes."""
        kernel, constants = bound
        return self.run(one_call(kernel, len(inputs), constants), inputs, result)

    def run(self, calls: Sequence[KernelCall], inputs: Sequence[Value], result: Value) -> Value:
        """Launch kernels on tensors that lie as they read them; return `result`, which they write."""
        scratch: dict[Scratch, Buffer] = {}
        for call in calls:
            buffers: list[Buffer] = []
            for operand in call.operands:
                if isinstance(operand, Input):
                    buffers.append(inputs[operand.number].buffer)
                elif isinstance(operand, Result):
                    buffers.append(result.buffer)
                elif isinstance(operand, Scratch):
                    buffers.append(scratch.setdefault(operand, Buffer(operand.size)))
                else:
                    buffers.append(self.constant(operand))
            if call.key:
                self.keys[len(self.steps)] = call.key
            self.steps.append((call.kernel, tuple(buffers)))
        return result

    def lying(self, value: Value, *, is_nhwc: bool) -> Value:
        """Return a tensor of rank 4 in a layout, converted once where it lies in the other one."""
        if len(value.shape) != 4 or value.is_nhwc == is_nhwc:
            return value
        key = value.buffer, value.shape, is_nhwc  # memory may be seen under several shapes
        if key not in self._converted:
            axes = TO_NHWC if is_nhwc else TO_NCHW
            self._converted[key] = self.transposed(value, axes, is_nhwc=is_nhwc)
        return self._converted[key]

    def lying_as_it_is(self, value: Value, *, is_nhwc: bool) -> Value | None:
        """Return a tensor in a layout where that takes no launch, else None."""
        if len(value.shape) != 4 or value.is_nhwc == is_nhwc:
            return value
        moves_nothing = value.shape[1] == 1 or math.prod(value.shape[2:]) == 1
        is_free = moves_nothing or (value.buffer, value.shape, is_nhwc) in self._converted
        return self.lying(value, is_nhwc=is_nhwc) if is_free else None

    def transposed(self, value: Value, axes: tuple[int, ...], *, is_nhwc: bool = False) -> Value:
        """Return a tensor whose memory is another one's with its axes in another order.

        Its shape is that of its memory, or with `is_nhwc` the given one's own, whose NHWC that memory is.
        """
        lying = value.lying_shape
        moved = tuple(lying[axis] for axis in axes)
        shape = value.shape if is_nhwc or value.is_nhwc else moved
        order = [axis for axis in axes if lying[axis] != 1]
        if order == sorted(order):  # moving axes of size 1 moves nothing
            return Value(buffer=value.buffer, shape=shape, dtype=value.dtype, is_nhwc=is_nhwc)
        result = Value(buffer=Buffer(value.buffer.size), shape=shape, dtype=value.dtype, is_nhwc=is_nhwc)
        return self.launch(transpose(lying, axes, value.dtype, self.isa), [value], result)
