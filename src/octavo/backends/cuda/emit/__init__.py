"""Emitters: which launches compute a composite op. One table, by the op's class."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ....composites.base import CompositeOp
from ....composites.weighted import BatchMatmulOp, Conv2dOp, MatmulOp
from ..emission import Emission, Value
from .batch_matmul import emit_batch_matmul
from .conv2d import emit_conv2d, emit_matmul

Emitter = Callable[[Any, Emission, Mapping[str, Value]], Value]
"""Given an op, where to write, and the tensors it reads by the names that the op calls them; returns the result."""

EMITTERS: dict[type[CompositeOp], Emitter] = {
    Conv2dOp: emit_conv2d,
    MatmulOp: emit_matmul,
    BatchMatmulOp: emit_batch_matmul,
}


def emitter_of(op: CompositeOp) -> Emitter | None:
    """Return the emitter of an op, None where it has no kernel."""
    return EMITTERS.get(type(op))
