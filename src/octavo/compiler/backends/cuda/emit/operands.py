"""Tensors of ops that work element by element, in whatever layout each lies: the result takes that of its inputs."""

from __future__ import annotations

from collections.abc import Sequence

from ..emission import TO_NHWC, Value
from ..kernels.language.axes import Operand, broadcast_steps, dense_steps


def shared_layout(values: Sequence[Value], shape: tuple[int, ...]) -> bool:
    """Return whether a result of this shape lies NHWC: one of the tensors of its own shape does."""
    return len(shape) == 4 and any(value.is_nhwc and value.shape == shape for value in values)


def operand(value: Value, shape: tuple[int, ...], *, is_nhwc: bool) -> Operand:
    """Return how a tensor is read for a result of a shape in a layout, over which it is broadcast."""
    return Operand(dtype=value.dtype, steps=steps_of(value.shape, shape, lies_nhwc=value.is_nhwc, is_nhwc=is_nhwc))


def steps_of(own: tuple[int, ...], shape: tuple[int, ...], *, lies_nhwc: bool = False, is_nhwc: bool) -> tuple[int, ...]:
    """Return a tensor's steps along the axes of the result in memory; its own shape is the source's."""
    if lies_nhwc:
        lying = dense_steps([own[axis] for axis in TO_NHWC])
        steps = tuple(0 if own[axis] == 1 else lying[TO_NHWC.index(axis)] for axis in range(4))
    else:
        steps = broadcast_steps(own, shape)
    return tuple(steps[axis] for axis in TO_NHWC) if is_nhwc else steps
