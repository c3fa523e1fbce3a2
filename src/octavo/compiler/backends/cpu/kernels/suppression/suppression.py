"""Non-maximum suppression: of each class the boxes of best scores, less those that overlap a better one. One text for every ISA.

As ONNX's operator reference and ONNX Runtime have it: a box is compared with the chosen ones of its class alone, equal scores
go by the number of the box, corners may come in any order, and boxes without an area rule nothing out. LiteRT rules out what
reaches the limit, and may lower scores by what boxes share with those that were chosen. Results of all classes stand one behind
the other, so one thread does it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm.script.ir_builder import tirx as B

from ..language.float_function import ElementMath
from ..language.kernel import Kernel
from ..language.vectors import Buffer, Expr, prim_func


@dataclass(frozen=True, kw_only=True, slots=True)
class SuppressionSpec:
    """float32 boxes [batch, boxes, 4] and scores [batch, classes, boxes] to int64 [batch * classes * most, 3].

    `overlap` is the share of a union that an intersection must not pass, or not reach (`reached`), `score` what a score must be
    above (None: anything). Above 0, `sigma` is that of the bell curve by which shares lower scores.
    """

    batch: int
    classes: int
    boxes: int
    most: int
    overlap: float
    score: float | None
    reached: bool = False
    sigma: float = 0.0


def suppression(spec: SuppressionSpec, *, isa: str) -> Kernel:
    """Return the kernel."""
    rows = spec.batch * spec.classes * spec.most
    sizes = [
        ("boxes", spec.batch * spec.boxes * 4, "float32"),
        ("scores", spec.batch * spec.classes * spec.boxes, "float32"),
        ("y", rows * 3, "int64"),
    ]

    def emit(boxes: Buffer, scores: Buffer, y: Buffer) -> None:
        writer = _Chosen(spec, boxes, scores, y)
        with B.serial(0, rows * 3) as place:
            B.buffer_store(y, B.int64(-1), [place])
        with B.serial(0, spec.batch) as batch, B.serial(0, spec.classes) as kind:
            writer.emit_class(batch, kind)

    return Kernel(name="float.non_max_suppression", isa=isa, func=prim_func(sizes, emit))


class _Chosen:
    """Emits the choice of one class: `left` are the boxes that are neither chosen nor ruled out, in their order."""

    def __init__(self, spec: SuppressionSpec, boxes: Buffer, scores: Buffer, y: Buffer) -> None:
        self._spec, self._boxes, self._given, self._y = spec, boxes, scores, y
        self._scores: Any = B.alloc_buffer((spec.boxes,), "float32")  # of one class
        self._left: Any = B.alloc_buffer((spec.boxes + 1,), "int32")
        self._count: Any = B.alloc_buffer((1,), "int32", scope="local")
        self._best: Any = B.alloc_buffer((1,), "int32", scope="local")
        self._kept: Any = B.alloc_buffer((1,), "int32", scope="local")
        self._row: Any = B.alloc_buffer((1,), "int32", scope="local")
        B.buffer_store(self._row, B.int32(0), [0])
        B.buffer_store(self._left, B.int32(0), [0])

    def emit_class(self, batch: Expr, kind: Expr) -> None:
        spec = self._spec
        first = B.Bind((batch * spec.classes + kind) * spec.boxes)
        B.buffer_store(self._count, B.int32(0), [0])
        with B.serial(0, spec.boxes) as box:
            B.buffer_store(self._left, box, [self._count[0]])
            B.buffer_store(self._scores, self._given[first + box], [box])
            B.buffer_store(self._count, self._count[0] + self._number(self._is_good(box)), [0])
        with B.serial(0, spec.most):
            self._emit_choice(batch, kind)

    def _is_good(self, box: Expr) -> Expr:
        """Return whether the score of a box is high enough."""
        return B.bool(True) if self._spec.score is None else self._scores[box] > B.float32(self._spec.score)

    def _emit_choice(self, batch: Expr, kind: Expr) -> None:
        """Choose the best of what is left, and leave those that it does not rule out; nothing happens where none is left."""
        B.buffer_store(self._best, B.int32(0), [0])
        with B.serial(0, self._count[0]) as place:
            is_better = self._scores[self._left[place]] > self._scores[self._left[self._best[0]]]
            B.buffer_store(self._best, B.Select(is_better, place, self._best[0]), [0])
        chosen = B.Bind(self._left[self._best[0]])
        any_left = B.Bind(self._number(self._count[0] > 0))
        at = B.Bind(self._row[0] * 3)
        with B.serial(0, any_left):  # a condition: past the last row there is no room
            for column, value in enumerate((batch, kind, chosen)):
                B.buffer_store(self._y, B.Cast("int64", value), [at + column])
        B.buffer_store(self._row, self._row[0] + any_left, [0])
        mine = self._corners(batch, chosen)
        B.buffer_store(self._kept, B.int32(0), [0])
        with B.serial(0, self._count[0]) as place:
            box = B.Bind(self._left[place])
            B.buffer_store(self._left, box, [self._kept[0]])
            share = B.Bind(self._share(mine, self._corners(batch, box)))
            limit = B.float32(self._spec.overlap)
            is_out = B.Or(box == chosen, share >= limit if self._spec.reached else share > limit)
            if self._spec.sigma > 0:
                lowered = ElementMath(1).exp(self._product(share, share) * B.float32(-0.5 / self._spec.sigma))
                B.buffer_store(self._scores, self._product(self._scores[box], lowered), [box])
                is_out = B.Or(is_out, B.Not(self._is_good(box)))
            B.buffer_store(self._kept, self._kept[0] + B.int32(1) - self._number(is_out), [0])
        B.buffer_store(self._count, self._kept[0], [0])

    def _corners(self, batch: Expr, box: Expr) -> list[Expr]:
        """Return least and greatest of either coordinate, and the area."""
        at = B.Bind((batch * self._spec.boxes + box) * 4)
        a, b, c, d = (B.Bind(self._boxes[at + place]) for place in range(4))
        low, high = [B.Bind(B.min(*pair)) for pair in ((a, c), (b, d))], [B.Bind(B.max(*pair)) for pair in ((a, c), (b, d))]
        return [*low, *high, self._product(high[0] - low[0], high[1] - low[1])]

    def _share(self, mine: list[Expr], other: list[Expr]) -> Expr:
        """Return the share of the intersection in the union, 0 where a box has no area."""
        sides = [B.Bind(B.min(mine[axis + 2], other[axis + 2]) - B.max(mine[axis], other[axis])) for axis in (0, 1)]
        zero = B.float32(0)
        common = self._product(B.max(sides[0], zero), B.max(sides[1], zero))
        union = B.Bind(mine[4] + other[4] - common)
        share = B.Bind(common / B.Select(union > zero, union, B.float32(1)))
        is_area = B.And(B.And(common > zero, union > zero), B.And(mine[4] > zero, other[4] > zero))
        return B.Select(is_area, share, zero)

    def _product(self, a: Expr, b: Expr) -> Expr:
        """Return a product that is rounded by itself."""
        return B.Bind(ElementMath(1).fenced(a * b))

    def _number(self, condition: Expr) -> Expr:
        return B.Select(condition, B.int32(1), B.int32(0))
