"""A copy of some input rows as products of int8 take them, which read them as often as there are taps or panels."""

from __future__ import annotations

from dataclasses import dataclass

from tvm.script.ir_builder import tirx as T

from ...language.vectors import Expr
from ..loops.scratch import Scratch
from ..spec import Conv2dSpec


@dataclass(frozen=True, kw_only=True, slots=True)
class FlippedScratch(Scratch):
    """A padded copy of x - 128, as int8 in bytes of uint8; its padding is one of `flipped_padding`."""

    def _element(self, value: Expr) -> Expr:
        return value ^ T.uint8(128)


def flipped_padding(spec: Conv2dSpec, at_run_time: Expr | None) -> Expr:
    """Return what padding is filled with; the zero point is a constant unless it comes at run time."""
    return T.uint8(spec.input_zero_point ^ 128) if at_run_time is None else at_run_time ^ T.uint8(128)
