"""Which rounding the source of a model gave an op: an attribute of main that an importer sets, read by the rules."""

from __future__ import annotations

from ..graph.dataflow import DataflowView, attrs_of

ROUNDING = "octavo.rounding"
"""Attribute of main: Relax op (without "relax.") -> rounding of its results.

"half_even"         rint, as QDQ has it; the default.
"half_away"         nn.avg_pool2d of equal parameters: over the integers as they are stored, ties away from 0.
"half_even_stored"  mean: a tie becomes an even integer of the result, rint(real / scale + zero_point).
"half_up"           quantize of quantized values, nn.leakyrelu: a fixed-point factor, ties up (`numerics.fixed_point`);
                    image.resize2d by method "linear": the shift of an integer sum (`numerics.resize`).
"""


def rounding_of(view: DataflowView, op: str) -> str:
    """Return the rounding of an op's results."""
    table = attrs_of(view.function).get(ROUNDING, {})
    return str(table[op]) if op in table else "half_even"
