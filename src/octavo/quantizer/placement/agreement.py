"""Placement against partition: which placed ops no integer op takes, and which float ops one takes. Changes neither of them."""

from __future__ import annotations

from collections.abc import Iterable

from tvm.relax import Var

from ...ir.graph.rules import Claims
from ...ir.identity import TensorId
from ..plan import FloatOp
from .layer import Placement


def rejected_layers(placement: Placement, claims: Claims) -> dict[Var, str]:
    """Return the outputs of the layers that no integer op takes, each with the reason of the rule that came closest."""
    taken = _taken(claims)
    reasons = claims.rejections
    return {
        layer.output: next((reasons[var.name].reason for var in layer.members if var.name in reasons), "no rule takes it")
        for layer in placement.layers
        # Rules see normalizations rewritten, so the core's own variable may be gone; only the output is sure to be there.
        if layer.output.name not in taken
    }


def split_enclosed(float_ops: Iterable[FloatOp], claims: Claims | None) -> tuple[tuple[FloatOp, ...], tuple[TensorId, ...]]:
    """Return the ops that stay float, and the results of those that run in integers because all around them is quantized."""
    taken = set[str]() if claims is None else _taken(claims)
    ops = tuple(float_ops)
    enclosed = tuple(op.tensor for op in ops if op.tensor in taken)
    return tuple(op for op in ops if op.tensor not in taken), enclosed


def _taken(claims: Claims) -> set[str]:
    return {var.name for region in claims.regions.values() for var in region.members}
