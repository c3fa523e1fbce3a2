"""float32 functions of single elements, by the name of the Relax op: what tables of 256 entries are computed from. No TVM here.

Arithmetic is float32, operation by operation. Transcendental functions are computed in float64 and rounded once to float32, so
that a table does not depend on the machine's mathematics library.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
ElementwiseFunction = Callable[..., npt.NDArray[Any]]
"""Operands as arrays that broadcast, then attributes by name; returns an array of float32, or of bool for comparisons."""


def _double(function: Callable[..., npt.NDArray[np.float64]]) -> ElementwiseFunction:
    """Return `function` computed in float64 and rounded once to float32."""

    def rounded_once(*operands: npt.ArrayLike, **attributes: float) -> Floats:
        return function(*(np.asarray(operand, np.float64) for operand in operands), **attributes).astype(np.float32)

    return rounded_once


def _sigmoid(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    return 1.0 / (1.0 + np.exp(-x))


def _erf(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    return np.vectorize(math.erf, otypes=[np.float64])(x)


def _gelu(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    return x * 0.5 * (1.0 + _erf(x / math.sqrt(2.0)))


def _gelu_tanh(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    return 0.5 * x * (1.0 + np.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)))


def _softplus(x: npt.NDArray[np.float64], beta: float = 1.0, threshold: float = 20.0) -> npt.NDArray[np.float64]:
    return np.where(beta * x > threshold, x, np.logaddexp(0.0, beta * x) / beta)


def _selu(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    # Constants of "Self-Normalizing Neural Networks" (Klambauer et al. 2017), as ONNX and PyTorch have them.
    alpha, gamma = 1.6732632423543772, 1.0507009873554805
    return gamma * np.where(x > 0, x, alpha * np.expm1(x))


def _leaky_relu(x: npt.ArrayLike, alpha: float = 0.01) -> Floats:
    values = np.asarray(x, np.float32)
    return np.where(values < 0, values * np.float32(alpha), values)


def _clip(x: npt.ArrayLike, low: npt.ArrayLike, high: npt.ArrayLike) -> Floats:
    return np.clip(np.asarray(x, np.float32), np.asarray(low, np.float32), np.asarray(high, np.float32))


def _where(condition: npt.ArrayLike, x: npt.ArrayLike, y: npt.ArrayLike) -> npt.NDArray[Any]:
    return np.where(condition, x, y)


ELEMENTWISE: Mapping[str, ElementwiseFunction] = {
    "sigmoid": _double(_sigmoid),
    "tanh": _double(np.tanh),
    "exp": _double(np.exp),
    "log": _double(np.log),
    "erf": _double(_erf),
    "sqrt": _double(np.sqrt),
    "rsqrt": _double(lambda x: 1.0 / np.sqrt(x)),
    "sin": _double(np.sin),
    "cos": _double(np.cos),
    "tan": _double(np.tan),
    "sinh": _double(np.sinh),
    "cosh": _double(np.cosh),
    "asin": _double(np.arcsin),
    "acos": _double(np.arccos),
    "atan": _double(np.arctan),
    "asinh": _double(np.arcsinh),
    "acosh": _double(np.arccosh),
    "atanh": _double(np.arctanh),
    "power": _double(np.power),
    "nn.silu": _double(lambda x: x * _sigmoid(x)),
    "nn.gelu": _double(_gelu),
    "nn.gelu_tanh": _double(_gelu_tanh),
    "nn.softplus": _double(_softplus),
    "nn.selu": _double(_selu),
    "nn.leakyrelu": _leaky_relu,
    "nn.relu": lambda x: np.maximum(x, np.float32(0)),
    "clip": _clip,
    "abs": np.abs,
    "negative": np.negative,
    "square": np.square,
    "sign": np.sign,
    "round": np.rint,
    "floor": np.floor,
    "ceil": np.ceil,
    "trunc": np.trunc,
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "divide": np.divide,
    "floor_divide": lambda x, y: np.floor(np.divide(x, y)),
    "floor_mod": np.mod,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "where": _where,
    "greater": np.greater,
    "greater_equal": np.greater_equal,
    "less": np.less,
    "less_equal": np.less_equal,
    "equal": np.equal,
    "not_equal": np.not_equal,
    "logical_and": np.logical_and,
    "logical_or": np.logical_or,
    "logical_not": np.logical_not,
}
"""Every function by the Relax op's name without "relax."."""
