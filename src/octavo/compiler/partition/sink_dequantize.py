"""Move dequantize behind ops that only choose, move or join values, so that these work on integers. Computes nothing else.

Some quantizers (NNCF, OpenVINO) quantize once and let such ops pass the numbers on unquantized to an op that wants integers.

Before::

    a = R.dequantize(a_q, s, z); b = R.dequantize(b_q, s, z)
    c = R.concat((a, b)); d = R.nn.max_pool2d(c); y = R.nn.conv2d(d, w)

After::

    c_q = R.concat((a_q, b_q)); c = R.dequantize(c_q, s, z)
    d_q = R.nn.max_pool2d(c_q); d = R.dequantize(d_q, s, z); y = R.nn.conv2d(d, w)

Exact: dequantize is monotone and works on each value by itself. Where the result is quantized right away the op stays as it is,
for the op and both conversions are one region then.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.relax import Expr, Var

from ...ir.graph.dataflow import (
    BodyWriter,
    DataflowView,
    call_to,
    dtype_of,
    operand_vars,
    replace_operands,
    view_of_main,
    with_main,
)
from ...ir.identity import NameSupply
from ...ir.qdq.pad import is_folded
from ...ir.qdq.values import params_of
from ...numerics import INTEGER_RANGE, PerTensor, QuantParams
from ...target.op_facts import CLAMPS, movers

_MOVES = ("nn.max_pool2d", *movers("view", "transpose"), "strided_slice", "tile", "nn.pad")
"""What those quantizers leave unquantized, of the ops that move the data of one tensor."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Source:
    """The integers behind a float variable, and the dequantize that makes it of them."""

    integers: Expr
    call: Any
    params: QuantParams


def sink_dequantize(module: tvm.IRModule) -> tvm.IRModule:
    """Move dequantize behind ops that only choose, move or join values, so that these work on integers."""
    view = view_of_main(module)
    if not any(_is_candidate(view, binding.var) for binding in view.bindings):
        return module
    sinking = _Sinking(view)
    sunk = with_main(module, sinking.body)
    return sunk if sinking.has_sunk else module


def _is_candidate(view: DataflowView, var: Var) -> bool:
    """Return whether a float op that passes values on has readers other than a quantize, through clamps."""
    if call_to(view.definition(var), "concat", *_MOVES) is None or dtype_of(var) != "float32":
        return False
    pad = call_to(view.definition(var), "nn.pad")
    if pad is not None and (not _is_of_zeros(pad) or is_folded(view, var)):
        return False
    current: Var | None = var
    while current is not None:
        user = view.only_user(current)
        if user is None:
            return True
        value = view.definition(user)
        if call_to(value, "quantize") is not None:
            return False
        current = user if call_to(value, *CLAMPS) is not None else None
    return True


def _is_of_zeros(pad: Any) -> bool:
    """Return whether padding is with 0, for which every zero point stands."""
    return str(pad.attrs.pad_mode) == "constant" and float(pad.attrs.pad_value) == 0.0


class _Sinking:
    """One walk down the function, which writes it anew; variables that stay keep their names."""

    def __init__(self, view: DataflowView) -> None:
        self._view = view
        self.has_sunk = False
        self._new: dict[Var, Var] = {}
        self._sources: dict[Var, _Source] = {}
        params = [param.name for param in view.function.params]
        self._names = NameSupply([*params, *(binding.var.name for binding in view.bindings)])

    def body(self, writer: BodyWriter) -> Expr:
        """Write every binding and return the result."""
        for binding in self._view.bindings:
            var, value = binding.var, binding.value
            source = self._sunk(writer, var, value)
            if source is None:
                new_value: Any = self._substitute(value)
            else:
                self.has_sunk = True
                new_value = relax.Call(source.call.op, [source.integers, *source.call.args[1:]], source.call.attrs)
            new = self._new[var] = writer.emit(var.name, new_value, is_output=not isinstance(var, relax.DataflowVar))
            if source is None:
                source = self._dequantized(new_value)
            if source is not None:
                self._sources[new] = source
        return self._substitute(self._view.result)

    def _substitute(self, expr: Any) -> Any:
        return replace_operands(expr, lambda var: self._new.get(var, var))

    def _dequantized(self, value: Any) -> _Source | None:
        call = call_to(value, "dequantize")
        if call is None or not isinstance(call.args[0], Var):
            return None
        params = params_of(call, dtype_of(call.args[0]))
        if params is None or not isinstance(params.granularity, PerTensor) or params.dtype not in INTEGER_RANGE:
            return None
        return _Source(integers=call.args[0], call=call, params=params)

    def _sunk(self, writer: BodyWriter, var: Var, value: Any) -> _Source | None:
        """Write the op over integers, if it is one and all it reads was dequantized alike; return what dequantizes to it."""
        if not _is_candidate(self._view, var):
            return None
        fields = self._view.definition(value.args[0]) if call_to(value, "concat") is not None else None
        operands: list[Any] = list(fields.fields) if isinstance(fields, relax.Tuple) else operand_vars(value)[:1]
        found = [self._sources.get(self._new.get(operand, operand)) for operand in operands if isinstance(operand, Var)]
        sources = [source for source in found if source is not None]
        if (
            not sources
            or len(sources) != len(operands)
            or any(not _alike(source.params, sources[0].params) for source in sources)
        ):
            return None
        data: Any = sources[0].integers
        if isinstance(fields, relax.Tuple):
            data = relax.Tuple([source.integers for source in sources])
        call: Any = relax.Call(value.op, [data, *(self._substitute(arg) for arg in value.args[1:])], value.attrs)
        if call_to(value, "nn.pad") is not None:
            widths = [int(width) for width in value.attrs.pad_width]
            call = relax.op.nn.pad(data, widths, pad_value=float(sources[0].params.zero_point))
        integers = writer.emit(self._names.fresh(f"{var.name}_q"), call)
        return _Source(integers=integers, call=sources[0].call, params=sources[0].params)


def _alike(a: QuantParams, b: QuantParams) -> bool:
    return a.dtype == b.dtype and np.array_equal(a.scale, b.scale) and np.array_equal(a.zero_point, b.zero_point)
