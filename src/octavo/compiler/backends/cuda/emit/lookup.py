"""Functions of one tensor by their tables."""

from __future__ import annotations

from collections.abc import Mapping

from .....ir.composites.elementwise import LookupOp
from ..emission import Emission, Value
from ..kernels.quantization.change import looked_up
from .move import changed


def emit_lookup(op: LookupOp, emission: Emission, inputs: Mapping[str, Value]) -> Value:
    """Launch a lookup in a table of 256 entries."""
    dtype = op.y.tensor.params.dtype
    how = looked_up(op.x.params.dtype, dtype, op.table.astype(dtype))
    return changed(emission, inputs[op.x.name], how, name="lookup")
