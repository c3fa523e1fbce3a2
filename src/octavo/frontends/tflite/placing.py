"""Our converters of TFLite ops that write values at places, or sum along: updates, scattering, segments, diagonals, FAKE_QUANT.

TVM's of these do not build, or compute something else. What has a size that follows from values is refused.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import tflite
from tvm import relax

from ...ir.untyped import ops
from ..frontend import RejectedOpError
from ..placed import scatter_slices
from ..relax_ops import running_sum
from .base import BaseConverter, float_const

_SEGMENTS = {"SUM": "add", "PROD": "mul", "MAX": "max", "MIN": "min"}
_REFUSED = {
    "BITCAST": "another meaning of the same bits",
    "CONV_3D_TRANSPOSE": "a transposed convolution of volumes",
    "UNIQUE": "a result whose size follows from values",
    "WHILE": "how often it runs is known at run time only",
}


class PlacingConverter(BaseConverter):
    """Converters that write at places, and of sums along an axis."""

    OWN_OPS = frozenset({"DYNAMIC_UPDATE_SLICE"})

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        own: dict[str, Callable[..., Any]] = {
            "CUMSUM": self._running_sum,
            "DYNAMIC_UPDATE_SLICE": self._update_slice,
            "FAKE_QUANT": self._fake_quant,
            "MATRIX_DIAG": self._diagonal,
            "MATRIX_SET_DIAG": self._diagonal,
            "SCATTER_ND": self._scatter,
            "SEGMENT_SUM": functools.partial(self._segments, reduction="add"),
            "SPARSE_TO_DENSE": self._dense,
        }
        for name, reduction in _SEGMENTS.items():
            own[f"UNSORTED_SEGMENT_{name}"] = functools.partial(self._segments, reduction=reduction)
        for name, why in _REFUSED.items():
            own[name] = functools.partial(self._refuse, why=why)
        self.convert_map.update(own)

    def _refuse(self, op: Any, why: str) -> Any:
        raise RejectedOpError(why)

    def _dtype(self, tensor: Any) -> str:
        return self.get_tensor_type_str(tensor.tensor.Type())

    def _update_slice(self, op: Any) -> Any:
        """Convert DYNAMIC_UPDATE_SLICE: as far as it goes within, from the places on that are named, which may be computed."""
        data, update, start = self.get_input_tensors(op)
        output, shape, part = self.get_output_tensors(op)[0], self._shape(data), self._shape(update)
        if data.qnn_params and not all(self.has_same_qnn_params(data, each) for each in (update, output)):
            raise RejectedOpError("an update of another scale or zero point")
        begins = self.bb.emit(ops.astype(self.get_tensor_expr(start), "int32"))
        moved, covered = self._real(update), None
        for axis, (size, count) in enumerate(zip(shape, part, strict=True)):
            if size == count:
                continue
            begin = self.bb.emit(ops.strided_slice(begins, axes=[0], begin=[axis], end=[axis + 1]))
            begin = self.bb.emit(ops.minimum(self.bb.emit(ops.maximum(begin, _number(0))), _number(size - count)))
            place = self.bb.emit(ops.subtract(relax.const(np.arange(size, dtype=np.int32)), begin))
            within = self.bb.emit(ops.minimum(self.bb.emit(ops.maximum(place, _number(0))), _number(count - 1)))
            moved = self.bb.emit(ops.take(moved, within, axis=axis, mode="clip"))
            here = self.bb.emit(ops.equal(place, within))
            here = self.bb.emit(ops.reshape(here, [size if each == axis else 1 for each in range(len(shape))]))
            covered = here if covered is None else self.bb.emit(ops.logical_and(covered, here))
        result = moved if covered is None else ops.where(covered, moved, self._real(data))
        return self._quantized(result, output)

    def _running_sum(self, op: Any) -> Any:
        """Convert CUMSUM."""
        data, axis = self.get_input_tensors(op)
        options = self._get_builtin_options(op, tflite.CumsumOptions)
        shape = self._shape(data)
        along = int(np.ravel(self._constant(axis, "an axis"))[0]) % len(shape)
        value, is_reverse, is_exclusive = self.get_tensor_expr(data), bool(options.Reverse()), bool(options.Exclusive())
        return running_sum(self.bb.emit, value, shape, along, reverse=is_reverse, exclusive=is_exclusive)

    def _filled(self, shape: list[int], value: Any, dtype: str) -> Any:
        return relax.const(np.full(shape, value, dtype), dtype)

    def _indices_of(self, tensor: Any, depth: int) -> Any:
        """Return places as rows of `depth` indices."""
        if self.has_expr(tensor.tensor_idx):
            return self.bb.emit(ops.reshape(self.bb.emit(ops.astype(self.get_expr(tensor.tensor_idx), "int64")), [-1, depth]))
        value: Any = self.get_tensor_value(tensor)
        if value.size and value.min() < 0:
            raise RejectedOpError("a place below 0")
        return relax.const(value.astype(np.int64).reshape(-1, depth))

    def _scatter(self, op: Any) -> Any:
        """Convert SCATTER_ND: updates of one place are added."""
        indices, updates, wanted = self.get_input_tensors(op)
        shape = [int(dim) for dim in np.ravel(self._constant(wanted, "a shape"))]
        named, dtype = self._shape(indices), self._dtype(updates)
        places = self._indices_of(indices, named[-1])
        reduction = "add" if dtype != "bool" else "none"
        return scatter_slices(self.bb.emit, self._filled(shape, 0, dtype), places, self.get_tensor_expr(updates), reduction)

    def _dense(self, op: Any) -> Any:
        """Convert SPARSE_TO_DENSE: values, or one for all, at places of what is else one number."""
        indices, wanted, values, default = self.get_input_tensors(op)
        shape = [int(dim) for dim in np.ravel(self._constant(wanted, "a shape"))]
        places, named = self._indices_of(indices, len(shape)), self._shape(indices)
        count = named[0] if len(named) > 1 or (len(shape) == 1 and named) else 1
        updates = self.bb.emit(ops.broadcast_to(self.get_tensor_expr(values), [count]))
        base = self._filled(shape, np.ravel(self._constant(default, "a default"))[0], self._dtype(values))
        return scatter_slices(self.bb.emit, base, places, updates)

    def _segments(self, op: Any, reduction: str) -> Any:
        """Convert SEGMENT_SUM and UNSORTED_SEGMENT_...: rows that have the same number become one."""
        data, numbers, *_ = self.get_input_tensors(op)
        dtype, shape = self._dtype(data), self._shape(self.get_output_tensors(op)[0])
        value: Any = self._constant(numbers, "numbers of segments")
        if value.ndim != 1 or (value.size and not 0 <= value.min() <= value.max() < shape[0]):
            raise RejectedOpError(f"numbers of segments that are none of {shape[0]}")
        ends: Any = np.finfo(dtype) if dtype.startswith("float") else np.iinfo(dtype)
        nothing = {"add": 0, "mul": 1, "max": ends.min, "min": ends.max}[reduction]
        places = relax.const(value.astype(np.int64).reshape(-1, 1))
        return scatter_slices(self.bb.emit, self._filled(shape, nothing, dtype), places, self.get_tensor_expr(data), reduction)

    def _diagonal(self, op: Any) -> Any:
        """Convert MATRIX_DIAG and MATRIX_SET_DIAG: what is off the diagonal is 0, or as it was."""
        *data, diagonal = self.get_input_tensors(op)
        shape = self._shape(self.get_output_tensors(op)[0])
        rows, columns = shape[-2:]
        dtype = self._dtype(diagonal)
        around = self.get_tensor_expr(data[0]) if data else self._filled([], 0, dtype)
        within = relax.const(np.minimum(np.arange(columns, dtype=np.int32), min(rows, columns) - 1))
        wide = self.bb.emit(ops.take(self.get_tensor_expr(diagonal), within, axis=len(shape) - 2, mode="clip"))
        wide = self.bb.emit(ops.expand_dims(wide, len(shape) - 2))
        return ops.where(relax.const(np.eye(rows, columns, dtype=bool)), wide, around)

    def _fake_quant(self, op: Any) -> Any:
        """Convert FAKE_QUANT: rounded to steps that 0 is one of (LiteRT, NudgeQuantizationRange and FakeQuantizeArray)."""
        options = self._get_builtin_options(op, tflite.FakeQuantOptions)
        low, high = np.float32(options.Min()), np.float32(options.Max())
        first, last = np.float32(0), np.float32((1 << options.NumBits()) - 1)
        if not low < high or options.NarrowRange():
            raise RejectedOpError(f"a range from {low} to {high}, or a narrow one")
        scale = (high - low) / (last - first)
        from_low = first - low / scale
        zero = first if from_low < first else last if from_low > last else np.floor(from_low + np.float32(0.5))
        low, high = (float((end - zero) * scale) for end in (first, last))
        x = self.bb.emit(ops.subtract(ops.clip(self.get_tensor_expr(self.get_input_tensors(op)[0]), low, high), float_const(low)))
        steps = ops.floor(ops.add(ops.multiply(x, float_const(float(np.float32(1) / scale))), float_const(0.5)))
        return ops.add(ops.multiply(steps, float_const(float(scale))), float_const(low))


def _number(value: int) -> Any:
    return relax.const(value, "int32")
