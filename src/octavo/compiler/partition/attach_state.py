"""Attach what the passes found out of the whole function to "main", so that lowering needs nothing but the module.

Before::

    @R.function
    def main(...): R.func_attr({"num_input": 1}); ...

After::

    @R.function
    def main(...): R.func_attr({"num_input": 1, "octavo.partition": {"tensors": ..., "pixels_of": ..., "rejections": ...}}); ...

Requires that all composites are outlined. Ensures that the module can be saved and lowered elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping

import tvm

from ...ir.graph.partition_state import PartitionState
from ...ir.graph.rules import Rejection
from .context import PartitionContext

FLOAT_MODEL = "the model is float; this op can be integer once the model is profiled and quantized"
"""Reason of an op that has integer kernels, in a model that nothing quantized."""


def attach_state(module: tvm.IRModule, context: PartitionContext) -> tvm.IRModule:
    """Attach which tensor each variable stands for, and why ops stay float, to "main" as an attribute."""
    tensors = context.source_tensors
    state = PartitionState(
        tensors=tensors,
        pixels_of={part: tensors.get(full, full) for part, full in context.sources.items()},
        cuts=frozenset(context.cuts),
        half_names=frozenset(context.half_names),
        declined={} if context.is_float else {name: _by_vendor(each) for name, each in context.declined.items() if each},
        rejections={name: FLOAT_MODEL if context.is_float else each.reason for name, each in context.rejections.items()},
    )
    return state.attached_to(module)


def _by_vendor(rejections: Mapping[str, Rejection]) -> str:
    """Return the reasons of several vendors in their order: "npu: its kernel is 7, expected at most 5; dsp: ..."."""
    return "; ".join(f"{vendor}: {each.reason}" for vendor, each in rejections.items())
