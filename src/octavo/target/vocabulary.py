"""The names that a target description may use, and the check that a value is one of them. It describes no hardware."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from difflib import get_close_matches
from typing import Any, Literal, TypeVar, cast, get_args

from ..errors import OctavoError, TargetError, brief
from .op_facts import CLAMPS, REDUCTIONS, movers

KindT = TypeVar("KindT")
Scheme = Literal["symmetric", "asymmetric"]
GranularityName = Literal["per_tensor", "per_axis"]
HALF_EVEN = "half_even"
HALF_EVEN_STORED = "half_even_stored"
HALF_UP = "half_up"
HALF_AWAY = "half_away"
FLOAT32 = "float32"
INTEGER_INVERSE_SCALE = "integer_inverse_scale"
RECURRENT_STATE = "recurrent_state"
"""What a file's metadata says of a recurrent op that rounds its state at each step; it is no rounding of a quantize."""
FIXED_POINT = "fixed_point"
FIXED_POINT_WIDE_BIAS = "fixed_point_wide_bias"

SHIFT = "shift"
FLOAT_MULTIPLIER = "float_multiplier"

ROUNDINGS = {
    HALF_EVEN: "rint(real / scale) + zero_point, ties to even: what R.quantize says",
    HALF_EVEN_STORED: "rint(real / scale + zero_point): a tie becomes an even integer of the result; mean, multiply, add",
    HALF_UP: "in integers, ties up: add, subtract; a fixed-point factor: a change of parameters, nn.leakyrelu, nn.prelu; "
    'the shift of an integer sum: image.resize2d by method "linear"',
    HALF_AWAY: "nn.avg_pool2d of equal parameters: over the integers as they are stored, ties away from 0",
    FLOAT32: 'every float32 operation of ONNX Runtime, in its order: nn.avg_pool2d, image.resize2d by method "linear"',
    INTEGER_INVERSE_SCALE: "nn.softmax: 1 / scale of the result counts as a whole number, rounded down",
    FIXED_POINT: "TFLite's fixed point: ops of int16 tensors; the norm that an l2 normalization divides by; comparisons",
    FIXED_POINT_WIDE_BIAS: "TFLite's fixed point of an int16 op whose bias has 64 bits, for which it has other roundings",
    "shift_half_up": "exact integers and one shift to the right, ties towards plus infinity; every scale is a power of two",
    "shift_half_away": "the same, ties away from zero",
    "shift_half_even": "the same, ties to the even integer",
    "fixed_point_once": "a multiplier of 31 bits and one shift of both, half up",
    "fixed_point_twice": "the product with a multiplier of 31 bits is shifted half up, then by the exponent, half up again",
    "fixed_point_twice_away": "the same, the second shift's ties away from zero: gemmlowp, CMSIS-NN, TFLite's reference",
}
"""Every rounding of a result to integers, what it means and the ops that Octavo's own kernels compute with it."""

_FIXED_POINT_NAMES = ("once", "twice", "twice_away")
_SHIFT_NAMES = (HALF_UP, HALF_AWAY, HALF_EVEN)
FIXED_POINTS = tuple(f"{FIXED_POINT}_{name}" for name in _FIXED_POINT_NAMES)
SHIFTS = tuple(f"{SHIFT}_{name}" for name in _SHIFT_NAMES)
"""The roundings of accelerators, which compute in integers alone, as a quantize says them."""
FIXED_POINT_TWICE_AWAY = FIXED_POINTS[2]

REQUANTIZE = {
    FLOAT_MULTIPLIER: (
        *(HALF_EVEN, HALF_EVEN_STORED, HALF_UP, HALF_AWAY),
        *(FLOAT32, INTEGER_INVERSE_SCALE, FIXED_POINT, FIXED_POINT_WIDE_BIAS),
        # Of hardware that has several ways, those of the others.
        *(*SHIFTS, *FIXED_POINTS),
    ),
    FIXED_POINT: _FIXED_POINT_NAMES,
    SHIFT: _SHIFT_NAMES,
}
"""How hardware brings sums to the scale of the result -> its roundings; a quantize says both of the last two: "shift_half_up"."""

BATCH_MATMUL = "batch_matmul"
"""The `op` of hardware that multiplies two activations; "matmul" is the product with a constant matrix."""

STACKED_MATMUL = "stacked_matmul"
"""The `op` of hardware that multiplies each matrix of a batch by a constant matrix of its own, as mixtures of experts do."""

GATHERED_MATMUL = "gathered_matmul"
"""The `op` of hardware that multiplies each matrix of a batch by one of several constant ones, chosen by indices when run."""

RECURRENCE = "recurrence"
"""The `op` of hardware that computes all steps of an LSTM, a GRU or an RNN; weights are what the hidden state meets."""

ELEMENTWISE = "elementwise"
"""The `op` of hardware that computes any function of one tensor, element by element, from a table of 256 entries."""

