"""What was folded, as data."""

from __future__ import annotations

from dataclasses import dataclass

from ..identity import TensorId


@dataclass(frozen=True, kw_only=True, slots=True)
class Fold:
    """An op that was folded into a convolution: its output `tensor` now comes from the convolution, `gone` is no more.

    `op` is "nn.batch_norm" (folded into the convolution before it; `weight` and `bias` name its new constants) or "nn.pad" (into
    those behind it, which read `tensor` with `padding` (top, left, bottom, right) of their own more), or "nn.layer_norm" or
    "nn.group_norm" (a step of one that was written in several ops), or "squeeze" (of an axis of size 1, which stands behind
    what is computed with it now: of rows `gone`, as `tensor`, by the same name where that is free).
    """

    op: str
    tensor: TensorId
    gone: TensorId
    weight: TensorId | None = None
    bias: TensorId | None = None
    padding: tuple[int, int, int, int] = (0, 0, 0, 0)
