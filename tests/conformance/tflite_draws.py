"""How the cases draw: parameters, values, shapes. Values only, no test and no Octavo."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from ai_edge_litert import schema_py_generated as schema
from tflite_case import Case, Value

Rng = np.random.Generator
Maker = Callable[[Rng, str], Case]
RANGE = {"int8": (-128, 127), "uint8": (0, 255), "int16": (-32768, 32767)}
NONE, RELU, RELU_N1_TO_1, RELU6 = (
    schema.ActivationFunctionType.NONE,
    schema.ActivationFunctionType.RELU,
    schema.ActivationFunctionType.RELU_N1_TO_1,
    schema.ActivationFunctionType.RELU6,
)
SAME, VALID = schema.Padding.SAME, schema.Padding.VALID


def options(name: str, **fields: Any) -> Any:
    """Make an options table by its name in the schema."""
    table = getattr(schema, name + "T")()
    for key, value in fields.items():
        assert hasattr(table, key), (name, key)
        setattr(table, key, value)
    return table


def params(rng: Rng, dtype: str, scale: float | None = None, zero_point: int | None = None) -> dict[str, Any]:
    """Draw parameters of an activation; int16 is symmetric."""
    if dtype == "float32":
        return {"dtype": dtype}
    if scale is None:
        scale = float(np.float32(2.0 ** rng.uniform(-8, -3))) / (256 if dtype == "int16" else 1)
    if zero_point is None:
        low, high = RANGE[dtype]
        zero_point = 0 if dtype == "int16" else int(rng.integers(low, high + 1))
    return {"dtype": dtype, "scale": (scale,), "zero_point": (zero_point,)}


def feed(rng: Rng, value: Value) -> np.ndarray:
    """Draw values over the whole range of the dtype."""
    if value.dtype == "float32":
        return rng.normal(size=value.shape).astype(np.float32)
    low, high = RANGE[value.dtype]
    return rng.integers(low, high + 1, value.shape).astype(value.dtype)


def case(rng: Rng, op: str, label: str, inputs: list[Value | None], outputs: list[Value], table: Any = None) -> Case:
    fed = tuple(feed(rng, value) for value in inputs if value is not None and value.data is None)
    return Case(op=op, label=label, inputs=tuple(inputs), outputs=tuple(outputs), options=table, fed=fed)


def image(rng: Rng, channels: int | None = None) -> tuple[int, int, int, int]:
    """Draw an NHWC shape."""
    height, width = (int(size) for size in rng.integers(5, 12, 2))
    return 1, height, width, int(rng.choice([1, 3, 8, 17])) if channels is None else channels


def shape_of(rng: Rng, rank: int | None = None) -> tuple[int, ...]:
    rank = int(rng.integers(2, 5)) if rank is None else rank
    return (1, *(int(size) for size in rng.integers(2, 9, rank - 1)))


def activation(rng: Rng) -> int:
    return int(rng.choice([NONE, NONE, RELU, RELU6, RELU_N1_TO_1]))
