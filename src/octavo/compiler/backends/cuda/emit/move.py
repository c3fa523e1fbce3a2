"""Ops that move values: views of the same memory where nothing changes, else one kernel that moves and changes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from .....ir.composites.movement import ConcatOp, GatherOp, MoveOp, TakeOp, known_maps
from ..emission import TO_NCHW, TO_NHWC, Emission, Value
from ..kernel import BYTES
from ..kernels.language.axes import dense_steps
from ..kernels.move.concat import MAX_PARTS, Part, concat, joins
from ..kernels.move.gather import GatherAxis, Run, gather, moves_nothing
from ..kernels.move.take import take
from ..kernels.quantization.change import KEPT, Change, change, change_of

Maps = Sequence[tuple[int, ...]]


def emit_move(op: MoveOp, emission: Emission, inputs: Mapping[str, Value]) -> Value:
    """Launch a reshape, a transposition or a change of parameters, or return a view."""
    x, how = inputs[op.x.name], change_of(op.x, op.y)
    shape = op.y.shape
    if op.axes is None:
        is_nhwc = x.is_nhwc and shape == x.shape
        order = TO_NHWC if is_nhwc else tuple(range(len(x.shape)))
        return _emit_movement(emission, x, order, how, shape, is_nhwc=is_nhwc)
    # NHWC memory of what becomes NCHW stays as it is: the result lies NHWC.
    is_nhwc = op.axes == TO_NCHW and not x.is_nhwc and shape == tuple(x.shape[axis] for axis in op.axes)
    order = tuple(op.axes[axis] for axis in TO_NHWC) if is_nhwc else op.axes
    return _emit_movement(emission, x, order, how, shape, is_nhwc=is_nhwc)


def emit_gather(op: GatherOp, emission: Emission, inputs: Mapping[str, Value]) -> Value:
    """Launch a movement by indices along each axis."""
    x, how = inputs[op.x.name], change_of(op.x, op.y)
    shape = op.y.shape
    maps = known_maps(op.maps)
    is_nhwc = x.is_nhwc and shape == tuple(map(len, maps))
    order = TO_NHWC if is_nhwc else tuple(range(len(x.shape)))
    return _emit_movement(emission, x, order, how, shape, is_nhwc=is_nhwc, maps=maps, fill=op.fill)


def _emit_movement(
    emission: Emission,
    x: Value,
    order: tuple[int, ...],
    how: Change,
    shape: tuple[int, ...],
    *,
    is_nhwc: bool,
    maps: Maps | None = None,
    fill: int = 0,
) -> Value:
    """Return a result whose memory has the axes of x, as the source counts them, in this order."""
    axes = gather_axes(x, order, maps)
    if not moves_nothing(axes):
        result = emission.new(shape, how.to, is_nhwc=is_nhwc)
        return emission.launch(gather(axes, fill, how, emission.isa), [x], result)
    return changed(emission, Value(buffer=x.buffer, shape=shape, dtype=x.dtype, is_nhwc=is_nhwc), how)


def changed(emission: Emission, x: Value, how: Change, *, name: str = "change") -> Value:
    """Return a tensor of the same shape and layout with each integer changed: x itself where none is."""
    if how.kind == KEPT:
        return x
    size = x.buffer.size // BYTES[x.dtype]
    result = emission.new(x.shape, how.to, is_nhwc=x.is_nhwc)
    return emission.launch(change(size, how, emission.isa, name=name), [x], result)


def gather_axes(x: Value, order: Sequence[int], maps: Maps | None = None) -> list[GatherAxis]:
    """Return axes of x, as the source counts them, in an order, each with its indices."""
    steps = dense_steps(x.lying_shape)
    axes: list[GatherAxis] = []
    for axis in order:
        step = steps[TO_NHWC.index(axis)] if x.is_nhwc else steps[axis]
        indices = None if maps is None else tuple(maps[axis])
        axes.append(GatherAxis(size=x.shape[axis] if indices is None else len(indices), step=step, indices=indices))
    return axes


def emit_concat(op: ConcatOp, emission: Emission, inputs: Mapping[str, Value]) -> Value:
    """Launch a concatenation: up to four inputs at once where they lie as the result does, else each is moved to its place."""
    shape = op.y.shape
    values: list[Value] = []
    for number, tensor in enumerate(op.inputs):
        values.append(emission.given(op.constants[number]) if number in op.constants else inputs[tensor.name])
    is_nhwc = len(shape) == 4 and any(value.is_nhwc for value in values)
    order = TO_NHWC if is_nhwc else tuple(range(len(shape)))
    result = emission.new(shape, op.y.tensor.params.dtype, is_nhwc=is_nhwc)
    at = order.index(op.axis)
    inner, first, parts = dense_steps(result.lying_shape)[at], 0, list[Part]()
    for value, tensor in zip(values, op.inputs, strict=True):
        parts.append(Part(length=value.shape[op.axis] * inner, first=first, change=change_of(tensor, op.y)))
        first += parts[-1].length
    outer, pitch = math.prod(result.lying_shape[:at]), first
    if joins(parts) and all(moves_nothing(gather_axes(value, order)) for value in values):
        for start in range(0, len(parts), MAX_PARTS):
            some, read = parts[start : start + MAX_PARTS], values[start : start + MAX_PARTS]
            kernel = concat(some, outer, pitch, emission.isa)
            emission.launch((kernel, ()), [*read, *[read[-1]] * (MAX_PARTS - len(read))], result)
        return result
    for value, part in zip(values, parts, strict=True):
        run = Run(length=part.length, pitch=pitch, first=part.first)
        kernel_of_part = gather(gather_axes(value, order), 0, part.change, emission.isa, run=run, name="concat")
        emission.launch(kernel_of_part, [value], result)
    return result


def emit_take(op: TakeOp, emission: Emission, inputs: Mapping[str, Value]) -> Value:
    """Launch a choice of elements along an axis."""
    x = emission.lying(inputs[op.x.name], is_nhwc=False) if op.values is None else emission.given(op.values)
    indices = emission.lying(inputs[op.indices], is_nhwc=False)
    count, how = math.prod(indices.shape), change_of(op.x, op.y)
    kernel = take(op.x.shape, op.axis, count, indices.dtype, how, emission.isa)
    return emission.launch(kernel, [x, indices], emission.new(op.y.shape, how.to))
