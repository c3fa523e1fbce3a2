"""Our converters of TFLite ops about places in a tensor: lookups, GATHER_ND, ONE_HOT and TOPK_V2, and BROADCAST_TO."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import tflite
from tvm import relax

from ...ir.untyped import ops
from ..frontend import RejectedOpError
from .data_movement import MovingConverter


class IndexingConverter(MovingConverter):
    """Converters that read where indices say, or say where something is."""

    OWN_OPS = MovingConverter.OWN_OPS | {"BROADCAST_TO", "EMBEDDING_LOOKUP", "GATHER_ND", "ONE_HOT", "TOPK_V2"}

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.convert_map["BROADCAST_TO"] = self._broadcast
        self.convert_map["EMBEDDING_LOOKUP"] = self._embedding

    def _broadcast(self, op: Any) -> Any:
        """Convert BROADCAST_TO: repetition along the axes of size 1."""
        data, target = self.get_input_tensors(op)
        is_known = not self.has_expr(target.tensor_idx)
        if is_known and self._reads_others:
            out = [int(dim) for dim in self.get_tensor_value(target)]
        else:
            out = self._shape(self.get_output_tensors(op)[0])
        own = [*(1 for _ in range(len(out) - len(self._shape(data)))), *self._shape(data)]
        if len(own) != len(out) or any(a not in (1, b) for a, b in zip(own, out, strict=True)):
            raise RejectedOpError(f"a result of shape {out} from one of shape {self._shape(data)}")
        times = [wide // size if size else 1 for size, wide in zip(own, out, strict=True)]
        is_same_rank = own == self._shape(data)
        return self._one(op, data, lambda x: ops.tile(x if is_same_rank else ops.reshape(x, own), times))

    def _embedding(self, op: Any) -> Any:
        """Convert EMBEDDING_LOOKUP: rows of a table."""
        indices, table = self.get_input_tensors(op)
        index = self._gather_index(indices, self._shape(table)[0], clipped=False)
        flat = index if isinstance(index, relax.Expr) else relax.const(index)
        return self._one(op, table, lambda x: ops.take(x, flat, axis=0, mode="clip"))

    def convert_gather_nd(self, op: Any) -> Any:
        """Convert GATHER_ND: each tuple of indices is one into the axes that it names, taken as one axis."""
        data, indices = self.get_input_tensors(op)
        shape, places, out = self._shape(data), self._shape(indices), self._shape(self.get_output_tensors(op)[0])
        depth = places[-1] if places else 0
        if not 1 <= depth <= len(shape):
            raise RejectedOpError(f"indices of {depth} axes into {shape}")
        outer, rest = shape[:depth], shape[depth:]
        steps = np.asarray([math.prod(outer[axis + 1 :]) for axis in range(depth)], np.int32)
        index = self._places(indices, outer, steps)

        def taken(x: Any) -> Any:
            x = x if depth == 1 else ops.reshape(x, [math.prod(outer), *rest])
            x = ops.take(x, index, axis=0, mode="clip")
            return x if [math.prod(places[:-1]), *rest] == out else ops.reshape(x, out)

        return self._one(op, data, taken)

    def _places(self, indices: Any, outer: list[int], steps: Any) -> Any:
        """Return one index for each tuple of them, in a single axis: tuples times `steps`."""
        depth = len(outer)
        if not self.has_expr(indices.tensor_idx):
            value: Any = self.get_tensor_value(indices).reshape(-1, depth)
            if value.size and not ((value >= 0) & (value < np.asarray(outer))).all():
                raise RejectedOpError(f"an index out of range of {outer}")
            return relax.const((value * steps).sum(axis=1).astype(np.int32))
        tuples = self.bb.emit(ops.reshape(self.bb.emit(ops.astype(self.get_expr(indices.tensor_idx), "int32")), [-1, depth]))
        if depth == 1:
            return self.bb.emit(ops.reshape(tuples, [-1]))
        return self.bb.emit(ops.sum(self.bb.emit(ops.multiply(tuples, relax.const(steps))), axis=[1]))

    def convert_one_hot(self, op: Any) -> Any:
        """Convert ONE_HOT: a choice between two values; LiteRT takes their integers as they are stored."""
        indices, depth_tensor, *values = self.get_input_tensors(op)
        output = self.get_output_tensors(op)[0]
        depth = int(np.ravel(self._constant(depth_tensor, "a depth"))[0])
        rank = len(self._shape(indices))
        axis = self._get_builtin_options(op, tflite.OneHotOptions).Axis() % (rank + 1)
        where = relax.const(np.arange(depth, dtype=np.int32).reshape(-1, *(1 for _ in range(rank - axis))))
        wanted = self.bb.emit(ops.astype(self.get_tensor_expr(indices), "int32"))
        meets = self.bb.emit(ops.equal(self.bb.emit(ops.expand_dims(wanted, axis)), where))
        on, off = (self._single(value, output) for value in values)
        return self._quantized(ops.where(meets, on, off), output)

    def _single(self, tensor: Any, output: Any) -> Any:
        """Return the one value of a tensor, read with the parameters of `output` where that is quantized."""
        value = self.get_tensor_expr(tensor)
        value = value if not self._shape(tensor) else ops.reshape(value, [])
        return self.dequantize(value, output) if output.qnn_params else value

    def convert_topk_v2(self, op: Any) -> Any:
        """Convert TOPK_V2: the greatest values of each row, and where they are; order of integers is order of reals."""
        data, count = self.get_input_tensors(op)
        values, places = self.get_output_tensors(op)
        largest = int(np.ravel(self._constant(count, "a count"))[0])
        if not 1 <= largest <= self._shape(data)[-1]:
            raise RejectedOpError(f"the {largest} greatest of {self._shape(data)[-1]}")
        if data.qnn_params and not self.has_same_qnn_params(data, values):
            raise RejectedOpError("values of another scale or zero point than the data's")
        kept = self._move_with_params_of(data, lambda x: ops.topk(x, largest, ret_type="values"))
        dtype = self.get_tensor_type_str(places.tensor.Type())
        where = ops.topk(self._real(data), largest, ret_type="indices", dtype=dtype)
        return relax.Tuple([self.bb.emit(kept), self.bb.emit(where)])
