"""How ops that stay float become loops where TVM's own way is slow, or takes some forms only.

TVM calls the C library's erff, one value at a time; here erf is a rational function that LLVM can vectorize. Its transposed
convolutions know neither dilation nor channels last.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import tvm
from tvm import relax
from tvm import te as _te
from tvm import topi as _topi
from tvm.relax import Expr

# TVM ships no types for its operators.
te: Any = _te
topi: Any = _topi
tirx: Any = tvm.tirx

_LIMIT = 3.925
"""From here on erf is 1 to float32's last digit but one."""

_NUMERATOR = (
    *(1.1283787488937378, 0.20659050345420837, 0.05145961046218872, 0.003990788944065571),
    *(0.00014921993715688586, -1.9907354271708755e-06, 1.9832402387010006e-08),
)
_DENOMINATOR = (1.0, 0.5164148807525635, 0.11776037514209747, 0.014928240329027176, 0.0010278000263497233)
"""erf(x) = x * P(x * x) / Q(x * x) within |x| <= _LIMIT, coefficients of rising powers: a least-squares fit at 4,000 Chebyshev
nodes, reweighted towards the smallest maximum. In float32 the error is at most 3.6e-7, and 5.4e-7 of the value."""


def legalizations() -> dict[str, Callable[[relax.BlockBuilder, Any], Expr]]:
    """Return what LegalizeOps is to do differently, by op."""
    return {"relax.erf": _erf, "relax.nn.gelu": _gelu, "relax.nn.conv2d_transpose": _conv2d_transpose}


def _erf(builder: relax.BlockBuilder, call: Any) -> Expr:
    if str(call.args[0].ty.dtype) != "float32":
        return builder.call_te(_elementwise(tirx.erf), call.args[0], primfunc_name_hint="erf")
    return builder.call_te(_elementwise(rational_erf), call.args[0], primfunc_name_hint="erf")


def _gelu(builder: relax.BlockBuilder, call: Any) -> Expr:
    erf = rational_erf if str(call.args[0].ty.dtype) == "float32" else tirx.erf

    def gelu(value: Any) -> Any:
        dtype = str(value.dtype) if hasattr(value, "dtype") else str(value.ty.dtype)
        return value * (tirx.const(0.5, dtype) + erf(value * tirx.const(math.sqrt(0.5), dtype)) * tirx.const(0.5, dtype))

    return builder.call_te(_elementwise(gelu), call.args[0], primfunc_name_hint="gelu")


def _conv2d_transpose(builder: relax.BlockBuilder, call: Any) -> Expr:
    attrs = call.attrs
    layout, kernel_layout = str(attrs.data_layout), str(attrs.kernel_layout)
    top, left, bottom, right = (int(width) for width in attrs.padding)
    # What no tap reaches, behind the last row and column, is 0.
    behind = [int(extra) - width for extra, width in zip(attrs.output_padding, (bottom, right), strict=True)]
    padding = (top, left, max(-behind[0], 0), max(-behind[1], 0))

    def convolve(x: Any, w: Any) -> Any:
        x = topi.transpose(x, [layout.index(axis) for axis in "NCHW"])
        w = topi.transpose(w, [kernel_layout.index(axis) for axis in "IOHW"])
        w = topi.nn.dilate(w, [1, 1, *(int(distance) for distance in attrs.dilation)])
        strides = tuple(int(stride) for stride in attrs.strides)
        y = topi.nn.group_conv2d_transpose_nchw(x, w, strides, padding, str(call.ty.dtype), (0, 0), int(attrs.groups))
        y = topi.nn.pad(y, [0, 0, 0, 0], [0, 0, *(max(width, 0) for width in behind)])
        return topi.transpose(y, ["NCHW".index(axis) for axis in layout])

    return builder.call_te(convolve, *call.args, primfunc_name_hint="conv2d_transpose")


def _elementwise(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda x: te.compute(x.shape, lambda *index: function(x(*index)), name="compute")


def rational_erf(value: Any) -> Any:
    """Return erf of a float32 TIR expression."""
    limit = tirx.const(_LIMIT, "float32")
    # In this order NaN stays NaN: the comparisons are false.
    x = tirx.Select(value > limit, limit, tirx.Select(value < -limit, -limit, value))
    square = x * x
    return x * _polynomial(square, _NUMERATOR) / _polynomial(square, _DENOMINATOR)


def _polynomial(x: Any, coefficients: tuple[float, ...]) -> Any:
    value = tirx.const(coefficients[-1], "float32")
    for coefficient in reversed(coefficients[:-1]):
        value = value * x + tirx.const(coefficient, "float32")
    return value
