"""Composite ops as attributes of their functions: what partition writes there, any process reads back. Executes nothing of it.

A function of a composite has the attributes

    Composite        "octavo.conv2d", "toynpu.conv2d" ...: the back end that takes it, and the kind of op
    Primitive        True
    quantize_info    {role: {id, dtype, scale, zero_point, axis, qmin, qmax}}, requantize, rounding, accumulator_bits, clamp
    octavo.op        every field of the composite op, so that code is emitted from it alone
    octavo.core      the variable of the op that the matcher started from
    tensor_ids       TensorIds that are computed within, where there are any

Values are plain: numbers, text, lists, maps and tensors; {"type": NAME, field: value ...} is a value of one of `_CLASSES`, and
{"type": "float", "value": "-inf"} a number that TVMScript cannot spell; {"type": "transposed", "tensor": t, "axes": [1, 0]} the
transpose of a large tensor.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import tvm
import tvm_ffi
from tvm import relax

from ...errors import CompileError
from ...numerics import PerAxis, PerBlock, PerTensor, QuantParams
from ...numerics.dynamic import TorchStyle
from ...numerics.floats.float_function import FloatFunction, Step
from ...numerics.quantized.resize import FloatTaps, LinearTaps
from ...runtime.mapped import SHARED_BYTES, shared_array, shared_tensor
from ...runtime.size import Size
from ..graph.nodes import elements
from . import blocks, elementwise, float_ops, movement, normalization, reduction, weighted
from .base import CompositeOp, FloatResult, FunctionResult, QuantizedOutput, QuantizedTensor, SumResult
from .matrix_view import MatrixView

OP_ATTR = "octavo.op"
CORE_ATTR = "octavo.core"
HOST = "octavo"
"""Prefix of the composites that the host's own kernels compute; a vendor's have the name of the target."""

_FAMILIES = (blocks, elementwise, float_ops, movement, normalization, reduction, weighted)
_PARTS = (QuantParams, PerAxis, PerBlock, PerTensor, TorchStyle, FloatFunction, Step, FloatTaps, LinearTaps)
_CLASSES: dict[str, type[Any]] = {
    kind.__name__: kind
    for kind in (
        *(value for family in _FAMILIES for value in vars(family).values() if isinstance(value, type) and is_dataclass(value)),
        *(FloatResult, FunctionResult, QuantizedOutput, QuantizedTensor, SumResult, MatrixView, *_PARTS),
    )
}


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Composite:
    """One composite, read from its function.

    Parameters
    ----------
    name
        Of the function in the module.
    kind
        "octavo.conv2d" ...
    op
        What it computes.
    inputs
        Names of the function's parameters, by which `op` calls what it reads.
    core
        Name of the variable of the op that the matcher started from.
    quantize_info, tensor_ids
        The attributes of these names; empty where there are none.
    """

    name: str
    kind: str
    op: CompositeOp
    inputs: tuple[str, ...]
    core: str
    quantize_info: Mapping[str, Any]
    tensor_ids: tuple[str, ...] = ()

    @property
    def backend(self) -> str:
        """Name of the back end that computes it: "octavo" is the host."""
        return self.kind.split(".", 1)[0]

    @property
    def op_name(self) -> str:
        """Its kind without the back end: "conv2d" ..."""
        return self.kind.split(".", 1)[-1]

    @property
    def attrs(self) -> dict[str, Any]:
        """What a kernel made from it carries."""
        return {"quantize_info": self.quantize_info, **({"tensor_ids": list(self.tensor_ids)} if self.tensor_ids else {})}


def write_op(op: CompositeOp, core: str) -> dict[str, Any]:
    """Return the attributes that hold a composite op."""
    return {OP_ATTR: _encoded(op), CORE_ATTR: core}


def read_composites(module: tvm.IRModule) -> dict[str, Composite]:
    """Return the composites of a module by the names of their functions.

    Raises
    ------
    CompileError
        A function of a composite lacks an attribute, or holds one that no composite op has.
    """
    found: dict[str, Composite] = {}
    for var, function in module.functions_items():
        attrs: dict[str, Any] = dict(function.attrs.items()) if function.attrs else {}
        if isinstance(function, relax.Function) and OP_ATTR in attrs:
            found[var.name_hint] = read_composite(var.name_hint, function)
    return found


def read_composite(name: str, function: relax.Function) -> Composite:
    """Return the composite that a function is; CompileError where an attribute is missing or holds what no composite has."""
    attrs: dict[str, Any] = dict(function.attrs.items()) if function.attrs else {}
    missing = [key for key in ("Composite", OP_ATTR, CORE_ATTR) if key not in attrs]
    if missing:
        raise CompileError(f"composite {name} has no attribute {missing[0]!r}; partition the model again")
    op = _read(attrs[OP_ATTR], name)
    if not isinstance(op, CompositeOp):
        raise CompileError(f"attribute {OP_ATTR!r} of {name} is no composite op; partition the model again")
    return Composite(
        name=name,
        kind=str(attrs["Composite"]),
        op=op,
        inputs=tuple(str(param.name) for param in function.params),
        core=str(attrs[CORE_ATTR]),
        quantize_info=_plain(attrs.get("quantize_info", {})),
        tensor_ids=tuple(str(tensor) for tensor in attrs.get("tensor_ids", ())),
    )


def _encoded(value: Any) -> Any:
    """Return a field's value as an attribute holds it."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if is_dataclass(value) and not isinstance(value, type):
        return _encoded_fields(value)
    if isinstance(value, np.ndarray):
        return _encoded_array(value)
    if isinstance(value, np.generic):
        return _encoded(value.item())
    if isinstance(value, Size):
        return {"type": "size", "value": str(value)}
    if isinstance(value, float) and not math.isfinite(value):
        return {"type": "float", "value": str(value)}
    if isinstance(value, (tuple, list)):
        return [_encoded(each) for each in value]
    if isinstance(value, Mapping):
        return {"type": "map", "keys": [_encoded(key) for key in value], "values": [_encoded(each) for each in value.values()]}
    assert isinstance(value, float), f"{value!r} is no value of a composite op"
    return value


