"""Reading a module, at any stage from QDQ to the virtual machine's form: which variable holds which tensor's values, and how.

Everything is read from what the IR carries: quantize ops, and the attributes of kernels. Changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import tvm
from tvm.ir import Call, GlobalVar
from tvm.relax import Function, Tuple, TupleGetItem, TupleType, Var

from ...numerics import PerAxis, PerTensor, QuantParams, dequantize
from ...numerics.arrays import Array
from ..composites.base import RELABELLING
from ..graph.dataflow import attrs_of, call_to, dtype_of, operand_vars, static_shape
from ..graph.kernel_attributes import RESULT_ATTR
from ..graph.probes import read_probe
from .values import params_of


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class QuantizedVariable:
    """A variable that holds a tensor's integers, or the float32 result of an integer op.

    Parameters
    ----------
    tensor
        The tensor's id, as quantize_info says it.
    var
        The variable.
    params
        The tensor's parameters, over its integers as the source has them; None of a float32 result.
    axes
        Axes of the source in the order in which they lie; None where they lie as in the source.
    shift
        What was added to the source's integers: 128 to int8 that is kept as uint8.
    """

    tensor: str
    var: Var
    params: QuantParams | None
    axes: tuple[int, ...] | None = None
    shift: int = 0

    def integers(self, raw: Array) -> Array:
        """Return the tensor's integers as the source has them, int64."""
        return self._as_in_source(raw.astype(np.int64) - self.shift)

    def reals(self, raw: Array) -> Array:
        """Return the numbers that the integers stand for, or that there are, float32, in the source's layout."""
        return self._as_in_source(raw) if self.params is None else dequantize(self.integers(raw), self.params)

    def _as_in_source(self, values: Array) -> Array:
        return values if self.axes is None or values.ndim != len(self.axes) else values.transpose(np.argsort(self.axes))


def quantized_variables(
    module: tvm.IRModule, entry: str = "main", externs: Mapping[str, Any] | None = None
) -> list[QuantizedVariable]:
    """Return what the variables of a function hold, in its order: integers, and what integer ops leave in float32.

    `externs` are the Relax functions, by symbol, in whose place the function calls object code: composites and their calls.

    A tensor that is kept in several forms is held by each; memory that is several tensors (a reshape moves nothing) holds all.
    A variable that no entry is recorded for is not in the list: nobody may take what it holds for a tensor.
    """
    reading = _Reading(module, externs or {})
    for block in module[entry].body.blocks:
        for binding in block.bindings:
            reading.binding(binding)
    return reading.all()


class _Reading:
    """Reads the bindings of a function in order."""

    def __init__(self, module: tvm.IRModule, externs: Mapping[str, Any]) -> None:
        self._module = module
        self._externs = externs
        self._fields: dict[Var, list[Any]] = {}
        self._found: dict[Var, list[QuantizedVariable]] = {}
        self._memory: dict[Var, list[Any]] = {}
        """What the memory behind a variable holds, as the kernel that wrote it states it."""
        self._read: list[QuantizedVariable] = []

    def all(self) -> list[QuantizedVariable]:
        """Return what was found; of variables that nothing else is said of, what a kernel that reads them says."""
        for each in self._read:
            self._found.setdefault(each.var, [each])
        return [each for found in self._found.values() for each in found]

    def binding(self, binding: Any) -> None:
        """Read one binding."""
        value, var = binding.value, binding.var
        probe = read_probe(value)
        source = value if isinstance(value, Var) else probe[0] if probe is not None else None
        quantized = call_to(value, "quantize")
        viewed = _viewed(value)
        if isinstance(source, Var):
            self._found.setdefault(var, [replace(each, var=var) for each in self._found.get(source, [])])
            self._memory[var] = self._memory.get(source, [])
        elif viewed is not None:
            self._holds(var, self._memory.get(viewed, []))
        elif quantized is not None and isinstance(quantized.args[0], Var):
            params = params_of(quantized, dtype_of(var))
            if params is not None:
                self._found[var] = [QuantizedVariable(tensor=quantized.args[0].name, var=var, params=params)]
        elif isinstance(value, TupleGetItem):
            fields = self._fields.get(value.tuple_value) if isinstance(value.tuple_value, Var) else None
            self._gives(var, [] if fields is None else [fields[int(value.index)]])
        elif (function := self._extern(value)) is not None:
            self._external(var, value, region_results(function))
        else:
            result, arguments, attrs = _kernel_call(self._module, binding)
            if result is not None:
                self._holds(result, list(attrs.get(RESULT_ATTR, ())))
            self._read.extend(_inputs(arguments, attrs))

    def _extern(self, value: Any) -> Any:
        """Return the function in whose place a call is one of object code."""
        call = call_to(value, "call_dps_packed")
        callee = call.args[0] if call is not None else getattr(value, "op", None)
        function = self._externs.get(str(getattr(callee, "global_symbol", "")))
        return function if isinstance(function, Function) else None

    def _external(self, var: Var, value: Any, results: list[Any]) -> None:
        if call_to(value, "call_dps_packed") is None:  # it writes its last arguments
            for result, entry in zip(operand_vars(value)[-len(results) :], results, strict=True):
                self._gives(result, [entry])
        elif isinstance(var.ty, TupleType):
            self._fields[var] = results
        else:
            self._gives(var, results)

    def _gives(self, var: Var, entries: list[Any]) -> None:
        """Note the tensor, as the source has it, that a variable holds."""
        found = [QuantizedVariable(tensor=str(entry["id"]), var=var, params=read_params(entry)) for entry in entries if entry]
        if found:
            self._found[var] = found

    def _holds(self, var: Var, entries: list[Any]) -> None:
        """Note what the memory behind a variable holds, and which of it is what the variable sees."""
        self._memory[var] = entries
        shape = static_shape(var)
        found = [_quantized_variable(entry, var) for entry in entries if tuple(int(extent) for extent in entry["shape"]) == shape]
        if found:
            self._found[var] = found


