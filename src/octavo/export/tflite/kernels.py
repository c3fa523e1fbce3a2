"""What LiteRT's integer kernels ask of single ops of a .tflite file, as data. It looks at no model.

`target.tflite` has what is asked of whole kinds of Relax ops. An op that is not listed has no integer kernel that Octavo writes.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ...numerics import INTEGER_RANGE, QuantParams
from ...target.tensor_support import TensorSupport


@dataclass(frozen=True, kw_only=True, slots=True)
class IntegerKernel:
    """One op in integers.

    Parameters
    ----------
    versions
        Of the op for activations of a dtype, as files state it; no entry: there is no such kernel.
    output
        The one scale and zero point of its result, by dtype, where it has such.
    keeps_params
        Whether its result has scale and zero point of what it reads.
    takes_constants
        Whether operands in place of activations can be constants.
    """

    versions: dict[str, int]
    output: dict[str, tuple[float, int]] = field(default_factory=dict[str, tuple[float, int]])
    keeps_params: bool = False
    takes_constants: bool = True

    def fixed_output(self, dtype: str) -> TensorSupport | None:
        """Return what the result must be; None where it may be anything."""
        if dtype not in self.output:
            return None
        scale, zero_point = self.output[dtype]
        return TensorSupport(scale=scale, zero_point=zero_point)


def _kernel(int8: int = 2, int16: int | None = 3, **fields: object) -> IntegerKernel:
    versions = {"int8": int8} if int16 is None else {"int8": int8, "int16": int16}
    return IntegerKernel(versions=versions, **fields)  # pyright: ignore[reportArgumentType]: its fields by name


def _mover(int8: int = 2, int16: int | None = 3) -> IntegerKernel:
    return _kernel(int8, int16, keeps_params=True, takes_constants=False)


_PROBABILITIES = {"int8": (1 / 256, -128), "int16": (1 / 32768, 0)}
_PLUS_MINUS_ONE = {"int8": (1 / 128, 0), "int16": (1 / 32768, 0)}

KERNELS = {
    "CONV_2D": _kernel(3, 4),
    "DEPTHWISE_CONV_2D": _kernel(3, 5),
    "TRANSPOSE_CONV": _kernel(3, None),
    "FULLY_CONNECTED": _kernel(4, 7),
    "BATCH_MATMUL": _kernel(2, 3),
    "ADD": _kernel(2, 3),
    "SUB": _kernel(2, 3),
    "MUL": _kernel(2, 4),
    "MEAN": _kernel(),
    "SUM": _kernel(2, None),
    "SOFTMAX": _kernel(output=_PROBABILITIES),
    "LOGISTIC": _kernel(output=_PROBABILITIES),
    "TANH": _kernel(output=_PLUS_MINUS_ONE),
    "HARD_SWISH": _kernel(1, None),
    "ELU": _kernel(1, None),
    "GELU": _kernel(2, None),
    "LEAKY_RELU": _kernel(2, 2),
    "RELU": _kernel(2, None),
    "RELU6": _kernel(2, None),
    "RELU_N1_TO_1": _kernel(1, None),
    "EXP": _kernel(2, None),
    "MAXIMUM": _mover(2, 4),
    "MINIMUM": _mover(2, 4),
    "AVERAGE_POOL_2D": _mover(),
    "MAX_POOL_2D": _mover(),
    "REDUCE_MAX": _mover(),
    "REDUCE_MIN": _mover(),
    "CONCATENATION": _mover(),
    "RESHAPE": _mover(1, 1),
    "SQUEEZE": _mover(1, 2),
    "EXPAND_DIMS": _mover(1, 2),
    "TRANSPOSE": _mover(2, 4),
    "PAD": _mover(),
    "SLICE": _mover(2, 4),
    "STRIDED_SLICE": _mover(2, 4),
    "SPLIT": _mover(2, 4),
    "SPLIT_V": _mover(2, None),
    "PACK": _mover(),
    "UNPACK": _mover(2, None),
    "GATHER": _mover(2, 4),
    "TILE": _mover(3, None),
    "SPACE_TO_DEPTH": _mover(2, None),
    "DEPTH_TO_SPACE": _mover(2, None),
    "RESIZE_BILINEAR": _mover(),
    "RESIZE_NEAREST_NEIGHBOR": _mover(2, 4),
}
"""By the op's name in a .tflite file."""

WEIGHTED = {"CONV_2D": (0, 1, 2), "DEPTHWISE_CONV_2D": (0, 1, 2), "FULLY_CONNECTED": (0, 1, 2), "TRANSPOSE_CONV": (2, 1, 3)}
"""Where data, weight and bias are among an op's inputs."""
WEIGHT_AXIS = {"DEPTHWISE_CONV_2D": 3}
"""Axis of the output channels in the file's weight; 0 of all others."""


def constant_params(largest: float, dtype: str) -> QuantParams:
    """Return symmetric parameters of a constant whose largest magnitude is this."""
    qmax = INTEGER_RANGE[dtype][1]
    return QuantParams.per_tensor(dtype, largest / qmax if largest > 0 else 1.0, 0, qmin=-qmax, qmax=qmax)
