"""Our converters of TFLite ops, for those where TVM's leave integer arithmetic, nested or doubled constants, or a wrong result.

A quantized op becomes dequantize, the float op, quantize, and a clip on integers for a fused activation. Only ops that move or
compare values (reshape, max pooling and the like with equal parameters) stay on integers.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import tflite
from tvm import relax
from tvm.relax.frontend.tflite import tflite_frontend

from ..numerics import INTEGER_RANGE

# TVM's stubs claim narrower arguments than its ops take.
_ops: Any = relax.op

# Ops that only move values: right on integers as TVM's converters have them, as long as scale and zero point stay the same.
MOVING_OPS = frozenset(
    {"BATCH_TO_SPACE_ND", "DEPTH_TO_SPACE", "EXPAND_DIMS", "GATHER", "GATHER_ND", "PACK", "RESIZE_NEAREST_NEIGHBOR", "REVERSE_V2"}
    | {"SLICE", "SPACE_TO_BATCH_ND", "SPACE_TO_DEPTH", "SPLIT", "SPLIT_V", "SQUEEZE", "STRIDED_SLICE", "TILE", "TRANSPOSE"}
    | {"UNPACK"}
)
_RELU, _RELU_N1_TO_1, _RELU6 = (
    tflite.ActivationFunctionType.RELU,
    tflite.ActivationFunctionType.RELU_N1_TO_1,
    tflite.ActivationFunctionType.RELU6,
)
_ACTIVATION_BOUNDS = {_RELU: (0.0, math.inf), _RELU_N1_TO_1: (-1.0, 1.0), _RELU6: (0.0, 6.0)}


class RejectedOpError(Exception):
    """A form of an op that cannot be imported, with the reason; the importer adds the op, its tensor and the file."""


def same_padding(size: int, kernel: int, stride: int, dilation: int) -> tuple[int, int]:
    """Return TFLite's padding SAME before and after one axis: ceil(size / stride) results, the odd one after."""
    total = max((-(-size // stride) - 1) * stride + dilation * (kernel - 1) + 1 - size, 0)
    return total // 2, total - total // 2


class OpConverter(tflite_frontend.OperatorConverter):
    """TVM's TFLite converter with the ops mended that the module's docstring tells of."""

    _SUPPORTED_QUANTIZED_OPS = tflite_frontend.OperatorConverter._SUPPORTED_QUANTIZED_OPS | {"PAD", "PADV2"} | MOVING_OPS

    def get_tensors(self, tensors_idx_list: Any) -> list[Any]:
        """Wrap tensors; per-axis parameters get one zero point for each scale, float tensors lose theirs."""
        tensors = super().get_tensors(tensors_idx_list)
        for tensor in tensors:
            if tensor.qnn_params is None:
                continue
            scale = tensor.qnn_params["scale"].value.numpy()
            if self.get_tensor_type_str(tensor.tensor.Type()) not in INTEGER_RANGE or not scale.any():
                tensor.qnn_params = None
            elif scale.ndim == 1:
                tensor.qnn_params["zero_point"] = relax.const(np.zeros(scale.shape, np.int32), "int32")
        return tensors

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
        return _ops.clip(expr, float(max(qmin, low)), float(min(qmax, high)))

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

    def _weight(self, tensor: Any, value: Any, axis: int) -> Any:
        """Make a weight a constant in the module's layout, with its output channels on `axis`, and dequantize it."""
        dtype = self.get_tensor_type_str(tensor.tensor.Type())
        expr = self.exp_tab.new_const(np.ascontiguousarray(value), dtype=dtype, source_name=tensor.tensor.Name())
        if not tensor.qnn_params:
            return expr
        return _ops.dequantize(expr, tensor.qnn_params["scale"], tensor.qnn_params["zero_point"], axis=axis)

    def _add_bias(self, result: Any, tensors: list[Any]) -> Any:
        if len(tensors) < 3 or tensors[2].tensor_idx < 0:
            return result
        bias = tensors[2]
        if tensors[0].qnn_params and not bias.qnn_params:
            scale = (tensors[0].qnn_params["scale"].value.numpy() * tensors[1].qnn_params["scale"].value.numpy()).astype(
                "float32"
            )
            zero_point = relax.const(np.zeros(scale.shape, np.int32), "int32")
            return _ops.add(
                result, _ops.dequantize(self.get_tensor_expr(bias), relax.const(scale, "float32"), zero_point, axis=0)
            )
        return _ops.add(result, self._real(bias))

    def _spatial_padding(
        self, kind: int, sizes: list[int], kernel: list[int], strides: list[int], dilation: list[int]
    ) -> list[int]:
        if kind == tflite.Padding.VALID:
            return [0, 0, 0, 0]
        if kind != tflite.Padding.SAME:
            raise RejectedOpError(f"padding {kind} is neither SAME nor VALID")
        pairs = [same_padding(*axis) for axis in zip(sizes, kernel, strides, dilation, strict=True)]
        return [pairs[0][0], pairs[1][0], pairs[0][1], pairs[1][1]]

    def convert_conv(self, op: Any, conv_type: str) -> Any:
        """Convert CONV_2D and DEPTHWISE_CONV_2D of constant weights, whose parameters follow the channel axis."""
        tensors = self.get_input_tensors(op)
        data, weight = tensors[0], tensors[1]
        if self.has_expr(weight.tensor_idx):
            return super().convert_conv(op, conv_type)
        depthwise = conv_type == "depthwise"
        options = self._get_builtin_options(op, tflite.DepthwiseConv2DOptions if depthwise else tflite.Conv2DOptions)
        _, height, width, channels = (int(dim) for dim in self.get_tensor_shape(data))
        value: Any = self.get_tensor_value_or_prefetched(weight)
        kernel = [int(dim) for dim in value.shape[1:3]]
        if weight.qnn_params and weight.qnn_params["scale"].value.numpy().ndim and weight.qnn_params["axis"] != 3 * depthwise:
            raise RejectedOpError(f"weight quantized along axis {weight.qnn_params['axis']}, not its output channels")
        if not depthwise:
            # OHWI -> HWIO
            value, layout, axis, groups = value.transpose(1, 2, 3, 0), "HWIO", 3, channels // int(value.shape[3])
            if groups * value.shape[2] != channels:
                raise RejectedOpError(f"{channels} input channels are no multiple of the weight's {value.shape[2]}")
        else:
            outputs = int(value.shape[3])
            if outputs % channels:
                raise RejectedOpError(f"{outputs} output channels are no multiple of {channels} input channels")
            # 1HWO -> HWOI with one input channel per group; of one group alone it is HWIO.
            single = channels == 1
            value = value.reshape(*kernel, *((1, outputs) if single else (outputs, 1)))
            layout, axis, groups = ("HWIO", 3, 1) if single else ("HWOI", 2, channels)
        strides, dilation = [options.StrideH(), options.StrideW()], [options.DilationHFactor(), options.DilationWFactor()]
        result = _ops.nn.conv2d(
            self._real(data),
            self._weight(weight, value, axis),
            strides=strides,
            padding=self._spatial_padding(options.Padding(), [height, width], kernel, strides, dilation),
            dilation=dilation,
            groups=groups,
            data_layout="NHWC",
            kernel_layout=layout,
        )
        return self._finish(self._add_bias(result, tensors), self.get_output_tensors(op)[0], options.FusedActivationFunction())

    def convert_fully_connected(self, op: Any) -> Any:
        """Convert FULLY_CONNECTED of a constant weight to a matmul with the weight as [inputs, outputs]."""
        tensors = self.get_input_tensors(op)
        data, weight = tensors[0], tensors[1]
        if self.has_expr(weight.tensor_idx):
            return super().convert_fully_connected(op)
        options = self._get_builtin_options(op, tflite.FullyConnectedOptions)
        if options.WeightsFormat() != tflite.FullyConnectedOptionsWeightsFormat.DEFAULT:
            raise RejectedOpError("shuffled weights")
        value: Any = self.get_tensor_value_or_prefetched(weight)
        if weight.qnn_params and weight.qnn_params["scale"].value.numpy().ndim and weight.qnn_params["axis"] != 0:
            raise RejectedOpError(f"weight quantized along axis {weight.qnn_params['axis']}, not its output channels")
        expr = self.get_tensor_expr(data)
        shape = [int(dim) for dim in self.get_tensor_shape(data)]
        inputs = int(value.shape[1])
        if not options.KeepNumDims() and (len(shape) != 2 or shape[1] != inputs):
            # TFLite takes any input as [batch, inputs]; the reshape goes first, on integers if they are.
            expr = _ops.reshape(expr, [math.prod(shape) // inputs, inputs])
        real = self.dequantize(expr, data) if data.qnn_params else expr
        result = self._add_bias(_ops.matmul(real, self._weight(weight, value.T, 1)), tensors)
        return self._finish(result, self.get_output_tensors(op)[0], options.FusedActivationFunction())

    def convert_pool2d(self, op: Any, pool_type: str) -> Any:
        """Convert AVERAGE_POOL_2D and MAX_POOL_2D; a quantized average is a float average between dequantize and quantize."""
        if pool_type not in ("average", "max"):
            return super().convert_pool2d(op, pool_type)
        data, output = self.get_input_tensors(op)[0], self.get_output_tensors(op)[0]
        options = self._get_builtin_options(op, tflite.Pool2DOptions)
        _, height, width, _ = (int(dim) for dim in self.get_tensor_shape(data))
        kernel, strides = [options.FilterHeight(), options.FilterWidth()], [options.StrideH(), options.StrideW()]
        padding = self._spatial_padding(options.Padding(), [height, width], kernel, strides, [1, 1])
        attributes = {"pool_size": kernel, "strides": strides, "padding": padding, "layout": "NHWC"}
        activation = options.FusedActivationFunction()
        if pool_type == "average":
            return self._finish(_ops.nn.avg_pool2d(self._real(data), **attributes), output, activation)
        if not data.qnn_params or not output.qnn_params or not self.has_same_qnn_params(data, output):
            return self._finish(_ops.nn.max_pool2d(self._real(data), **attributes), output, activation)
        return self.convert_qnn_fused_activation_function(
            expr=_ops.nn.max_pool2d(self.get_tensor_expr(data), **attributes),
            fused_activation_fn=activation,
            scale=float(output.qnn_params["scale"].value.numpy()),
            zero_point=int(output.qnn_params["zero_point"].value.numpy()),
            dtype=self.get_tensor_type_str(output.tensor.Type()),
        )

    def convert_reshape(self, op: Any) -> Any:
        """Convert RESHAPE to the shape that the file states for the result."""
        data, output = self.get_input_tensors(op)[0], self.get_output_tensors(op)[0]
        shape = [int(dim) for dim in output.tensor.ShapeAsNumpy()] if output.tensor.ShapeLength() else []
        if math.prod(shape) != math.prod(int(dim) for dim in self.get_tensor_shape(data)):
            return super().convert_reshape(op)
        if data.qnn_params and output.qnn_params and not self.has_same_qnn_params(data, output):
            return self.quantize(_ops.reshape(self._real(data), shape), output)
        return _ops.reshape(self.get_tensor_expr(data), shape)

    def convert_pad(self, op: Any) -> Any:
        """Convert PAD and PADV2; quantized ones pad real values, so that parameters need not be equal."""
        tensors = self.get_input_tensors(op)
        data, output = tensors[0], self.get_output_tensors(op)[0]
        if self.has_expr(tensors[1].tensor_idx):
            raise RejectedOpError("paddings that are computed at run time")
        widths = [int(width) for width in self.get_tensor_value(tensors[1]).reshape(-1)]
        fill = 0.0
        if len(tensors) == 3:
            fill = float(self.get_tensor_value(tensors[2]).reshape(-1)[0])
            if tensors[2].qnn_params:
                scale, zero_point = (float(tensors[2].qnn_params[key].value.numpy()) for key in ("scale", "zero_point"))
                fill = (fill - zero_point) * scale
        padded = _ops.nn.pad(self._real(data), widths, pad_value=fill)
        return self.quantize(padded, output) if output.qnn_params else padded

    def convert_softmax(self, op: Any) -> Any:
        """Convert SOFTMAX with its factor beta, which TVM's converter leaves out."""
        beta = self._get_builtin_options(op, tflite.SoftmaxOptions).Beta()
        data, output = self.get_input_tensors(op)[0], self.get_output_tensors(op)[0]
        expr = self._real(data)
        if beta != 1.0:
            expr = _ops.multiply(expr, relax.const(beta, "float32"))
        result = _ops.nn.softmax(expr, axis=-1)
        return self.quantize(result, output) if output.qnn_params else result


def _quantized_bound(bound: float, scale: float, zero_point: int) -> float:
    """Quantize a bound of an activation; infinity stays (LiteRT, CalculateActivationRangeQuantized)."""
    if math.isinf(bound):
        return bound
    quotient = float(np.float32(bound) / np.float32(scale))
    return math.copysign(math.floor(abs(quotient) + 0.5), quotient) + zero_point
