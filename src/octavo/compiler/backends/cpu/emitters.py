"""Which function emits which composite op: a registry that emitters enter themselves in. Emits nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tvm.relax import Var

from ....ir.composites.base import CompositeOp

if TYPE_CHECKING:
    from .context import KernelContext

Emitter = Callable[[Any, "KernelContext", dict[str, Var], Var], None]
"""Takes the op, the context, the variables of its inputs by name, and the source graph's variable of its result."""

_EMITTERS: dict[type[CompositeOp], Emitter] = {}


def emits(kind: type[CompositeOp]) -> Callable[[Emitter], Emitter]:
    """Register the emitter of a kind of composite op."""

    def register(emitter: Emitter) -> Emitter:
        assert kind not in _EMITTERS, f"{kind.__name__} has an emitter"
        _EMITTERS[kind] = emitter
        return emitter

    return register


def emitter_of(op: CompositeOp) -> Emitter:
    """Return the function that emits an op's kernel calls."""
    return _EMITTERS[type(op)]
