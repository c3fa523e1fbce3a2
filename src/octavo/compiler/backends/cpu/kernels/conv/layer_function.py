"""The arguments of a quantized layer's PrimFunc, in the order in which all kernels take them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt
import tvm

from ..language.vectors import Expr, prim_func
from .spec import Conv2dSpec


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerBuffers:
    """Buffers of a layer.

    Parameters
    ----------
    x, out
        Its input and its output.
    parameters
        Scale and zero point of the input where they come at run time, else None.
    operands
        Its packed constants, by label.
    """

    x: Expr
    parameters: Expr | None
    operands: Mapping[str, Expr]
    out: Expr


def layer_function(
    spec: Conv2dSpec, constants: Mapping[str, npt.NDArray[Any]], out_dtype: str, body: Callable[[LayerBuffers], None]
) -> tvm.tirx.PrimFunc:
    """Return the PrimFunc of a layer whose input is uint8; `body` emits its statements."""
    in_size = spec.batch * spec.in_height * spec.in_width * spec.in_channels
    out_size = spec.batch * spec.out_height * spec.out_width * spec.out_channels
    inputs = [("x", in_size, "uint8"), *([("x_parameters", 2 * spec.scales, "float32")] if spec.scales != 0 else [])]
    operands = [(label, value.size, str(value.dtype)) for label, value in constants.items()]

    def emit(x: Expr, *others: Expr) -> None:
        packed = dict(zip(constants, others[1:-1] if spec.scales != 0 else others[:-1], strict=True))
        body(LayerBuffers(x=x, parameters=others[0] if spec.scales != 0 else None, operands=packed, out=others[-1]))

    return prim_func([*inputs, *operands, ("out", out_size, out_dtype)], emit)
