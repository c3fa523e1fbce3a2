"""Our converters of TFLite ops that only move values.

Each step of theirs stands between dequantize and quantize, with the scale and zero point of the result, and so tells what the
integers mean; 16-bit integers, for which there are no kernels, move as they are as long as scale and zero point stay the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import tflite
from tvm import relax

from ...ir.untyped import ops
from ...runtime.size import OpenSizeError, Size
from ..frontend import RejectedOpError
from .base import BaseConverter
from .open_shapes import reshaped


class MovingConverter(BaseConverter):
    """Converters of reshapes, slices, paddings, concatenations and the like."""

    OWN_OPS = frozenset(
        {"BATCH_TO_SPACE_ND", "CONCATENATION", "DEPTH_TO_SPACE", "EXPAND_DIMS", "GATHER", "MIRROR_PAD", "PACK", "PAD", "PADV2"}
        | {"RESHAPE", "RESIZE_BILINEAR", "RESIZE_NEAREST_NEIGHBOR", "REVERSE_V2", "SLICE", "SPACE_TO_BATCH_ND", "SPACE_TO_DEPTH"}
        | {"SPLIT", "SPLIT_V", "SQUEEZE", "STRIDED_SLICE", "TILE", "TRANSPOSE", "UNPACK"}
    )

    def _move_data(self, data: Any, outputs: list[Any], move: Callable[[Any], list[Any]]) -> Any:
        """Apply `move`, whose steps take their data first, step by step where every output keeps the parameters.

        Bytes that have parameters on one side alone are moved as they are, as LiteRT does.
        """
        keeps = all(not data.qnn_params or not output.qnn_params or self.has_same_qnn_params(data, output) for output in outputs)
        same_dtype = all(output.tensor.Type() == data.tensor.Type() for output in outputs)
        if keeps and same_dtype:
            source = self.get_tensor_expr(data)
            results = [self._requantized_steps(result, source, data) for result in move(source)]
        else:
            results = [self._quantized(result, output) for result, output in zip(move(self._real(data)), outputs, strict=True)]
        return results[0] if len(results) == 1 else relax.Tuple([self.bb.emit(result) for result in results])

    def _move_with_params_of(self, data: Any, move: Callable[[Any], Any]) -> Any:
        """Apply `move` and keep the parameters of `data`."""
        source = self.get_tensor_expr(data)
        return self._requantized_steps(move(source), source, data)

    def _requantized_steps(self, result: Any, source: Any, data: Any) -> Any:
        """Put each step that leads from `source` to `result` between a dequantize and a quantize."""
        if not data.qnn_params or result.same_as(source):
            return result
        inner = self._requantized_steps(result.args[0], source, data)
        step = relax.Call(result.op, [self.dequantize(inner, data), *result.args[1:]], result.attrs)
        return self.quantize(step, data)

    def _one(self, op: Any, data: Any, move: Callable[[Any], Any]) -> Any:
        return self._move_data(data, self.get_output_tensors(op), lambda x: [move(x)])

    def convert_reshape(self, op: Any) -> Any:
        """Convert RESHAPE, SQUEEZE and EXPAND_DIMS to the shape that the file states for the result."""
        [data, *target], output = self.get_input_tensors(op), self.get_output_tensors(op)[0]
        states_shape = output.tensor.ShapeLength() or not target
        shape = self._shape(output) if states_shape and not self._reads_others else self._reshaped(data, target, output)
        if math.prod(shape) != math.prod(self._shape(data)):
            raise RejectedOpError(f"a result of shape {shape} from one of shape {self._shape(data)}")
        return self._one(op, data, lambda x: ops.reshape(x, shape))

    def _reshaped(self, data: Any, target: list[Any], output: Any) -> list[Any]:
        """Return the shape of a result that the file states for other sizes."""
        known = self.known.get(output.tensor_idx)
        if known is not None:
            return list(known)
        declared = [int(dim) for dim in output.tensor.ShapeAsNumpy()]
        wanted = None
        if target and not self.has_expr(target[0].tensor_idx):
            wanted = [int(dim) for dim in np.ravel(self.get_tensor_value(target[0]))]
        shape = reshaped(self._shape(data), declared, wanted, self.declared or {})
        if shape is None:
            raise OpenSizeError(f"where the open sizes of {self._shape(data)} go in a reshape to {declared} is not clear")
        return shape

    def convert_squeeze(self, op: Any) -> Any:
        """Convert SQUEEZE."""
        return self.convert_reshape(op)

    def convert_expand_dims(self, op: Any) -> Any:
        """Convert EXPAND_DIMS."""
        return self.convert_reshape(op)

    def convert_transpose(self, op: Any) -> Any:
        """Convert TRANSPOSE."""
        data, order = self.get_input_tensors(op)
        axes = [int(axis) for axis in self._constant(order, "an order of axes")]
        return self._one(op, data, lambda x: ops.permute_dims(x, axes))

    def convert_tile(self, op: Any) -> Any:
        """Convert TILE."""
        data, times = self.get_input_tensors(op)
        repeats = [int(value) for value in self._constant(times, "repetitions")]
        return self._one(op, data, lambda x: ops.tile(x, repeats))

    def convert_slice(self, op: Any) -> Any:
        """Convert SLICE; a size of -1 reaches to the end."""
        data, first, sizes = self.get_input_tensors(op)
        begin = [int(value) for value in self._constant(first, "a begin")]
        size = [int(value) for value in self._constant(sizes, "a size")]
        shape = self._shape(data)
        end = [dim if count < 0 else start + count for dim, start, count in zip(shape, begin, size, strict=True)]
        # All of an axis of open size is left as it is: Relax could not tell that it is.
        axes = [axis for axis, dim in enumerate(shape) if begin[axis] or size[axis] >= 0 or not isinstance(dim, Size)]
        begin, end = ([bound[axis] for axis in axes] for bound in (begin, end))
        return self._one(op, data, lambda x: ops.strided_slice(x, axes=axes, begin=begin, end=end) if axes else x)

    def convert_strided_slice(self, op: Any) -> Any:
        """Convert STRIDED_SLICE; Python's slices resolve masks and negative positions, the result has the declared shape."""
        data, *bounds = self.get_input_tensors(op)
        begin, end, strides = ([int(v) for v in self._constant(bound, "bounds")] for bound in bounds)
        options = self._get_builtin_options(op, tflite.StridedSliceOptions)
        shape, output, others, dropped = self._shape(data), self.get_output_tensors(op)[0], self._reads_others, set[int]()
        if others and options.NewAxisMask():
            raise RejectedOpError("new axes where sizes are not the file's")
        ranges: list[tuple[int, tuple[Any, Any, int]]] = []
        for axis, place in sliced_axes(len(begin), len(shape), options.EllipsisMask(), options.NewAxisMask()):
            start, stop, step = begin[place], end[place], strides[place]
            bit = 1 << place
            if options.ShrinkAxisMask() & bit:
                first = start + shape[axis] if start < 0 else start
                part = (first, first + 1, 1)
                dropped.add(axis)
            elif isinstance(shape[axis], Size):
                part = _open_part(
                    None if options.BeginMask() & bit else start, None if options.EndMask() & bit else stop, step, shape[axis]
                )
            else:
                chosen = slice(None if options.BeginMask() & bit else start, None if options.EndMask() & bit else stop, step)
                part = chosen.indices(shape[axis])
            if part != (0, shape[axis], 1):
                ranges.append((axis, part))

        def move(x: Any) -> Any:
            kept = list(shape)
            for axis, part in ranges:
                if isinstance(shape[axis], Size):
                    kept[axis] = part[1] - part[0]
                    x = ops.strided_slice(x, axes=[axis], begin=[part[0]], end=[part[1]], assume_inbound=True)
                    continue
                taken = np.arange(*part)
                if not taken.size:
                    raise RejectedOpError("an empty result")
                kept[axis] = taken.size
                if part[2] > 0:
                    x = ops.strided_slice(x, axes=[axis], begin=[part[0]], end=[part[1]], strides=[part[2]])
                else:
                    x = ops.take(x, relax.const(taken.astype(np.int32)), axis=axis, mode="clip")
            out = [dim for axis, dim in enumerate(kept) if axis not in dropped] if others else self._shape(output)
            return x if kept == out else ops.reshape(x, out)

        return self._one(op, data, move)

    def convert_split(self, op: Any) -> Any:
        """Convert SPLIT into equal parts."""
        axis, data = self.get_input_tensors(op)
        return self._split(op, data, axis)

    def convert_split_v(self, op: Any) -> Any:
        """Convert SPLIT_V into parts of the declared sizes."""
        data, _, axis = self.get_input_tensors(op)
        return self._split(op, data, axis)

    def _split(self, op: Any, data: Any, axis_tensor: Any) -> Any:
        outputs = self.get_output_tensors(op)
        axis = int(np.ravel(self._constant(axis_tensor, "an axis"))[0]) % len(self._shape(data))
        ends = np.cumsum([int(output.tensor.ShapeAsNumpy()[axis]) for output in outputs]).tolist()
        if ends[-1] != self._shape(data)[axis]:
            raise RejectedOpError(f"parts of {ends[-1]} in all along axis {axis} of {self._shape(data)}")
        starts = [0, *ends[:-1]]
        return self._move_data(
            data,
            outputs,
            lambda x: [ops.strided_slice(x, axes=[axis], begin=[a], end=[b]) for a, b in zip(starts, ends, strict=True)],
        )

    def convert_unpack(self, op: Any) -> Any:
        """Convert UNPACK: each result is one slice, without the axis."""
        data, outputs = self.get_input_tensors(op)[0], self.get_output_tensors(op)
        axis = self._get_builtin_options(op, tflite.UnpackOptions).Axis() % len(self._shape(data))
        if len(outputs) != self._shape(data)[axis]:
            raise RejectedOpError(f"{len(outputs)} results along axis {axis} of {self._shape(data)}")

        def move(x: Any) -> list[Any]:
            slices = [ops.strided_slice(x, axes=[axis], begin=[i], end=[i + 1]) for i in range(len(outputs))]
            shape = self._shape(data)
            return [ops.reshape(part, shape[:axis] + shape[axis + 1 :]) for part in slices]

        return self._move_data(data, outputs, move)

    def convert_pack(self, op: Any) -> Any:
        """Convert PACK: a concatenation along a new axis."""
        output = self.get_output_tensors(op)[0]
        shape = self._shape(self.get_input_tensors(op)[0])
        axis = self._get_builtin_options(op, tflite.PackOptions).Axis() % (len(shape) + 1)
        part = [*shape[:axis], 1, *shape[axis:]]

        def form(tensor: Any) -> Any:
            source = self.get_tensor_expr(tensor)
            moved = self._requantized_steps(ops.reshape(source, part), source, tensor)
            return self.dequantize(moved, tensor) if tensor.qnn_params else moved

        return self._joined([form(tensor) for tensor in self.get_input_tensors(op)], output, axis, 0)

    def convert_concatenation(self, op: Any) -> Any:
        """Convert CONCATENATION, of equal or different parameters."""
        output = self.get_output_tensors(op)[0]
        options = self._get_builtin_options(op, tflite.ConcatenationOptions)
        tensors = self.get_input_tensors(op)
        axis = options.Axis() % len(self._shape(tensors[0]))
        # LiteRT copies 16-bit integers as they are stored: they mean what the result's parameters make of them.
        is_copy = output.qnn_params and self.get_tensor_type_str(output.tensor.Type()) == "int16"
        copied = [self.dequantize(self.get_tensor_expr(tensor), output) for tensor in tensors] if is_copy else None
        parts = copied or [self._real(tensor) for tensor in tensors]
        return self._joined(parts, output, axis, options.FusedActivationFunction())

    def _joined(self, parts: list[Any], output: Any, axis: int, activation: int) -> Any:
        return self._finish(ops.concat(parts, axis=axis), output, activation)

    def convert_gather(self, op: Any) -> Any:
        """Convert GATHER; constant indices are checked here, others are clipped at run time."""
        data, indices = self.get_input_tensors(op)
        options = self._get_builtin_options(op, tflite.GatherOptions)
        shape = self._shape(data)
        axis = options.Axis() % len(shape)
        batch = options.BatchDims() % max(len(self._shape(indices)), 1) if options.BatchDims() < 0 else options.BatchDims()
        out = [*shape[:axis], *self._shape(indices)[batch:], *shape[axis + 1 :]]
        if batch > axis or shape[:batch] != self._shape(indices)[:batch]:
            raise RejectedOpError(f"batch_dims = {batch} with axis {axis} of {shape} and indices {self._shape(indices)}")
        index = self._gather_index(indices, shape[axis], clipped=batch > 0)
        if not batch:
            flat = index if isinstance(index, relax.Expr) else relax.const(index.reshape(-1))
            if isinstance(index, relax.Expr) and len(self._shape(indices)) != 1:
                flat = self.bb.emit(ops.reshape(index, [-1]))
            wide = [*shape[:axis], math.prod(self._shape(indices)), *shape[axis + 1 :]]

            def full(x: Any) -> Any:
                taken = ops.take(x, flat, axis=axis, mode="clip")
                return taken if wide == out else ops.reshape(taken, out)

            return self._one(op, data, full)
        return self._one(op, data, lambda x: self._gathered_by_batch(x, index, shape, out, axis, batch))

    def _gather_index(self, indices: Any, extent: int, *, clipped: bool) -> Any:
        """Return indices into an axis of `extent` elements: an array where they are constant, else an expression."""
        if self.has_expr(indices.tensor_idx):
            index = self.bb.emit(ops.astype(self.get_expr(indices.tensor_idx), "int32"))
            if not clipped:
                return index
            bounds = (relax.const(bound, "int32") for bound in (0, extent - 1))
            return self.bb.emit(ops.minimum(self.bb.emit(ops.maximum(index, next(bounds))), next(bounds)))
        value: Any = self.get_tensor_value(indices)
        if value.size and not 0 <= value.min() <= value.max() < extent:
            raise RejectedOpError(f"an index out of range on an axis of {extent}")
        return value.astype(np.int32)

    def _gathered_by_batch(self, x: Any, index: Any, shape: list[int], out: list[int], axis: int, batch: int) -> Any:
        """Gather along `axis` from each of the first `batch` axes' elements by indices of its own.

        These elements lie one behind the other in one axis, and the indices into it move on by as much.
        """
        rank, images, extent = len(shape), math.prod(shape[:batch]), shape[axis]
        order = [*range(batch), axis, *(other for other in range(batch, rank) if other != axis)]
        inner = [shape[other] for other in order[batch + 1 :]]
        x = x if order == list(range(rank)) else ops.permute_dims(x, order)
        x = ops.reshape(x, [images * extent, *inner])
        moved = (np.arange(images, dtype=np.int32) * extent)[:, None]
        if isinstance(index, relax.Expr):
            rows = self.bb.emit(ops.reshape(index, [images, -1]))
            rows = self.bb.emit(ops.add(rows, relax.const(moved)))
            flat: Any = self.bb.emit(ops.reshape(rows, [-1]))
        else:
            flat = relax.const((index.reshape(images, -1) + moved).reshape(-1))
        x = ops.take(x, flat, axis=0, mode="clip")
        count = len(out) - rank + 1  # axes that the indices leave in the result, behind the batch and what stands before `axis`
        taken = out[axis : axis + count]
        x = ops.reshape(x, [*shape[:batch], *taken, *inner])
        front = axis - batch
        if not front:
            return x
        stays = [batch + count + place for place in range(front)]
        back = [*range(batch), *stays, *range(batch, batch + count), *range(batch + count + front, len(out))]
        return ops.permute_dims(x, back)

    def convert_reverse_v2(self, op: Any) -> Any:
        """Convert REVERSE_V2."""
        data, axes = self.get_input_tensors(op)
        flipped = [int(value) % len(self._shape(data)) for value in np.ravel(self._constant(axes, "axes"))]

        def move(x: Any) -> Any:
            for axis in flipped:
                x = ops.flip(x, axis)
            return x

        return self._one(op, data, move)

    def convert_pad(self, op: Any) -> Any:
        """Convert PAD and PADV2; quantized ones pad real values, so that parameters need not be equal."""
        data, amounts, *fills = self.get_input_tensors(op)
        widths = [int(width) for width in np.ravel(self._constant(amounts, "paddings"))]
        fill = 0.0
        if fills:
            fill = float(np.ravel(self._constant(fills[0], "a fill value"))[0])
            if fills[0].qnn_params:
                scale, zero_point = (float(fills[0].qnn_params[key].value.numpy()) for key in ("scale", "zero_point"))
                fill = float(np.float32(fill - zero_point) * np.float32(scale))
        return self._quantized(ops.nn.pad(self._real(data), widths, pad_value=fill), self.get_output_tensors(op)[0])

    def convert_mirror_pad(self, op: Any) -> Any:
        """Convert MIRROR_PAD, with or without the border itself, by the positions each axis is read at."""
        data, amounts = self.get_input_tensors(op)
        options = self._get_builtin_options(op, tflite.MirrorPadOptions)
        mode = "reflect" if options.Mode() == tflite.MirrorPadMode.REFLECT else "symmetric"
        widths = self._constant(amounts, "paddings").reshape(-1, 2).tolist()

        def move(x: Any) -> Any:
            for axis, (size, width) in enumerate(zip(self._shape(data), widths, strict=True)):
                if any(width):
                    positions: Any = np.pad(np.arange(size), tuple(width), mode=mode)
                    x = ops.take(x, relax.const(positions.astype(np.int32)), axis=axis, mode="clip")
            return x

        return self._one(op, data, move)

    def convert_space_to_depth(self, op: Any) -> Any:
        """Convert SPACE_TO_DEPTH: blocks of pixels become channels."""
        data, output = self.get_input_tensors(op)[0], self.get_output_tensors(op)[0]
        block = self._get_builtin_options(op, tflite.SpaceToDepthOptions).BlockSize()
        batch, height, width, channels = self._shape(output)
        inner = [batch, height, block, width, block, channels // (block * block)]
        return self._one(op, data, lambda x: self._shuffled(x, inner, [0, 1, 3, 2, 4, 5], self._shape(output)))

    def convert_depth_to_space(self, op: Any) -> Any:
        """Convert DEPTH_TO_SPACE: channels become blocks of pixels."""
        data, output = self.get_input_tensors(op)[0], self.get_output_tensors(op)[0]
        block = self._get_builtin_options(op, tflite.DepthToSpaceOptions).BlockSize()
        batch, height, width, channels = self._shape(data)
        inner = [batch, height, width, block, block, channels // (block * block)]
        return self._one(op, data, lambda x: self._shuffled(x, inner, [0, 1, 3, 2, 4, 5], self._shape(output)))

    def _shuffled(self, x: Any, inner: list[int], axes: list[int], out: list[int]) -> Any:
        return ops.reshape(ops.permute_dims(ops.reshape(x, inner), axes), out)

    def convert_space_to_batch_nd(self, op: Any) -> Any:
        """Convert SPACE_TO_BATCH_ND: pads with real 0, then rows and columns of a block become images."""
        data, blocks, amounts = self.get_input_tensors(op)
        output = self.get_output_tensors(op)[0]
        block = [int(value) for value in self._constant(blocks, "a block shape")]
        widths = [int(value) for value in np.ravel(self._constant(amounts, "paddings"))]
        batch, *rest = self._shape(data)
        count = len(block)
        sizes = [size + widths[2 * i] + widths[2 * i + 1] for i, size in enumerate(rest[:count])]
        inner = [batch, *(part for size, b in zip(sizes, block, strict=True) for part in (size // b, b)), *rest[count:]]
        axes = [*range(2, 2 * count + 1, 2), 0, *range(1, 2 * count, 2), *range(2 * count + 1, len(inner))]
        padding = [0, 0, *widths, *(0 for _ in range(2 * (len(rest) - count)))]
        if not any(widths):
            return self._one(op, data, lambda x: self._shuffled(x, inner, axes, self._shape(output)))
        # The padding is real 0, which is the zero point among integers.
        padded = self._quantized(ops.nn.pad(self._real(data), padding), output)
        return self._shuffled(padded, inner, axes, self._shape(output))

    def convert_batch_to_space_nd(self, op: Any) -> Any:
        """Convert BATCH_TO_SPACE_ND: images of a block become rows and columns, then the crops go."""
        data, blocks, amounts = self.get_input_tensors(op)
        output = self.get_output_tensors(op)[0]
        block = [int(value) for value in self._constant(blocks, "a block shape")]
        crops = self._constant(amounts, "crops").reshape(-1, 2).tolist()
        batch, *rest = self._shape(data)
        count = len(block)
        inner = [*block, batch // math.prod(block), *rest]
        axes = [count, *(axis for i in range(count) for axis in (count + 1 + i, i)), *range(2 * count + 1, len(inner))]
        full = [inner[count], *(size * b for size, b in zip(rest, block, strict=False)), *rest[count:]]
        begin = [int(crop[0]) for crop in crops]
        end = [size - int(crop[1]) for size, crop in zip(full[1:], crops, strict=False)]
        assert self._shape(output)[1 : count + 1] == [b - a for a, b in zip(begin, end, strict=True)]

        def move(x: Any) -> Any:
            x = self._shuffled(x, inner, axes, full)
            cropped = any(any(crop) for crop in crops)
            return ops.strided_slice(x, axes=list(range(1, count + 1)), begin=begin, end=end) if cropped else x

        return self._one(op, data, move)

    def convert_resize_bilinear(self, op: Any) -> Any:
        """Convert RESIZE_BILINEAR, on real values."""
        options = self._get_builtin_options(op, tflite.ResizeBilinearOptions)
        data = self.get_input_tensors(op)[0]
        result = self._resized(self._real(data), op, "linear", options, "")
        return self._quantized(result, self.get_output_tensors(op)[0])

    def convert_resize_nearest_neighbor(self, op: Any) -> Any:
        """Convert RESIZE_NEAREST_NEIGHBOR: floor of the scaled position, its nearest integer with aligned corners."""
        options = self._get_builtin_options(op, tflite.ResizeNearestNeighborOptions)
        rounding = "round_prefer_ceil" if options.AlignCorners() or options.HalfPixelCenters() else "floor"
        data = self.get_input_tensors(op)[0]
        return self._one(op, data, lambda x: self._resized(x, op, "nearest_neighbor", options, rounding))

    def _resized(self, x: Any, op: Any, method: str, options: Any, rounding: str) -> Any:
        size = [int(value) for value in np.ravel(self._constant(self.get_input_tensors(op)[1], "a size"))]
        if options.AlignCorners() and options.HalfPixelCenters():
            raise RejectedOpError("aligned corners and half-pixel centers at once")
        mode = "align_corners" if options.AlignCorners() else "half_pixel" if options.HalfPixelCenters() else "asymmetric"
        return ops.image.resize2d(
            x, tuple(size), None, layout="NHWC", method=method, coordinate_transformation_mode=mode, rounding_method=rounding
        )


def _open_part(first: int | None, last: int | None, step: int, size: int | Size) -> tuple[Any, Any, int]:
    """Return the range of an open axis that bounds leave; ones that may lie beyond its end are rejected."""
    begin: Any = 0 if first is None else first
    end: Any = size if last is None else size + last
    if step != 1 or begin < 0 or (last is not None and last >= 0):
        raise OpenSizeError(f"bounds {first}..{last} of step {step} lie within an axis of size {size}, which is open")
    return begin, end, 1


def sliced_axes(count: int, rank: int, ellipsis: int, new_axes: int) -> list[tuple[int, int]]:
    """Return which axis of a tensor each of `count` bounds of a STRIDED_SLICE is about: pairs (axis, place of the bounds).

    Bit i of `ellipsis` says that place i stands for as many whole axes as the others leave, one of `new_axes` that it adds an
    axis (the ellipsis comes first where both are set).
    """
    places = range(count)
    full = next((place for place in places if ellipsis >> place & 1), count)
    added = [place for place in places if place != full and new_axes >> place & 1]
    named = count - len(added) - (full < count)
    pairs: list[tuple[int, int]] = []
    axis = 0
    for place in places:
        if place == full:
            axis += rank - named
        elif place not in added:
            pairs.append((axis, place))
            axis += 1
    if axis > rank or named > rank:
        raise RejectedOpError(f"bounds of {named} axes of {rank}")
    return pairs
