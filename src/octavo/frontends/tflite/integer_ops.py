"""Our converters of TFLite ops that LiteRT computes on integers as they are stored, whatever their scales and zero points say.

The stored integers are read with scale 1 and zero point 0; the result is given the real value that its own parameters make of
it, so that every tensor keeps its parameters and quantizing it again gives the integer that LiteRT stores.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from tvm import relax

from ...numerics import INTEGER_RANGE
from .base import BaseConverter, float_const

# TVM's stubs claim narrower arguments than its ops take.
_ops: Any = relax.op

_BINARY = {"FLOOR_DIV": _ops.floor_divide, "FLOOR_MOD": _ops.floor_mod}


class StoredConverter(BaseConverter):
    """Converters of NEG, FLOOR_DIV and FLOOR_MOD, and of SQRT, whose result is cut to a stored integer."""

    OWN_OPS = frozenset({"NEG", "SQRT", *_BINARY})

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.convert_map["NEG"] = functools.partial(self._on_stored, function=_ops.negative)
        self.convert_map["SQRT"] = self._sqrt
        for name, function in _BINARY.items():
            self.convert_map[name] = functools.partial(self._on_stored, function=function)

    def _on_stored(self, op: Any, function: Callable[..., Any]) -> Any:
        """Convert an op to the same of stored integers; what leaves the range of the dtype comes in at its other end."""
        inputs, output = self.get_input_tensors(op), self.get_output_tensors(op)[0]
        if not output.qnn_params:
            return function(*(self._real(tensor) for tensor in inputs))
        low, high = INTEGER_RANGE[self.get_tensor_type_str(output.tensor.Type())]
        count = float_const(high - low + 1.0)
        value = self.bb.emit(function(*(self._integers(tensor) for tensor in inputs)))
        turns = _ops.floor(_ops.divide(_ops.add(value, float_const(-low)), count))
        return self._stored(_ops.subtract(value, _ops.multiply(turns, count)), output)

    def _sqrt(self, op: Any) -> Any:
        """Convert SQRT: LiteRT divides a root by the result's scale and cuts off what is behind the point."""
        data, output = self.get_input_tensors(op)[0], self.get_output_tensors(op)[0]
        root = _ops.sqrt(self._real(data))
        if not output.qnn_params:
            return root
        scale = float_const(float(output.qnn_params["scale"].value.numpy()))
        # A root of what is below 0 has no value; LiteRT stops at the first one.
        return self.quantize(_ops.multiply(_ops.floor(_ops.divide(root, scale)), scale), output)

    def _integers(self, tensor: Any) -> Any:
        """Return a quantized tensor's stored integers as float32."""
        return _ops.dequantize(self.get_tensor_expr(tensor), float_const(1.0), relax.const(0, "int32"), axis=0)

    def _stored(self, integers: Any, output: Any) -> Any:
        """Return the quantized tensor whose stored integers these float32 values are."""
        scale, zero_point = (float_const(float(output.qnn_params[key].value.numpy())) for key in ("scale", "zero_point"))
        return self.quantize(_ops.multiply(_ops.subtract(integers, zero_point), scale), output)