def _encoded_array(value: npt.NDArray[Any]) -> Any:
    """Return an array as a tensor; a large one with its axes in another order as that on the memory of the one it is of."""
    if value.nbytes < SHARED_BYTES or value.flags.c_contiguous:
        return shared_tensor(value)
    order = sorted(range(value.ndim), key=lambda axis: -abs(value.strides[axis]))
    base = value.transpose(order)
    if not base.flags.c_contiguous:
        return shared_tensor(value)
    return {"type": "transposed", "tensor": shared_tensor(base), "axes": [order.index(axis) for axis in range(value.ndim)]}


def _encoded_fields(value: Any) -> dict[str, Any]:
    """Return a part of an op; an array of one element may be a NumPy scalar, which would come back as a number."""
    found: dict[str, Any] = {"type": type(value).__name__}
    for name, is_array in _fields(type(value)):
        each = getattr(value, name)
        found[name] = _encoded(np.asarray(each) if is_array and isinstance(each, np.generic) else each)
    return found


@cache
def _fields(kind: type[Any]) -> tuple[tuple[str, bool], ...]:
    """Return the fields of a class, and of each whether it is an array."""
    assert _CLASSES.get(kind.__name__) is kind, f"{kind.__name__} is no part of a composite op"
    return tuple((each.name, "NDArray" in str(each.type)) for each in fields(kind))


def _read(value: Any, name: str) -> Any:
    """Return what an attribute holds; `name` is the function's, for errors."""
    if isinstance(value, tvm.runtime.Tensor):
        return shared_array(value)
    if isinstance(value, str):
        return str(value)
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, tvm_ffi.Array):
        return tuple(_read(each, name) for each in elements(value))
    if not isinstance(value, Mapping):
        return tuple(_read(each, name) for each in value)
    entries = {str(key): each for key, each in value.items()}
    kind = str(entries.pop("type", ""))
    if kind == "float":
        return float(str(entries["value"]))
    if kind == "transposed":
        return _read(entries["tensor"], name).transpose(_read(entries["axes"], name))
    if kind == "size":
        return Size.parse(str(entries["value"]))
    if kind == "map":
        return dict(zip(_read(entries["keys"], name), _read(entries["values"], name), strict=True))
    cls = _CLASSES.get(kind)
    if cls is None:
        raise CompileError(f"attribute {OP_ATTR!r} of {name} names {kind!r}, which is no part of a composite op")
    try:
        return cls(**{key: _read(each, name) for key, each in entries.items()})
    except (TypeError, ValueError) as error:
        raise CompileError(f"attribute {OP_ATTR!r} of {name}: {kind} cannot be read: {error}") from error


_NUMBERS = frozenset((bool, int, float))


def _plain(value: Any) -> Any:
    """Return maps and lists of an attribute as Python's."""
    if value is None or isinstance(value, (bool, int, float)):  # nearly all are; asking for abstract classes takes longer
        return value
    if isinstance(value, tvm_ffi.Array):
        found = elements(value)
        return found if _NUMBERS.issuperset(map(type, found)) else [_plain(each) for each in found]
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, Iterable) and not isinstance(value, str):
        return [_plain(each) for each in value]
    return str(value) if isinstance(value, str) else value