ELEMENTWISE_PAIR = "elementwise_pair"
"""The `op` of hardware that computes any function of two tensors, or of one and a constant, from a table with rows of 256."""

COMPARE = "compare"
"""The `op` of hardware that compares two tensors, and combines booleans by and, or and not."""

SELECT = "select"
"""The `op` of hardware that chooses, element by element, between two tensors by a tensor of booleans."""

_WITHOUT_COMPOSITE = ("gather_elements", "broadcast_to")
MOVES = (
    *movers("view", "transpose"),
    *(name for name in movers("select", "reverse", "repeat", "pad") if name not in _WITHOUT_COMPOSITE),
)
"""The ops that move the data of one tensor and become a composite."""

OPS = (
    *("nn.conv2d", "nn.conv2d_transpose", "matmul", BATCH_MATMUL, STACKED_MATMUL, GATHERED_MATMUL, RECURRENCE),
    *("add", "subtract", "multiply", "divide", "maximum", "minimum"),
    *("nn.avg_pool2d", "nn.adaptive_avg_pool2d", "nn.max_pool2d", *REDUCTIONS, "argmax", "argmin", "topk"),
    *("nn.softmax", "nn.log_softmax", "nn.layer_norm", "nn.group_norm"),
    *("concat", *MOVES, "image.resize2d"),
    *(*CLAMPS, ELEMENTWISE, ELEMENTWISE_PAIR, COMPARE, SELECT),
    *("quantize", "dequantize"),
)
"""Every op that Octavo can partition: Relax names without "relax.", and the seven above that are no Relax op."""

ACTIVATION_DTYPES = ("uint8", "int8", "uint16", "int16")
WEIGHT_DTYPES = (*ACTIVATION_DTYPES, "int4")
FLOAT_FUNCTION = "float_function"
FUSIONS = ("bias", *CLAMPS, FLOAT_FUNCTION)
SCHEMES = get_args(Scheme)
SCALES = ("any", "power_of_two")
OVERFLOWS = ("proven", "saturates", "wraps")
WEIGHT_RANGES = ("narrow", "full")
WEIGHT_BLOCKS = (16, 32, 64, 128)
"""Inputs of a dense layer whose weights of 4 bits can share a scale."""
ROLES = ("input", "input0", "input1", "weight", "bias", "output")
ACTIVATION_LAYOUTS = ("any", "NHWC", "NCHW")
WEIGHT_LAYOUTS = ("HWIO", "OHWI", "OIHW", "IHWO")
GRANULARITIES = get_args(GranularityName)
MIN_ACCUMULATOR_BITS = 16
MAX_ACCUMULATOR_BITS = 64


def check_name(field: str, value: object, allowed: Sequence[str]) -> None:
    """Raise TargetError unless `value` is one of the names that `field` allows; the nearest one is suggested."""
    if not isinstance(value, str) or value not in allowed:
        near = get_close_matches(value, allowed, n=1) if isinstance(value, str) else []
        advice = f"did you mean {near[0]!r}? " if near else ""
        raise TargetError(f"{field}: unknown {brief(value)}: {advice}allowed: {', '.join(allowed)}")


def check_names(field: str, values: object, allowed: Sequence[str], *, minimum: int = 0) -> None:
    """Raise TargetError unless `values` is a tuple of different names that `field` allows, `minimum` of them or more."""
    if not isinstance(values, tuple):
        raise TargetError(f"{field}: expected a list of names ({', '.join(allowed)}), got {brief(values)}")
    names: tuple[object, ...] = values
    for name in names:
        check_name(field, name, allowed)
    if len(set(names)) != len(names):
        raise TargetError(f"{field}: a name stands twice in {', '.join(map(str, names))}")
    if len(names) < minimum:
        raise TargetError(f"{field}: expected at least {minimum} of {', '.join(allowed)}, got none")


def check_tuple(field: str, values: object, kind: type, expected: str) -> None:
    """Raise TargetError unless `values` is a tuple whose entries are all of one type."""
    entries: tuple[object, ...] | None = values if isinstance(values, tuple) else None
    if entries is None or not all(isinstance(entry, kind) for entry in entries):
        got = entries[0] if entries is not None and len(entries) == 1 else values
        raise TargetError(f"{field}: expected {expected}, got {brief(got)}")


def from_fields(kind: type[KindT], where: str, data: Any, error: type[OctavoError] = TargetError) -> KindT:
    """Return a dataclass of the fields that a mapping says, lists as tuples; `error` names `where` and the field."""
    known = tuple(each.name for each in fields(cast("Any", kind)))
    if not isinstance(data, Mapping):
        raise error(f"{where}: expected an object with {', '.join(known)}, got {brief(data)}")
    said = cast("Mapping[Any, Any]", data)
    try:
        for name in said:
            check_name("field", name, known)
        return kind(**{name: tuple(value) if isinstance(value, list) else value for name, value in said.items()})
    except OctavoError as problem:
        raise error(f"{where}: {problem}") from problem
