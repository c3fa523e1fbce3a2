"""Our converters of TFLite ops that data counts: WHERE, and the choice of boxes by NON_MAX_SUPPRESSION_V4 and V5.

How many places WHERE gives depends on data, so it is an output of the model and nothing reads it. A choice of boxes has as many
rows as there may be, zeros behind what is chosen, and says how many these are: what reads it is converted as ever.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax

from ...ir.graph.places import places
from ...ir.graph.suppression import Suppression, suppression
from ...ir.untyped import ops
from ..frontend import RejectedOpError
from .base import BaseConverter, float_const

COUNTED_RESULTS = frozenset({"WHERE"})
"""Ops whose results have as many rows as data says, whatever shape the file states."""


class CountingConverter(BaseConverter):
    """Converters of ops whose results data counts."""

    OWN_OPS = COUNTED_RESULTS

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.convert_map["WHERE"] = self._where
        for version in (4, 5):
            self.convert_map[f"NON_MAX_SUPPRESSION_V{version}"] = self._suppression

    def _where(self, op: Any) -> Any:
        """Convert WHERE: the places of what is not 0; of a quantized tensor LiteRT compares integers as they are stored."""
        condition = self.get_input_tensors(op)[0]
        shape, dtype = self._shape(condition), self.get_tensor_type_str(condition.tensor.Type())
        if not shape:
            raise RejectedOpError("a condition without axes")
        if 0 in shape or not self.has_expr(condition.tensor_idx):
            value = np.zeros(shape) if 0 in shape else self.get_tensor_value(condition)
            return relax.const(np.argwhere(value).astype(np.int64), "int64")
        stored = self.get_tensor_expr(condition)
        if dtype != "bool":
            stored = self.bb.emit(ops.not_equal(stored, relax.const(0, dtype)))
        return places(stored)

    def _suppression(self, op: Any) -> Any:
        """Convert the choice of boxes: their numbers, their scores (V5), and how many there are (LiteRT, nms.h)."""
        boxes, scores, *limits = self.get_input_tensors(op)
        named = ("a count", "a limit of overlaps", "a limit of scores", "a sigma")
        values = [np.ravel(self._constant(*each))[0].item() for each in zip(limits, named, strict=False)]
        wanted, count = int(values[0]), self._shape(scores)[0]
        if self._shape(boxes) != [count, 4] or wanted < 0:
            raise RejectedOpError(f"{wanted} of boxes {self._shape(boxes)}, of {count} scores")
        sigma = float(values[3]) if len(values) > 3 else 0.0
        limit: Any = {"overlap": float(values[1]), "score": float(values[2]), "sigma": sigma, "reached": True}
        has_scores = len(self.get_output_tensors(op)) > 2
        if not wanted or not count:
            dtypes = ("int32", "float32") if has_scores else ("int32",)
            none: list[Any] = [*(relax.const(np.zeros(wanted, dtype)) for dtype in dtypes), relax.const(0, "int32")]
            return relax.Tuple(none)
        corners, marks = self._emitted(boxes, [1, count, 4]), self._emitted(scores, [1, 1, count])
        rows = self.bb.emit(suppression(corners, marks, Suppression(most=min(wanted, count), **limit)))
        return relax.Tuple(self._chosen(rows, corners, marks, [count, wanted], sigma, has_scores=has_scores))

    def _emitted(self, tensor: Any, shape: list[int]) -> Any:
        return self.bb.emit(ops.reshape(self.get_tensor_expr(tensor), shape))

    def _chosen(self, rows: Any, boxes: Any, scores: Any, counts: list[int], sigma: float, *, has_scores: bool) -> list[Any]:
        """Return numbers and scores of the chosen boxes, zeros behind, and how many they are."""
        emit, (count, wanted) = self.bb.emit, counts
        most = min(count, wanted)
        column = emit(ops.strided_slice(rows, axes=[1], begin=[2], end=[3]))
        numbers = emit(ops.astype(emit(ops.reshape(column, [most])), "int32"))
        found = emit(ops.greater_equal(numbers, relax.const(0, "int32")))
        places_of = emit(ops.maximum(numbers, relax.const(0, "int32")))
        many = emit(ops.sum(emit(ops.astype(found, "int32")), axis=[0]))
        results = [places_of]
        if has_scores:
            marks = emit(ops.take(emit(ops.reshape(scores, [count])), places_of, axis=0, mode="clip"))
            if sigma > 0:
                mine = emit(ops.take(emit(ops.reshape(boxes, [count, 4])), places_of, axis=0, mode="clip"))
                marks = emit(ops.multiply(marks, self._lowered(mine, most, sigma)))
            results.append(emit(ops.where(found, marks, float_const(0.0))))
        if wanted > most:
            dtypes = ("int32", "float32")
            gaps = [relax.const(np.zeros(wanted - most, dtype)) for dtype, _ in zip(dtypes, results, strict=False)]
            results = [emit(ops.concat([value, gap], 0)) for value, gap in zip(results, gaps, strict=True)]
        return [*results, many]

    def _lowered(self, boxes: Any, most: int, sigma: float) -> Any:
        """Return by what factor the scores of chosen boxes [most, 4] were lowered for what they share with earlier ones."""
        emit = self.bb.emit
        corners = [
            emit(ops.reshape(emit(ops.strided_slice(boxes, axes=[1], begin=[at], end=[at + 1])), [most])) for at in range(4)
        ]
        low = [emit(ops.minimum(corners[axis], corners[axis + 2])) for axis in (0, 1)]
        high = [emit(ops.maximum(corners[axis], corners[axis + 2])) for axis in (0, 1)]
        area = emit(ops.multiply(*(emit(ops.subtract(high[axis], low[axis])) for axis in (0, 1))))

        def pairs(function: Any, value: Any) -> Any:
            return emit(function(emit(ops.reshape(value, [most, 1])), emit(ops.reshape(value, [1, most]))))

        sides = [emit(ops.subtract(pairs(ops.minimum, high[axis]), pairs(ops.maximum, low[axis]))) for axis in (0, 1)]
        common = emit(ops.multiply(*(emit(ops.nn.relu(side)) for side in sides)))
        union = emit(ops.subtract(pairs(ops.add, area), common))
        is_area = emit(ops.greater(pairs(ops.minimum, area), float_const(0.0)))
        share = emit(ops.where(is_area, emit(ops.divide(common, union)), float_const(0.0)))
        earlier = relax.const(np.tri(most, k=-1, dtype=np.float32))
        squares = emit(ops.multiply(emit(ops.multiply(share, share)), earlier))
        return emit(ops.exp(emit(ops.multiply(emit(ops.sum(squares, axis=[1])), float_const(-0.5 / sigma)))))
