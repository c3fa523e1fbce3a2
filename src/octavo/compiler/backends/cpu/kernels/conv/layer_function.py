"""The arguments of a quantized layer's PrimFunc, in the order in which all kernels take them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt
import tvm
from tvm.script.ir_builder import tirx as T

from ..language.vectors import Expr, prim_func
from .spec import Conv2dSpec

PARAMETERS, INDICES = "x_parameters", "indices"


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerBuffers:
    """Buffers of a layer.

    Parameters
    ----------
    x, out
        Its input and its output.
    parameters
        Scale and zero point of the input where they come at run time, else None.
    indices
        Which weights an image has where that comes at run time, else None.
    operands
        Its packed constants, by label.
    """

    x: Expr
    parameters: Expr | None
    indices: Expr | None
    operands: Mapping[str, Expr]
    out: Expr


def layer_function(
    spec: Conv2dSpec, constants: Mapping[str, npt.NDArray[Any]], out_dtype: str, body: Callable[[LayerBuffers], None]
) -> tvm.tirx.PrimFunc:
    """Return the PrimFunc of a layer whose input is uint8; `body` emits its statements."""
    in_size = spec.batch * spec.in_height * spec.in_width * spec.in_channels
    out_size = spec.batch * spec.out_height * spec.out_width * spec.out_channels
    operands = [(label, value.size, str(value.dtype)) for label, value in constants.items()]
    given = given_at_run_time(spec)

    def emit(x: Expr, *others: Expr) -> None:
        own = dict(zip((label for label, *_ in (*given, *operands)), others[:-1], strict=True))
        packed = {label: own[label] for label in constants}
        body(LayerBuffers(x=x, parameters=own.get(PARAMETERS), indices=own.get(INDICES), operands=packed, out=others[-1]))

    return prim_func([("x", in_size, "uint8"), *given, *operands, ("out", out_size, out_dtype)], emit)


def given_at_run_time(spec: Conv2dSpec) -> list[tuple[str, int, str]]:
    """Return name, size and dtype of what a layer is given at run time beside its input."""
    parameters = [(PARAMETERS, 2 * spec.scales, "float32")] if spec.scales != 0 else []
    return parameters + ([(INDICES, spec.batch, spec.index_dtype)] if spec.index_dtype is not None else [])


def weights_of_image(spec: Conv2dSpec, indices: Expr | None, image: Expr) -> Expr:
    """Return which of several weights an image has, in int32."""
    if indices is None:
        return T.floormod(image, spec.stack)
    return T.cast(T.max(T.min(indices[image], T.Cast(spec.index_dtype, spec.stack - 1)), T.Cast(spec.index_dtype, 0)), "int32")
