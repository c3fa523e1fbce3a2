"""Rules of matchers: what a matcher finds becomes a composite where the target description has its op. Knows no pass."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

from tvm import relax
from tvm.relax import Var

from ...ir.composites.attributes import write_op
from ...ir.composites.base import CompositeOp
from ...ir.graph.dataflow import DataflowView, call_to, op_name, static_shape
from ...ir.graph.rules import Region, Rejection, Rule
from ...ir.qdq.narrow_sums import uncomputed_overflow
from ...ir.qdq.rounding import unsupported_rounding, vendor_arithmetic
from ...ir.qdq.tensor_ids import fused_tensors, with_tensor_ids
from ...ir.qdq.values import constant_value
from ...target import (
    BATCH_MATMUL,
    COMPARE,
    CPU,
    ELEMENTWISE,
    ELEMENTWISE_PAIR,
    GATHERED_MATMUL,
    SELECT,
    STACKED_MATMUL,
    OpSupport,
    TargetDescription,
)
from .constraints import broken_constraint, for_matchers
from .context import PartitionContext

Matcher = Callable[[DataflowView, Var, OpSupport], Region[CompositeOp] | Rejection]
Row = tuple[str, tuple[str, ...], Matcher]
"""A composite's kind, the ops at which it is looked for, and what looks."""

_TABLES: dict[str, str] = {
    "batch_matmul": BATCH_MATMUL,
    "stacked_matmul": STACKED_MATMUL,
    "gathered_matmul": GATHERED_MATMUL,
    "lookup": ELEMENTWISE,
    "pair_lookup": ELEMENTWISE_PAIR,
    "compare": COMPARE,
    "logical": COMPARE,
    "select": SELECT,
}
"""What a target must offer for these composites, whatever the op that they start from."""


def rules_for(context: PartitionContext, table: tuple[Row, ...], target: TargetDescription, backend: str) -> list[Rule]:
    """Bind the matchers to what a target supports; what they attach names tensors by the source's ids (see tensor_ids.py).

    `backend` is the prefix of the composites. A composite also keeps the ids that it fuses, as its attribute "tensor_ids".
    """
    on_host = context.on_host(backend)
    rounded = unsupported_rounding if on_host else _vendor_rounding
    supports: dict[str, tuple[OpSupport, OpSupport, bool] | None] = {}

    def supports_of(name: str) -> tuple[OpSupport, OpSupport, bool] | None:
        """Return what the target says of an op, what matchers are given of it, and whether it asks more than they check."""
        if name not in supports:
            support = target.support(name)
            asks = support != CPU.support(name)  # whose matchers say all that its kernels cannot take
            supports[name] = None if support is None else (support, for_matchers(support), asks)
            kernels = CPU.support(name)
            if support is not None and asks and on_host and kernels is not None:
                wide = for_matchers(support)  # a host's description may list dtypes that its kernels lack
                known = tuple(dtype for dtype in wide.activations if dtype in kernels.activations) or kernels.activations
                supports[name] = (support, replace(wide, activations=known), asks)
        return supports[name]

    def bind(kind: str, matcher: Matcher) -> Callable[[DataflowView, Var], Region[CompositeOp] | Rejection]:
        def match(view: DataflowView, core: Var) -> Region[CompositeOp] | Rejection:
            name = op_name(view.definition(core))
            if name in target.never:
                return Rejection(reason=f"target {target.name} never takes {name}", matched=True)
            offered = supports_of(_TABLES.get(kind) or name)
            if offered is None:
                return Rejection(reason=f"target {target.name} has no integer {name}")
            support, wide, asks = offered
            found = matcher(view, core, wide)
            if isinstance(found, Rejection):
                return found
            formed = rounded(view, found, support, target.name)
            if isinstance(formed, Rejection):
                return formed
            uncomputed = uncomputed_overflow(found.op) if on_host else None
            if uncomputed is not None:
                return uncomputed
            if asks:
                problem = broken_constraint(found, static_shape(found.output), support, target, context.tensors)
                if problem is not None:
                    return problem
            fused = fused_tensors(view, found, context.ids, context.sources)
            info = with_tensor_ids({**found.op.quantize_info(), **(formed or {})}, context.tensors)
            return replace(found, attrs={"quantize_info": info, **({"tensor_ids": fused} if fused else {})})

        return match

    return [Rule(composite=f"{backend}.{kind}", ops=ops, match=bind(kind, matcher)) for kind, ops, matcher in table]


def _vendor_rounding(
    view: DataflowView, region: Region[CompositeOp], support: OpSupport, target: str
) -> dict[str, Any] | Rejection:
    """Return what a vendor's composite says of its arithmetic."""
    found = vendor_arithmetic(view, region, support, target)
    return found if isinstance(found, Rejection) else asdict(found)


def is_repeatable(view: DataflowView, var: Var) -> bool:
    """Return whether a value may be computed inside a composite and outside: dequantize, tuples, and constants."""
    value = view.definition(var)
    if call_to(value, "dequantize") is not None or isinstance(value, relax.Tuple):
        return True
    return constant_value(view, var) is not None


def describe(region: Region[CompositeOp]) -> dict[str, Any]:
    """Return the attributes from which a back end reads the composite's op."""
    return write_op(region.op, region.core.name)
