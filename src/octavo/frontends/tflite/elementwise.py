"""Our converters of TFLite ops that compute values from values: elementwise, reductions, softmax, normalization."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import tflite

from ...ir.untyped import ops
from ..frontend import RejectedOpError
from .base import BaseConverter, float_const


def _elu(x: Any) -> Any:
    # exp(x) - 1 below 0, x above: each relu keeps one side.
    return ops.subtract(ops.nn.relu(x), ops.nn.relu(ops.subtract(float_const(1.0), ops.exp(x))))


def _hard_swish(x: Any) -> Any:
    return ops.multiply(x, ops.multiply(ops.clip(ops.add(x, float_const(3.0)), 0.0, 6.0), float_const(1.0 / 6.0)))


_UNARY = {
    "ABS": ops.abs,
    "CEIL": ops.ceil,
    "COS": ops.cos,
    "ELU": _elu,
    "EXP": ops.exp,
    "FLOOR": ops.floor,
    "HARD_SWISH": _hard_swish,
    "LOG": ops.log,
    "LOGISTIC": ops.sigmoid,
    "RELU": ops.nn.relu,
    "RELU6": lambda x: ops.clip(x, 0.0, 6.0),
    "RELU_0_TO_1": lambda x: ops.clip(x, 0.0, 1.0),
    "RELU_N1_TO_1": lambda x: ops.clip(x, -1.0, 1.0),
    "ROUND": ops.round,
    "SIN": ops.sin,
    "SQUARE": lambda x: ops.multiply(x, x),
    "TANH": ops.tanh,
}
_BINARY = {
    "ADD": (ops.add, tflite.AddOptions),
    "SUB": (ops.subtract, tflite.SubOptions),
    "MUL": (ops.multiply, tflite.MulOptions),
    "DIV": (ops.divide, tflite.DivOptions),
    "MAXIMUM": (ops.maximum, None),
    "MINIMUM": (ops.minimum, None),
    "POW": (ops.power, None),
    "EQUAL": (ops.equal, None),
    "NOT_EQUAL": (ops.not_equal, None),
    "GREATER": (ops.greater, None),
    "GREATER_EQUAL": (ops.greater_equal, None),
    "LESS": (ops.less, None),
    "LESS_EQUAL": (ops.less_equal, None),
}
_REDUCE = {"MEAN": ops.mean, "SUM": ops.sum, "REDUCE_MAX": ops.max, "REDUCE_MIN": ops.min, "REDUCE_PROD": ops.prod}


class ElementwiseConverter(BaseConverter):
    """Converters that compute on real values: dequantized where a tensor is quantized, quantized again for the result."""

    OWN_OPS = frozenset(
        {*_UNARY, *_BINARY, *_REDUCE, "ARG_MAX", "ARG_MIN", "CAST", "GELU", "L2_NORMALIZATION", "LEAKY_RELU", "LOG_SOFTMAX"}
        | {"PRELU", "SELECT", "SELECT_V2", "SOFTMAX", "SQUARED_DIFFERENCE"}
    )

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        for name, function in _UNARY.items():
            self.convert_map[name] = functools.partial(self._unary, function=function)
        for name, (function, options) in _BINARY.items():
            self.convert_map[name] = functools.partial(self._binary, function=function, options_class=options)
        for name, function in _REDUCE.items():
            self.convert_map[name] = functools.partial(self._reduce, function=function)
        for name, by_rows in (("SELECT", True), ("SELECT_V2", False)):
            self.convert_map[name] = functools.partial(self._select, by_rows=by_rows)

    def _unary(self, op: Any, function: Any) -> Any:
        result = function(self._real(self.get_input_tensors(op)[0]))
        return self._quantized(result, self.get_output_tensors(op)[0])

    def _binary(self, op: Any, function: Any, options_class: Any) -> Any:
        left, right = self.get_input_tensors(op)
        result = function(self._real(left), self._real(right))
        has_options = options_class is not None and op.BuiltinOptions() is not None
        activation = self._get_builtin_options(op, options_class).FusedActivationFunction() if has_options else 0
        return self._finish(result, self.get_output_tensors(op)[0], activation)

    def _convert_logical_binary(self, relax_op: Any, op: Any) -> Any:
        """Convert LOGICAL_AND and LOGICAL_OR, which take booleans only."""
        tensors = self.get_input_tensors(op)
        dtypes = [self.get_tensor_type_str(tensor.tensor.Type()) for tensor in tensors]
        if set(dtypes) != {"bool"}:
            raise RejectedOpError(f"operands of {' and '.join(dtypes)}")
        left, right = (self.get_tensor_expr(tensor) for tensor in tensors)
        return relax_op(left, right)

    def convert_logical_not(self, op: Any) -> Any:
        """Convert LOGICAL_NOT, which takes booleans only."""
        data = self.get_input_tensors(op)[0]
        dtype = self.get_tensor_type_str(data.tensor.Type())
        if dtype != "bool":
            raise RejectedOpError(f"an operand of {dtype}")
        return ops.logical_not(self.get_tensor_expr(data))

    def _select(self, op: Any, by_rows: bool) -> Any:
        """Convert SELECT and SELECT_V2; a condition of one axis chooses whole rows of SELECT's operands (`by_rows`)."""
        condition, left, right = self.get_input_tensors(op)
        dtype = self.get_tensor_type_str(condition.tensor.Type())
        if dtype != "bool":
            raise RejectedOpError(f"a condition of {dtype}")
        chosen, rank = self.get_tensor_expr(condition), len(self._shape(left))
        if by_rows and len(self._shape(condition)) == 1 and rank > 1:
            chosen = self.bb.emit(ops.reshape(chosen, [*self._shape(condition), *(1 for _ in range(rank - 1))]))
        return self._quantized(ops.where(chosen, self._real(left), self._real(right)), self.get_output_tensors(op)[0])

    def _reduce(self, op: Any, function: Any) -> Any:
        data, axes = self.get_input_tensors(op)
        rank = len(self._shape(data))
        axis = sorted({int(value) % rank for value in np.ravel(self._constant(axes, "axes"))}) if rank else []
        keep = op.BuiltinOptions() is not None and bool(self._get_builtin_options(op, tflite.ReducerOptions).KeepDims())
        return self._quantized(function(self._real(data), axis, keep), self.get_output_tensors(op)[0])

    def convert_squared_difference(self, op: Any) -> Any:
        """Convert SQUARED_DIFFERENCE."""
        left, right = self.get_input_tensors(op)
        difference = self.bb.emit(ops.subtract(self._real(left), self._real(right)))
        return self._quantized(ops.multiply(difference, difference), self.get_output_tensors(op)[0])

    def convert_gelu(self, op: Any) -> Any:
        """Convert GELU, exact or approximated by tanh."""
        options = self._get_builtin_options(op, tflite.GeluOptions) if op.BuiltinOptions() is not None else None
        function = ops.nn.gelu_tanh if options is not None and options.Approximate() else ops.nn.gelu
        return self._unary(op, function)

    def convert_leaky_relu(self, op: Any) -> Any:
        """Convert LEAKY_RELU."""
        alpha = self._get_builtin_options(op, tflite.LeakyReluOptions).Alpha()
        return self._unary(op, lambda x: ops.nn.leakyrelu(x, alpha))

    def convert_prelu(self, op: Any) -> Any:
        """Convert PRELU: nn.prelu along the axes of constant slopes, seen as one; else the same from its parts."""
        data, slope = self.get_input_tensors(op)
        output, shape = self.get_output_tensors(op)[0], self._shape(data)
        if self.has_expr(slope.tensor_idx):
            x = self._real(data)
            negative = ops.multiply(self._real(slope), ops.minimum(x, float_const(0.0)))
            return self._quantized(ops.add(ops.nn.relu(x), negative), output)
        value: Any = self.get_tensor_value_or_prefetched(slope)
        outer = next((axis for axis, dim in enumerate(value.shape) if dim != 1), value.ndim)
        outer += len(shape) - value.ndim
        value = np.broadcast_to(value, (*value.shape[: value.ndim - len(shape) + outer], *shape[outer:])).reshape(-1)
        flat = [*shape[:outer], value.size]
        source = self.get_tensor_expr(data)
        real = self._as_shape(source, data, flat)
        result = self._quantized(ops.nn.prelu(real, self._weight(slope, value, 0), axis=len(flat) - 1), output)
        return result if flat == shape else self._as_shape(result, output, shape, is_real=False)

    def _as_shape(self, expr: Any, tensor: Any, shape: list[int], *, is_real: bool = True) -> Any:
        """Return a tensor's values in another shape: real ones, or as integers again."""
        real = self.dequantize(expr, tensor) if tensor.qnn_params else expr
        if [int(dim) for dim in tensor.tensor.ShapeAsNumpy()] == shape and is_real:
            return real
        moved = self._quantized(ops.reshape(real, shape), tensor)
        return self.dequantize(moved, tensor) if tensor.qnn_params and is_real else moved

    def convert_softmax(self, op: Any) -> Any:
        """Convert SOFTMAX with its factor beta, which TVM's converter leaves out."""
        beta = self._get_builtin_options(op, tflite.SoftmaxOptions).Beta()
        scaled = (lambda x: x) if beta == 1.0 else (lambda x: ops.multiply(x, float_const(beta)))
        return self._unary(op, lambda x: ops.nn.softmax(scaled(x), axis=-1))

    def convert_log_softmax(self, op: Any) -> Any:
        """Convert LOG_SOFTMAX."""
        return self._unary(op, lambda x: ops.nn.log_softmax(x, axis=-1))

    def convert_l2_normalization(self, op: Any) -> Any:
        """Convert L2_NORMALIZATION over the last axis; the norm is at least 1e-6, as in LiteRT."""
        data = self.get_input_tensors(op)[0]
        x = self.bb.emit(self._real(data)) if data.qnn_params else self._real(data)
        norm = ops.sqrt(ops.sum(ops.multiply(x, x), axis=[len(self._shape(data)) - 1], keepdims=True))
        result = ops.divide(x, ops.maximum(norm, float_const(1e-6)))
        activation = self._get_builtin_options(op, tflite.L2NormOptions).FusedActivationFunction()
        return self._finish(result, self.get_output_tensors(op)[0], activation)

    def _convert_arg_min_max(self, op: Any, relax_op: Any) -> Any:
        """Convert ARG_MAX and ARG_MIN; order among integers is order among the reals they stand for."""
        data, axis = self.get_input_tensors(op)
        (position,) = (int(value) for value in np.ravel(self._constant(axis, "an axis")))
        result = relax_op(self.get_tensor_expr(data), axis=position, keepdims=False)
        return ops.astype(result, self.get_tensor_type_str(self.get_output_tensors(op)[0].tensor.Type()))

    def convert_cast(self, op: Any) -> Any:
        """Convert CAST of plain numbers; parameters mean nothing to it, as in LiteRT."""
        data, output = self.get_input_tensors(op)[0], self.get_output_tensors(op)[0]
        return ops.astype(self.get_tensor_expr(data), self.get_tensor_type_str(output.tensor.Type()))