def region_results(function: Function) -> list[Any]:
    """Return for each result of a function of composites the entry of a quantize_info that says what it is, None for none."""
    entries: dict[Any, Any] = {}
    fields: dict[Any, Any] = {}
    for block in function.body.blocks:
        for binding in block.bindings:
            value: Any = binding.value
            if isinstance(value, Function):
                entries[binding.var] = attrs_of(value).get("quantize_info", {}).get("output")
            elif isinstance(value, Call) and value.op in entries:
                entries[binding.var] = entries[value.op]
            elif isinstance(value, Var):
                entries[binding.var] = entries.get(value)
            elif isinstance(value, Tuple):
                fields[binding.var] = value
    result: Any = fields.get(function.body.body, function.body.body)
    return [entries.get(each) for each in (result.fields if isinstance(result, Tuple) else [result])]


def _viewed(value: Any) -> Var | None:
    """Return the variable whose memory a reshape shows under another shape."""
    is_reshape = call_to(value, "reshape") is not None or (
        isinstance(value, Call) and str(getattr(value.op, "global_symbol", "")) == "vm.builtin.reshape"
    )
    seen: Any = value.args[0] if is_reshape else None
    return seen if isinstance(seen, Var) else None


def _kernel_call(module: tvm.IRModule, binding: Any) -> tuple[Var | None, list[Var], dict[str, Any]]:
    """Return what a call of a kernel of ours writes, what it reads, and the kernel's attributes."""
    value: Any = binding.value
    call = call_to(value, "call_tir")
    callee = call.args[0] if call is not None else getattr(value, "op", None)
    if not isinstance(value, Call) or not isinstance(callee, GlobalVar):
        return None, [], {}
    function = module[callee]
    if not isinstance(function, tvm.tirx.PrimFunc) or not function.attrs:
        return None, [], {}
    attrs = attrs_of(function)
    if call is not None:
        return binding.var, operand_vars(call.args[1]), attrs
    arguments = operand_vars(value)
    return arguments[-1], arguments[:-1], attrs


def _quantized_variable(entry: Any, var: Var) -> QuantizedVariable:
    axes = None if entry["axes"] is None else tuple(int(axis) for axis in entry["axes"])
    return QuantizedVariable(tensor=str(entry["id"]), var=var, params=read_params(entry), axes=axes, shift=int(entry["shift"]))


def _inputs(arguments: list[Var], attrs: dict[str, Any]) -> Iterator[QuantizedVariable]:
    """Yield what a kernel of one input says of it: all there is to know of a reshaped tensor, or of an input of the model."""
    roles = dict(attrs.get("quantize_info", {}).items())
    entries = [entry for role, entry in roles.items() if str(role).startswith("input")]
    if len(entries) != 1 or not arguments:
        return
    params = read_params(entries[0])
    dtype = dtype_of(arguments[0])
    if params is not None and (dtype == params.dtype or (dtype, params.dtype) in (("uint8", "int8"), ("int16", "uint16"))):
        shift = 0 if dtype == params.dtype else RELABELLING[params.dtype]
        yield QuantizedVariable(tensor=str(entries[0]["id"]), var=arguments[0], params=params, shift=shift)


def read_params(entry: Any) -> QuantParams | None:
    """Return the parameters that an entry of a quantize_info states; None for a tensor that is not quantized."""
    if entry["scale"] is None:
        return None
    axis = entry["axis"]
    scale = np.asarray(_numbers(entry["scale"]), np.float32)
    return QuantParams(
        dtype=str(entry["dtype"]),
        scale=scale,
        zero_point=np.asarray(_numbers(entry["zero_point"]), np.int32),
        granularity=PerTensor() if axis is None else PerAxis(int(axis)),
        qmin=int(entry["qmin"]),
        qmax=int(entry["qmax"]),
    )


def _numbers(value: Any) -> Any:
    return float(value) if isinstance(value, (int, float)) else [float(number) for number in value]
