"""Which rounding the source of a model gave an op: an attribute of main that an importer sets, read by the rules."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ..graph.dataflow import DataflowView, attrs_of
from ..numerics import FloatSumParameters, add, float_sum, float_sum_parameters, sub
from .forms import OutputForm, TensorForm

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


def float_sum_of(
    rounding: str, a: TensorForm, b: TensorForm, y: TensorForm, *, subtract: bool = False
) -> tuple[FloatSumParameters | None, int]:
    """Return the constants of an add or subtract that rounds so, and what was added to the integers they are about.

    None where the rounding is that of integers. Tensors of two dtypes are summed as kernels hold them, in uint8.
    """
    if rounding not in ("half_even", "half_even_stored"):
        return None, 0
    relabelling = a.relabelling if a.relabelling == b.relabelling == y.relabelling else 0
    parameters = float_sum_parameters(
        float(a.params.scale),
        a.zero_point - relabelling,
        float(b.params.scale),
        b.zero_point - relabelling,
        float(y.params.scale),
        y.zero_point - relabelling,
        subtract=subtract,
        stored=rounding == "half_even_stored",
    )
    return parameters, relabelling


def integer_sum(
    rounding: str,
    a: TensorForm,
    b: TensorForm,
    y: OutputForm,
    a_values: npt.NDArray[np.uint8],
    b_values: npt.NDArray[np.uint8],
    *,
    subtract: bool = False,
) -> npt.NDArray[np.uint8]:
    """Return what the kernel of an add or subtract that rounds so gives for these integers, all as kernels hold them."""
    out = y.spec()
    constants, relabelling = float_sum_of(rounding, a, b, y.tensor, subtract=subtract)
    if constants is None:
        result = (sub if subtract else add)(
            a_values,
            b_values,
            a_scale=float(a.params.scale),
            a_zero_point=a.zero_point,
            b_scale=float(b.params.scale),
            b_zero_point=b.zero_point,
            out_scale=float(y.tensor.params.scale),
            zero_point=out.zero_point,
            qmin=out.qmin,
            qmax=out.qmax,
        )
        return result.astype(np.uint8)
    a_stored, b_stored = (values.astype(np.int16) - relabelling for values in (a_values, b_values))
    low, high, dtype = out.qmin - relabelling, out.qmax - relabelling, "int8" if relabelling else "uint8"
    result = float_sum(a_stored, b_stored, constants, qmin=low, qmax=high, dtype=dtype)
    return (result.astype(np.int16) + relabelling).astype(np.uint8)


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
