"""What code generators derive from a composite: packed weights, shifts, fixed-point multipliers, tables, C literals.

Everything comes from `composite.op` and `composite.quantize_info`; nothing is chosen here and no code is emitted.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from ...errors import CompileError
from ...ir.composites.attributes import Composite
from ...ir.composites.elementwise import LookupOp
from ...ir.composites.weighted import Conv2dOp, Conv2dTransposeOp, MatmulOp, QuantizedWeight, StackedMatmulOp
from ...numerics.rounding.fixed_point import quantize_multiplier
from ...target import TargetDescription
from .protocol import where_of

_WEIGHTED = (Conv2dOp, Conv2dTransposeOp, MatmulOp, StackedMatmulOp)


def constants(composite: Composite, description: TargetDescription) -> dict[str, npt.NDArray[Any]]:
    """Return the integers of weight and bias by their TensorIds, as the description wants them.

    Returns
    -------
    dict
        The weight of a convolution in the description's `weight_layout` (I: the inputs of one group), of a matmul as [in, out]
        ("HWIO", "IHWO") or [out, in] ("OHWI", "OIHW"): int8. The bias: int32 (output channels,); left out where there is none.

    Raises
    ------
    CompileError
        The composite is no product with constant weights, or its bias is float.
    """
    weight = weight_of(composite)
    values = weight.values
    if values.ndim == 2:
        packed = values.T if description.weight_layout.startswith("O") else values
    else:
        packed = values.transpose(["HWIO".index(axis) for axis in description.weight_layout])
    if weight.real_bias is not None:
        raise CompileError(f"{where_of(composite)}: its bias is float32; leave float_output out of the description")
    found: dict[str, npt.NDArray[Any]] = {weight.name: np.ascontiguousarray(packed)}
    return found | ({weight.bias_name: weight.bias} if weight.bias_name else {})


def weight_of(composite: Composite) -> QuantizedWeight:
    """Return the weight of a product with constants; CompileError where the composite is none."""
    op = composite.op
    if not isinstance(op, _WEIGHTED):
        raise CompileError(f"{where_of(composite)}: it has no weight")
    return op.weight


def real_multiplier(composite: Composite) -> npt.NDArray[np.float64]:
    """Return s_x * s_w / s_y of a product, (output channels,) or (): from units of its sums to those of its result.

    The number in float64, to derive others from; hardware that multiplies by floats wants `float_multiplier`.
    """
    info = composite.quantize_info
    scales = [np.asarray(info[role]["scale"], np.float64) for role in ("input", "weight", "output")]
    return scales[0] * scales[1] / scales[2]


def float_multiplier(composite: Composite) -> npt.NDArray[np.float32]:
    """Return the float32 factor of "float_multiplier": y = clamp(rint(float32(sum) * factor) + zero_point).

    Returns
    -------
    array
        Of a product with constant weights (output channels,): s_x * s_w / s_y, each step rounded to float32. Of another op with
        one input (): s_x / s_y in float32; an average divides it by its count, in float32 too.
    """
    op, info = composite.op, composite.quantize_info
    if isinstance(op, _WEIGHTED):
        return np.broadcast_to(op.weight.multiplier, op.weight.values.shape[-1:]).astype(np.float32)
    if not {"input", "output"} <= info.keys():
        raise CompileError(f"{where_of(composite)}: it has no single input whose scale counts; see its quantize_info")
    return np.float32(info["input"]["scale"]) / np.asarray(info["output"]["scale"], np.float32)


def right_shifts(composite: Composite) -> npt.NDArray[np.int32]:
    """Return the shift of each output channel of a product: y = acc >> shift, rounded as the composite says.

    Returns
    -------
    array
        int32 (output channels,); negative where it is to the left.

    Raises
    ------
    CompileError
        A scale is no power of two.
    """
    multiplier = np.broadcast_to(real_multiplier(composite), (weight_of(composite).values.shape[-1],))
    return np.array([-exponent(value, composite) for value in multiplier], np.int32)


def exponent(value: float, composite: Composite) -> int:
    """Return e of 2**e; CompileError that names the composite where `value` is no power of two."""
    mantissa, found = math.frexp(value)
    if mantissa != 0.5:
        raise CompileError(f"{where_of(composite)}: {value} is no power of two; its description must say scales 'power_of_two'")
    return found - 1


def scale_exponent(composite: Composite, role: str) -> int:
    """Return e of the scale 2**e of a tensor, by its role."""
    return exponent(float(composite.quantize_info[role]["scale"]), composite)


def fixed_point(composite: Composite) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """Return mantissa in [2**30; 2**31) and exponent of each output channel: y = acc * mantissa * 2**(exponent - 31).

    As TFLite's QuantizeMultiplier and CMSIS-NN's `multiplier` and `shift` have them; int32 (output channels,) each.
    """
    multiplier = np.broadcast_to(real_multiplier(composite), (weight_of(composite).values.shape[-1],))
    parts = np.array([quantize_multiplier(float(value)) for value in multiplier], np.int32)
    return parts[:, 0].copy(), parts[:, 1].copy()


def multiplier_and_shift(real: float) -> tuple[int, int]:
    """Return mantissa in [2**30; 2**31) and exponent of one positive number: real is about mantissa * 2**(exponent - 31).

    For what is no product with weights: sums of two tensors, products of two, means. As TFLite's QuantizeMultiplier.
    """
    return quantize_multiplier(real)


def table_of(composite: Composite) -> npt.NDArray[Any]:
    """Return the table of an elementwise function: entry i is the result for the i-th integer of the input's dtype."""
    op = composite.op
    if not isinstance(op, LookupOp):
        raise CompileError(f"{where_of(composite)}: it is no function of one tensor")
    return op.table


def channels_last(shape: tuple[int, ...], layout: str) -> tuple[int, ...]:
    """Return the shape of a tensor of rank 4 as (batch, rows, columns, channels)."""
    return (shape[0], *shape[2:], shape[1]) if layout == "NCHW" else shape


def c_array(name: str, values: npt.NDArray[Any]) -> str:
    """Return a C definition of an array of integers or float32: ``static const int8_t name[] = {...};``."""
    is_float = values.dtype == np.float32
    kind = "float" if is_float else f"{values.dtype}_t"
    literals = map(c_float if is_float else str, values.ravel().tolist())
    return f"static const {kind} {name}[{values.size}] = {{{', '.join(literals)}}};\n"


def c_float(value: float) -> str:
    """Return a finite float32 as a C literal that is exactly it: ``0x1.8p-3f``."""
    return f"{float(np.float32(value)).hex()}f"
