"""Models of one op in QDQ form, for conformance cases. It writes what it is given, and draws inputs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.relax import Expr, Var

from ...ir.graph.dataflow import BodyWriter, write_function
from ...ir.qdq.rounding import with_rounding
from ...ir.untyped import ops
from ...numerics import INTEGER_RANGE, PerAxis, QuantParams
from ...numerics.arrays import Array
from .choices import Choices

RESULT = "y"


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Sketch:
    """A candidate: a model whose op may become a composite of the target.

    Parameters
    ----------
    op
        As the target description calls it.
    name
        Of the case, within its op.
    checks
        What it is about, in words.
    inputs
        The integers that it is run on, by name.
    """

    op: str
    name: str
    checks: str
    module: tvm.IRModule
    inputs: Mapping[str, Array]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Tail:
    """What follows the op: activations, then a quantize. Without `params` the op gives its integers itself.

    Parameters
    ----------
    clip
        Real bounds of a clip; infinite where there is none.
    """

    params: QuantParams | None
    rounding: str = "half_even"
    relu: bool = False
    clip: tuple[float, float] | None = None


class Body:
    """Emits the bindings of a model; names are counted."""

    def __init__(self, writer: BodyWriter) -> None:
        self._writer = writer
        self._count = 0

    def emit(self, value: Expr, name: str = "", *, is_output: bool = False) -> Var:
        """Bind a value to a variable."""
        self._count += 1
        return self._writer.emit(name or f"lv{self._count}", value, is_output=is_output)

    def dequantized(self, value: Expr, params: QuantParams) -> Var:
        """Emit the real values of integers."""
        axis = params.granularity.axis if isinstance(params.granularity, PerAxis) else 0
        return self.emit(ops.dequantize(value, *_constants(params), axis=axis))

    def constant(self, values: Array, params: QuantParams) -> Var:
        """Emit the real values of integers that are constants."""
        return self.dequantized(relax.const(np.ascontiguousarray(values)), params)


def _constants(params: QuantParams) -> tuple[Expr, Expr]:
    return relax.const(params.scale), relax.const(params.zero_point)


def model_of(
    inputs: Mapping[str, tuple[Array, QuantParams | None]],
    op: Callable[[Body, Sequence[Var]], Expr],
    tail: Tail,
    *,
    reads_integers: bool = False,
) -> tvm.IRModule:
    """Return the module quantize(activation(op(dequantize(inputs)))), or op(inputs) where it reads the integers themselves.

    Inputs without parameters are indices.
    """
    types: Any = relax.TensorType
    params = [relax.Var(name, types(list(values.shape), str(values.dtype))) for name, (values, _) in inputs.items()]

    def write(writer: BodyWriter) -> Expr:
        body = Body(writer)
        pairs = zip(params, inputs.values(), strict=True)
        read = [var if reads_integers or quantized is None else body.dequantized(var, quantized) for var, (_, quantized) in pairs]
        value = op(body, read)
        if tail.params is None:
            return body.emit(value, RESULT, is_output=True)
        value = body.emit(value)
        if tail.relu:
            value = body.emit(ops.nn.relu(value))
        if tail.clip is not None:
            low, high = (bound if math.isfinite(bound) else math.copysign(3e38, bound) for bound in tail.clip)
            value = body.emit(ops.clip(value, low, high))
        axis = tail.params.granularity.axis if isinstance(tail.params.granularity, PerAxis) else 0
        call = ops.quantize(value, *_constants(tail.params), axis=axis, out_dtype=tail.params.dtype)
        return body.emit(with_rounding(call, tail.rounding), RESULT, is_output=True)

    builder = relax.BlockBuilder()
    write_function(builder, "main", params, write, {"num_input": len(params)})
    return builder.get()


def middle(choices: Choices, role: str) -> int:
    """Return a zero point of a tensor that is at no bound, where it may have one."""
    points = choices.zero_points(role)
    return points[len(points) // 2]


def draw(choices: Choices, name: str, params: QuantParams, shape: tuple[int, ...], magnitude: int) -> Array:
    """Draw integers about the zero point, both bounds of the dtype among them where the magnitude is that large."""
    low, high = INTEGER_RANGE[params.dtype]
    center = int(params.zero_point)
    values = choices.generator(name).integers(max(low, center - magnitude), min(high, center + magnitude) + 1, shape)
    values = values.astype(params.dtype)
    if magnitude >= high - low:
        values.reshape(-1)[:2] = low, high
    return values
