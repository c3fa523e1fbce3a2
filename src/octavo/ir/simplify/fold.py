"""What was folded, as data."""

from __future__ import annotations

from dataclasses import dataclass

from ..identity import TensorId


@dataclass(frozen=True, kw_only=True, slots=True)
class Fold:
    """An op that was folded into another: its output `tensor` now comes from that one, `gone` is no more.

    `op` is "nn.batch_norm" (folded into the convolution before it; `weight` and `bias` name its new constants), "multiply" (a
    product or quotient by constants, into the product with weights before it, in the same way; `gone` is this or a move between
    them), "nn.pad" (into the convolutions behind it, which read `tensor` with `padding` (top, left, bottom, right) of their own
    more), or "nn.layer_norm" or "nn.group_norm" (a step of one that was written in several ops).
    """

    op: str
    tensor: TensorId
    gone: TensorId
    weight: TensorId | None = None
    bias: TensorId | None = None
    padding: tuple[int, int, int, int] = (0, 0, 0, 0)
