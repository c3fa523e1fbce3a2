"""Which rounding the source of a model gave an op: an attribute of main that an importer sets, read by the rules."""

from __future__ import annotations

from ..graph.dataflow import DataflowView, attrs_of

ROUNDING = "octavo.rounding"
"""Attribute of main: Relax op (without "relax.") -> rounding of its results.

"half_even"         rint, as QDQ has it; the default.
"half_away"         nn.avg_pool2d of equal parameters: over the integers as they are stored, ties away from 0.
"float32"           nn.avg_pool2d, image.resize2d by method "linear": every operation of ONNX Runtime's kernels, in its order
                    (`numerics.float_mean`, `numerics.float_resize`).
"half_even_stored"  mean, multiply, add: a tie becomes an even integer of the result,
                    rint(real / scale + zero_point). An add so, and a subtract of "half_even", is a float32 sum
                    (`numerics.float_sum`); without either it is one of integers, ties up (`numerics.add`).
"whole_steps"       nn.softmax: 1 / scale of the result counts as a whole number, rounded down.
"fixed_point"       comparisons: of numbers in whole steps of 1 / 256 (`numerics.quantized.compare`);
                    divide by a norm: its inverse square root in fixed point (`numerics.l2_normalize_fixed`).
"half_up"           quantize of quantized values, nn.leakyrelu, nn.prelu: a fixed-point factor, ties up (`numerics.fixed_point`);
                    image.resize2d by method "linear": the shift of an integer sum (`numerics.resize`).

The key "int16" says that ops of int16 tensors are computed in fixed point, as TFLite does it (`numerics.fixed_multiplier`):

"fixed"             biases have 32 bits.
"fixed_wide_bias"   biases have 64 bits, for which TFLite has other roundings.
"""


def is_fixed_int16(view: DataflowView) -> bool:
    """Return whether ops of int16 tensors are computed in fixed point."""
    return rounding_of(view, "int16") in ("fixed", "fixed_wide_bias")


def has_wide_bias(view: DataflowView) -> bool:
    """Return whether the biases of fixed-point int16 ops had 64 bits in the source."""
    return rounding_of(view, "int16") == "fixed_wide_bias"


def rounding_of(view: DataflowView, op: str, default: str = "half_even") -> str:
    """Return the rounding of an op's results."""
    table = attrs_of(view.function).get(ROUNDING, {})
    return str(table[op]) if op in table else default
