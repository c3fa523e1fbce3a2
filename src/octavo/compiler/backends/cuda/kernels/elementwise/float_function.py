"""float32 functions of single elements as CUDA C, by the functions of `device/float_function.cuh`. It makes no kernel."""

from __future__ import annotations

import numpy as np

from ......numerics.floats.float_function import FloatFunction

_CALLS = {
    "exp": "exponential",
    "sigmoid": "sigmoid",
    "tanh": "hyperbolic_tangent",
    "erf": "error_function",
    "negative": "negative",
    "abs": "magnitude",
    "sqrt": "__fsqrt_rn",
    "add": "__fadd_rn",
    "subtract": "__fsub_rn",
    "multiply": "__fmul_rn",
    "divide": "__fdiv_rn",
    "maximum": "greater",
    "minimum": "lesser",
    "leaky_relu": "leaky",
    "multiply_add": "__fmaf_rn",
}
"""What computes each operation of a program, rounded as `numerics.floats.float_function` rounds it."""


def statements_of(function: FloatFunction) -> tuple[list[str], str]:
    """Return statements that compute a program of variables v0, v1 ... (its inputs), and the variable of its result."""
    lines: list[str] = []
    for number, constant in enumerate(function.constants, function.inputs):
        bits = int(np.float32(constant).view(np.uint32))
        lines.append(f"float v{number} = __int_as_float({bits:#010x});  // {constant!r}")
    first = function.inputs + len(function.constants)
    for number, step in enumerate(function.steps, first):
        operands = ", ".join(f"v{operand}" for operand in step.operands)
        lines.append(f"float v{number} = {_CALLS[step.op]}({operands});")
    return lines, f"v{first + len(function.steps) - 1}"
