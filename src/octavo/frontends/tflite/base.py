"""What every converter of a TFLite op rests on: tensors with their parameters, real values, and the way back to integers.

A quantized op becomes dequantize, the float op, quantize, and a clip on integers for a fused activation.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import tflite
from tvm import relax
from tvm.relax.frontend.tflite import tflite_frontend

from ...ir.graph.dataflow import static_shape
from ...ir.qdq.dynamic import write_dynamic
from ...ir.qdq.rounding import with_rounding
from ...ir.untyped import ops
from ...numerics import INTEGER_RANGE
from ...runtime.mapped import SHARED_BYTES, forget_pages
from ...runtime.size import Size
from ..frontend import RejectedOpError
from .rounding import OpRounding


def float_const(value: float) -> Any:
    """Return a float32 scalar."""
    return relax.const(value, "float32")


_RELU, _RELU_N1_TO_1, _RELU6 = (
    tflite.ActivationFunctionType.RELU,
    tflite.ActivationFunctionType.RELU_N1_TO_1,
    tflite.ActivationFunctionType.RELU6,
)
_ACTIVATION_BOUNDS = {_RELU: (0.0, math.inf), _RELU_N1_TO_1: (-1.0, 1.0), _RELU6: (0.0, 6.0)}


class BaseConverter(tflite_frontend.OperatorConverter):
    """TVM's TFLite converter with the tools that ours share."""

    rounding = OpRounding()
    """How LiteRT rounds the op that is converted."""
    declared: Mapping[str, int] | None = None
    """The size that the file states of each open dimension; None where all inputs have the file's shapes."""

    known: Mapping[int, tuple[int | Size, ...]] = MappingProxyType({})
    """Shapes of results at other sizes than the file's, as far as they were worked out with names in place of these."""

    def quantize(self, expr: Any, tensor_to_quantize: Any) -> Any:
        """Quantize real values by a tensor's parameters; the call says how LiteRT rounds them."""
        return with_rounding(super().quantize(expr, tensor_to_quantize), self.rounding.results)

    def dequantize(self, expr: Any, tensor: Any) -> Any:
        """Return the real values of a tensor's integers; the call says how LiteRT compares them."""
        return with_rounding(super().dequantize(expr, tensor), self.rounding.operands)

    def get_tensors(self, tensors_idx_list: Any) -> list[Any]:
        """Wrap tensors, with their parameters where they are quantized integers: one zero point for each scale."""
        return [self._wrapped(int(index)) for index in self._indices_or_empty(tensors_idx_list)]

    def _wrapped(self, index: int) -> Any:
        if index < 0:
            return tflite_frontend.TensorWrapper(index, 0, 0)
        tensor = self.subgraph.Tensors(index)
        params, affine = None, tensor.Quantization()
        is_integer = self.get_tensor_type_str(tensor.Type()) in INTEGER_RANGE
        # Some converters leave parameters on float tensors, or scale 0 on shapes; they mean nothing there.
        if is_integer and affine is not None and affine.ScaleLength() and affine.ScaleAsNumpy().any():
            scale = affine.ScaleAsNumpy().astype(np.float32)
            points = affine.ZeroPointAsNumpy() if affine.ZeroPointLength() else np.zeros(scale.shape)
            shape = scale.shape if scale.size > 1 else ()
            params = {
                "scale": relax.const(scale.reshape(shape), "float32"),
                "zero_point": relax.const(points.astype(np.int32).reshape(shape), "int32"),
                "axis": int(affine.QuantizedDimension()),
            }
        return tflite_frontend.TensorWrapper(index, tensor, self.model.Buffers(tensor.Buffer()), params)

    def has_same_qnn_params(self, lhs_tensor: Any, rhs_tensor: Any) -> bool:
        """Whether scale and zero point are equal, not just close as TVM has it (scales can be as small as 1e-6)."""
        return all(
            np.array_equal(lhs_tensor.qnn_params[key].value.numpy(), rhs_tensor.qnn_params[key].value.numpy())
            for key in ("scale", "zero_point")
        )

    def convert_qnn_fused_activation_function(
        self, expr: Any, fused_activation_fn: int, scale: float, zero_point: int, dtype: str
    ) -> Any:
        """Clip quantized values; bounds are rounded as LiteRT does: float32 division, half away from zero."""
        if fused_activation_fn == tflite.ActivationFunctionType.NONE:
            return expr
        bounds = _ACTIVATION_BOUNDS.get(fused_activation_fn)
        if bounds is None:
            raise RejectedOpError(f"fused activation {self.activation_fn_type.get(fused_activation_fn, fused_activation_fn)}")
        qmin, qmax = INTEGER_RANGE[dtype]
        low, high = (_quantized_bound(bound, scale, int(zero_point)) for bound in bounds)
        return ops.clip(expr, float(max(qmin, low)), float(min(qmax, high)))

    def _constant(self, tensor: Any, what: str) -> Any:
        """Return a constant's values; they decide the form of the graph, so that they can't be computed at run time."""
        if self.has_expr(tensor.tensor_idx):
            raise RejectedOpError(f"{what} computed at run time")
        return self.get_tensor_value(tensor)

    def _shape(self, tensor: Any) -> list[int]:
        """Return the shape that a tensor has: the file's, or where inputs have others what is known of it by now."""
        declared = [int(dim) for dim in tensor.tensor.ShapeAsNumpy()] if tensor.tensor.ShapeLength() else []
        is_known = self.has_expr(tensor.tensor_idx)
        if self.declared is None and is_known and not declared:  # a scalar, or a writer who states no shape
            return list(static_shape(self.get_expr(tensor.tensor_idx)) or [])
        if self.declared is None or not (is_known or self._reads_others) or (not is_known and tensor.buffer.DataLength()):
            return declared
        shape = static_shape(self.get_expr(tensor.tensor_idx)) if is_known else None
        if shape is None:
            raise RejectedOpError("the shape of its result at sizes other than the file's")
        return list(shape)

    def get_tensor_shape(self, tensor_wrapper: Any) -> Any:
        """Return the same to TVM's converters."""
        states_shape = self.declared is None and tensor_wrapper.tensor.ShapeLength()
        return super().get_tensor_shape(tensor_wrapper) if states_shape else self._shape(tensor_wrapper)

    _reads_others = False
    """Whether an operand of the op that is converted has another shape than the file states."""

    def _quantized(self, result: Any, output: Any) -> Any:
        """Return real values as the output tensor has them: quantized where it is quantized."""
        return self.quantize(result, output) if output.qnn_params else result

    def _finish(self, result: Any, output: Any, activation: int) -> Any:
        """Apply the fused activation; quantize first where the output is quantized."""
        if not output.qnn_params:
            return self.convert_fused_activation_function(result, activation)
        return self.convert_qnn_fused_activation_function(
            expr=self.quantize(result, output),
            fused_activation_fn=activation,
            scale=float(output.qnn_params["scale"].value.numpy()),
            zero_point=int(output.qnn_params["zero_point"].value.numpy()),
            dtype=self.get_tensor_type_str(output.tensor.Type()),
        )

    def _real(self, tensor: Any) -> Any:
        """Return a tensor's real values: dequantized where it is quantized."""
        expr = self.get_tensor_expr(tensor)
        return self.dequantize(expr, tensor) if tensor.qnn_params else expr

    def _dynamic(self, expr: Any, shape: list[int], weight: Any) -> Any:
        """Return float activations as they meet int8 weights: quantized for each index of the first axis, and dequantized."""
        if self.get_tensor_type_str(weight.tensor.Type()) != "int8" or weight.qnn_params["zero_point"].value.numpy().any():
            return expr
        value = write_dynamic(self.bb.emit(expr), tuple(shape), "litert", self.bb.emit)
        return ops.dequantize(value.integers, value.scale, value.zero_point, axis=0)

    def _weight(self, tensor: Any, value: Any, axis: int) -> Any:
        """Make a weight a constant in the module's layout, with its output channels on `axis`, and dequantize it."""
        if not value.size:
            raise RejectedOpError(f"an empty weight {value.shape}")
        dtype = self.get_tensor_type_str(tensor.tensor.Type())
        moved = np.ascontiguousarray(value)
        if moved.nbytes >= SHARED_BYTES:
            forget_pages()  # there is a copy now of what was read for it
        expr = self.exp_tab.new_const(moved, dtype=dtype, source_name=tensor.tensor.Name())
        if not tensor.qnn_params:
            return expr
        return ops.dequantize(expr, tensor.qnn_params["scale"], tensor.qnn_params["zero_point"], axis=axis)


def _quantized_bound(bound: float, scale: float, zero_point: int) -> float:
    """Quantize a bound of an activation; infinity stays (LiteRT, CalculateActivationRangeQuantized)."""
    if math.isinf(bound):
        return bound
    quotient = float(np.float32(bound) / np.float32(scale))
    return math.copysign(math.floor(abs(quotient) + 0.5), quotient) + zero_point
