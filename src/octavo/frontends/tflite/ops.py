"""Our converter of TFLite ops: those with weights and windows here, the others in the modules it inherits from."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import tflite
from tvm import relax

from ...ir.untyped import ops
from ...numerics import INTEGER_RANGE
from ...runtime.size import OpenSizeError, Size
from ..frontend import RejectedOpError
from ..relax_ops import padded_for_windows, same_padding
from .base import BaseConverter, float_const
from .counting import CountingConverter
from .detection_postprocess import DetectionConverter
from .elementwise import ElementwiseConverter
from .indexing import IndexingConverter
from .integer_layers import IntegerLayers
from .placing import PlacingConverter

_BINARY = {"FLOOR_DIV": ops.floor_divide, "FLOOR_MOD": ops.floor_mod}


_RSQRT_STEPS = 2.0**20
"""Of 1 (LiteRT, elementwise.cc)."""


class StoredConverter(BaseConverter):
    """Converters of NEG, FLOOR_DIV and FLOOR_MOD, of SQRT, whose result is cut to a stored integer, and of RSQRT in steps."""

    OWN_OPS = frozenset({"NEG", "RSQRT", "SQRT", *_BINARY})

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.convert_map["NEG"] = functools.partial(self._on_stored, function=ops.negative)
        self.convert_map["RSQRT"] = self._rsqrt
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
        turns = ops.floor(ops.divide(ops.add(value, float_const(-low)), count))
        return self._stored(ops.subtract(value, ops.multiply(turns, count)), output)

    def _sqrt(self, op: Any) -> Any:
        """Convert SQRT: LiteRT divides a root by the result's scale and cuts off what is behind the point."""
        data, output = self.get_input_tensors(op)[0], self.get_output_tensors(op)[0]
        root = ops.sqrt(self._real(data))
        if not output.qnn_params:
            return root
        scale = float_const(float(output.qnn_params["scale"].value.numpy()))
        # A root of what is below 0 has no value; LiteRT stops at the first one.
        return self.quantize(ops.multiply(ops.floor(ops.divide(root, scale)), scale), output)

    def _rsqrt(self, op: Any) -> Any:
        """Convert RSQRT; of 8-bit integers LiteRT rounds three times: 1 / sqrt of a number of input steps to 2^-20, that times a
        fraction, and that to output steps, from which the fraction is a power of two away."""
        data, output = self.get_input_tensors(op)[0], self.get_output_tensors(op)[0]
        if not output.qnn_params or self.get_tensor_type_str(data.tensor.Type()) not in ("int8", "uint8"):
            return self._quantized(ops.rsqrt(self._real(data)), output)
        scale, zero_point = (float(data.qnn_params[key].value.numpy()) for key in ("scale", "zero_point"))
        step = float(output.qnn_params["scale"].value.numpy())
        fraction, power = math.frexp(1.0 / (math.sqrt(scale) * step))
        value = ops.rsqrt(ops.subtract(self._integers(data), float_const(zero_point)))
        for factor in (_RSQRT_STEPS, fraction, 2.0**power / _RSQRT_STEPS):
            value = ops.floor(ops.add(ops.multiply(value, float_const(factor)), float_const(0.5)))
        return self.quantize(ops.multiply(value, float_const(step)), output)

    def _integers(self, tensor: Any) -> Any:
        """Return a quantized tensor's stored integers as float32."""
        return ops.dequantize(self.get_tensor_expr(tensor), float_const(1.0), relax.const(0, "int32"), axis=0)

    def _stored(self, integers: Any, output: Any) -> Any:
        """Return the quantized tensor whose stored integers these float32 values are."""
        scale, zero_point = (float_const(float(output.qnn_params[key].value.numpy())) for key in ("scale", "zero_point"))
        return self.quantize(ops.multiply(ops.subtract(integers, zero_point), scale), output)


_OWN = frozenset(
    {"AVERAGE_POOL_2D", "BATCH_MATMUL", "CONV_2D", "DEPTHWISE_CONV_2D", "DEQUANTIZE", "FULLY_CONNECTED", "MAX_POOL_2D"}
    | {"QUANTIZE", "TRANSPOSE_CONV"}
)


class OpConverter(
    IndexingConverter,
    ElementwiseConverter,
    StoredConverter,
    PlacingConverter,
    CountingConverter,
    DetectionConverter,
    IntegerLayers,
):
    """TVM's TFLite converter with our own for every op of quantized networks."""

    OWN_OPS = (
        _OWN
        | IndexingConverter.OWN_OPS
        | ElementwiseConverter.OWN_OPS
        | StoredConverter.OWN_OPS
        | PlacingConverter.OWN_OPS
        | CountingConverter.OWN_OPS
        | DetectionConverter.OWN_OPS
        | IntegerLayers.OWN_OPS
    )
    """Ops that take quantized and float tensors in any mixture."""
    _SUPPORTED_QUANTIZED_OPS = OWN_OPS

    def _add_bias(self, result: Any, data: Any, weight: Any, tensors: list[Any]) -> Any:
        """Add the last of `tensors`, the bias, if it is there; integers without parameters have the product of the scales."""
        if not tensors or tensors[0].tensor_idx < 0:
            return result
        bias = tensors[0]
        dtype = self.get_tensor_type_str(bias.tensor.Type())
        if dtype == "float32" or self.has_expr(bias.tensor_idx):
            return ops.add(result, self._real(bias))
        params = bias.qnn_params or weight.qnn_params
        if params is None:
            raise RejectedOpError(f"a bias of {dtype} without a scale")
        scale = params["scale"].value.numpy()
        if not bias.qnn_params and data.qnn_params:
            scale = (data.qnn_params["scale"].value.numpy() * scale).astype(np.float32)
        value: Any = self.get_tensor_value(bias)
        # 16-bit activations come with a bias of 64 bits, of which networks use few.
        limits = np.iinfo(np.int32)
        if value.size and (value.min() < limits.min or value.max() > limits.max):
            raise RejectedOpError("a bias beyond 32 bits")
        expr = self.exp_tab.new_const(value.astype(np.int32), dtype="int32", source_name=bias.tensor.Name())
        zero_point = relax.const(np.zeros(scale.shape, np.int32), "int32")
        return ops.add(result, ops.dequantize(expr, relax.const(scale, "float32"), zero_point, axis=0))

    def _padded(
        self, data: Any, kind: int, kernel: list[int], strides: list[int], dilation: list[int], *, lowest: bool = False
    ) -> tuple[Any, list[int]]:
        """Return the real values that windows go over, and the padding left to their op: none where it depends on sizes.

        Such padding is of 0, or of the `lowest` value that there is.
        """
        padding = self._spatial_padding(kind, self._shape(data)[1:3], kernel, strides, dilation)
        extents = [gap * (taps - 1) + 1 for gap, taps in zip(dilation, kernel, strict=True)]
        windows = {
            1 + axis: (padding[axis], extents[axis], strides[axis])
            for axis in range(2)
            if isinstance(padding[axis], Size) or isinstance(padding[2 + axis], Size)
        }
        if not windows:
            return self._real(data), padding
        fill = self._lowest(data) if lowest else 0.0
        stored = self._move_with_params_of(data, lambda x: padded_for_windows(lambda step: step, x, windows, fill))
        left = [0 if 1 + place % 2 in windows else width for place, width in enumerate(padding)]
        return (self.dequantize(stored, data) if data.qnn_params else stored), left

    def _lowest(self, tensor: Any) -> float:
        """Return the lowest number that a tensor may hold."""
        if not tensor.qnn_params:
            return float(np.finfo(np.float32).min)
        low, _ = INTEGER_RANGE[self.get_tensor_type_str(tensor.tensor.Type())]
        scale, zero_point = (float(tensor.qnn_params[key].value.numpy()) for key in ("scale", "zero_point"))
        return (low - zero_point) * scale

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
        channels = self._shape(data)[3]
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
        real, padding = self._padded(data, options.Padding(), kernel, strides, dilation)
        if weight.qnn_params and not data.qnn_params:
            real = self._dynamic(real, self._shape(data), weight)
        result = ops.nn.conv2d(
            real,
            self._weight(weight, value, axis),
            strides=strides,
            padding=padding,
            dilation=dilation,
            groups=groups,
            data_layout="NHWC",
            kernel_layout=layout,
        )
        return self._finish(
            self._add_bias(result, data, weight, tensors[2:]), self.get_output_tensors(op)[0], options.FusedActivationFunction()
        )

    def convert_fully_connected(self, op: Any) -> Any:
        """Convert FULLY_CONNECTED to a matmul with the weight, constant or not, as [inputs, outputs]."""
        tensors = self.get_input_tensors(op)
        data, weight = tensors[0], tensors[1]
        if self.has_expr(weight.tensor_idx):
            return self._times_computed_weight(op, tensors)
        options = self._get_builtin_options(op, tflite.FullyConnectedOptions)
        if options.WeightsFormat() != tflite.FullyConnectedOptionsWeightsFormat.DEFAULT:
            raise RejectedOpError("shuffled weights")
        value: Any = self.get_tensor_value_or_prefetched(weight)
        if weight.qnn_params and weight.qnn_params["scale"].value.numpy().ndim and weight.qnn_params["axis"] != 0:
            raise RejectedOpError(f"weight quantized along axis {weight.qnn_params['axis']}, not its output channels")
        expr = self.get_tensor_expr(data)
        shape = self._shape(data)
        inputs = int(value.shape[1])
        if not options.KeepNumDims() and (len(shape) != 2 or shape[1] != inputs):
            # TFLite takes any input as [batch, inputs]; the reshape goes first, on integers if they are.
            expr = ops.reshape(expr, [math.prod(shape) // inputs, inputs])
        output, activation = self.get_output_tensors(op)[0], options.FusedActivationFunction()
        if weight.qnn_params and not data.qnn_params:
            rows = [math.prod(shape) // inputs, inputs]
            real = self._dynamic(expr if shape == rows else ops.reshape(expr, rows), rows, weight)
            result = self._add_bias(ops.matmul(real, self._weight(weight, value.T, 1)), data, weight, tensors[2:])
            result, rank = self._finish(result, output, activation), output.tensor.ShapeLength()
            # Back to the input's axes last, where bias and activation are done.
            return result if rank in (0, 2) else ops.reshape(result, [*shape[:-1], int(value.shape[0])])
        real = self.dequantize(expr, data) if data.qnn_params else expr
        result = self._add_bias(ops.matmul(real, self._weight(weight, value.T, 1)), data, weight, tensors[2:])
        return self._finish(result, output, activation)

    def _times_computed_weight(self, op: Any, tensors: list[Any]) -> Any:
        """Return FULLY_CONNECTED of a weight that the graph computes, or that is an input: [outputs, inputs]."""
        data, weight, output = tensors[0], tensors[1], self.get_output_tensors(op)[0]
        options = self._get_builtin_options(op, tflite.FullyConnectedOptions)
        shape, inputs = self._shape(data), self._shape(weight)[1]
        real = self._real(data)
        if not options.KeepNumDims() and (len(shape) != 2 or shape[1] != inputs):
            real = ops.reshape(real, [math.prod(shape) // inputs, inputs])
        result = ops.matmul(real, ops.permute_dims(self._real(weight), [1, 0]))
        return self._finish(self._add_bias(result, data, weight, tensors[2:]), output, options.FusedActivationFunction())

    def convert_pool2d(self, op: Any, pool_type: str) -> Any:
        """Convert AVERAGE_POOL_2D and MAX_POOL_2D; a quantized average is a float average between dequantize and quantize."""
        if pool_type not in ("average", "max"):
            return super().convert_pool2d(op, pool_type)
        data, output = self.get_input_tensors(op)[0], self.get_output_tensors(op)[0]
        options = self._get_builtin_options(op, tflite.Pool2DOptions)
        kernel, strides = [options.FilterHeight(), options.FilterWidth()], [options.StrideH(), options.StrideW()]
        is_average = pool_type == "average"
        if is_average:  # it leaves out what is padded, which its op must know
            padding = self._spatial_padding(options.Padding(), self._shape(data)[1:3], kernel, strides, [1, 1])
            if any(isinstance(width, Size) for width in padding):
                raise OpenSizeError(f"padding SAME of an average depends on sizes {self._shape(data)[1:3]} that are open")
            real = self._real(data)
        else:
            real, padding = self._padded(data, options.Padding(), kernel, strides, [1, 1], lowest=True)
        attributes = {"pool_size": kernel, "strides": strides, "padding": padding, "layout": "NHWC"}
        activation = options.FusedActivationFunction()
        pool = ops.nn.avg_pool2d if is_average else ops.nn.max_pool2d
        return self._finish(pool(real, **attributes), output, activation)

    def convert_transpose_conv(self, op: Any) -> Any:
        """Convert TRANSPOSE_CONV of a constant weight; of int16 and float to the convolution of a spread input that it is."""
        declared, weight, data, *bias = self.get_input_tensors(op)
        options = self._get_builtin_options(op, tflite.TransposeConvOptions)
        if self.has_expr(weight.tensor_idx):
            raise RejectedOpError("a weight computed at run time")
        value: Any = self.get_tensor_value_or_prefetched(weight)
        if weight.qnn_params and weight.qnn_params["scale"].value.numpy().ndim and weight.qnn_params["axis"] != 0:
            raise RejectedOpError(f"weight quantized along axis {weight.qnn_params['axis']}, not its output channels")
        strides = [options.StrideH(), options.StrideW()]
        target = [int(dim) for dim in self._constant(declared, "an output shape")][1:3]
        sizes, kernel = self._shape(data)[1:3], [int(dim) for dim in value.shape[1:3]]
        same = options.Padding() == tflite.Padding.SAME
        # LiteRT pads a transposed convolution as the convolution that goes the other way.
        befores = [
            same_padding(wanted, taps, stride, 1)[0] if same else 0
            for stride, taps, wanted in zip(strides, kernel, target, strict=True)
        ]
        # What is taken off the sums behind; below 0 what no tap reaches.
        afters = [
            (size - 1) * stride + taps - before - wanted
            for size, stride, taps, wanted, before in zip(sizes, strides, kernel, target, befores, strict=True)
        ]
        if any(max(before, after) >= taps for before, after, taps in zip(befores, afters, kernel, strict=True)):
            raise RejectedOpError(f"output size {target} from {sizes}, kernel {kernel}, strides {strides}")
        is_short = data.qnn_params and self.get_tensor_type_str(data.tensor.Type()) in ("int8", "uint8")
        fits = all(-after < stride for after, stride in zip(afters, strides, strict=True))
        convolve = self._transposed if is_short and fits else self._spread_convolution
        result = convolve(data, weight, value, strides, befores, afters)
        activation = options.FusedActivationFunction() if hasattr(options, "FusedActivationFunction") else 0
        return self._finish(self._add_bias(result, data, weight, bias), self.get_output_tensors(op)[0], activation)

    def _transposed(self, data: Any, weight: Any, value: Any, strides: list[int], befores: list[int], afters: list[int]) -> Any:
        return ops.nn.conv2d_transpose(
            self._real(data),
            self._weight(weight, value, 0),
            strides=strides,
            padding=[*befores, *(max(after, 0) for after in afters)],
            output_padding=[max(-after, 0) for after in afters],
            data_layout="NHWC",
            kernel_layout="OHWI",
        )

    def _spread_convolution(
        self, data: Any, weight: Any, value: Any, strides: list[int], befores: list[int], afters: list[int]
    ) -> Any:
        """Spread the input by zeros between its rows and columns, and convolve it, at stride 1, with the kernel turned."""
        kernel = value.shape[1:3]
        leading = [int(taps) - 1 - before for taps, before in zip(kernel, befores, strict=True)]
        behind = [int(taps) - stride - after for taps, stride, after in zip(kernel, strides, afters, strict=True)]
        spread = self._move_with_params_of(data, lambda x: self._spread(x, self._shape(data), strides, behind))
        # OHWI, both ways turned -> HWIO
        return ops.nn.conv2d(
            self.dequantize(spread, data) if data.qnn_params else spread,
            self._weight(weight, value[:, ::-1, ::-1].transpose(1, 2, 3, 0), 3),
            padding=[*leading, *(max(width, 0) for width in behind)],
            data_layout="NHWC",
            kernel_layout="HWIO",
        )

    def _spread(self, x: Any, shape: list[int], strides: list[int], after: list[int]) -> Any:
        """Put stride - 1 zeros behind each row and column; `after` below 0 drops as many of the last."""
        batch, height, width, channels = shape
        rows, columns = height * strides[0], width * strides[1]
        if strides != [1, 1]:
            x = ops.reshape(x, [batch, height, 1, width, 1, channels])
            x = ops.nn.pad(x, [0, 0, 0, 0, 0, strides[0] - 1, 0, 0, 0, strides[1] - 1, 0, 0])
            x = ops.reshape(x, [batch, rows, columns, channels])
        if min(after) < 0:
            end = [rows + min(after[0], 0), columns + min(after[1], 0)]
            x = ops.strided_slice(x, axes=[1, 2], begin=[0, 0], end=end)
        return x

    def convert_batch_matmul(self, op: Any) -> Any:
        """Convert BATCH_MATMUL; an adjoint operand is transposed in its last two axes."""
        left, right = self.get_input_tensors(op)
        options = self._get_builtin_options(op, tflite.BatchMatMulOptions)
        if not left.qnn_params and not options.AdjX() and self._is_matrix(right):
            return self._times_matrix(left, right, self.get_output_tensors(op)[0], adjoint=options.AdjY())
        result = ops.matmul(self._adjoint(left, options.AdjX()), self._adjoint(right, options.AdjY()))
        return self._quantized(result, self.get_output_tensors(op)[0])

    def _is_matrix(self, tensor: Any) -> bool:
        """Whether a tensor is a quantized constant of one scale and one batch."""
        if self.has_expr(tensor.tensor_idx) or not tensor.qnn_params or tensor.qnn_params["scale"].value.numpy().ndim:
            return False
        return math.prod(self._shape(tensor)[:-2]) == 1

    def _times_matrix(self, left: Any, right: Any, output: Any, *, adjoint: bool) -> Any:
        """Return float activations times a quantized constant matrix: rows are quantized as they come, as in FULLY_CONNECTED."""
        value: Any = self.get_tensor_value(right)
        value = value.reshape(value.shape[-2:])
        value = value.T if adjoint else value
        rows = [math.prod(self._shape(left)) // int(value.shape[0]), int(value.shape[0])]
        real = self._dynamic(ops.reshape(self.get_tensor_expr(left), rows), rows, right)
        return ops.reshape(self._quantized(ops.matmul(real, self._weight(right, value, 1)), output), self._shape(output))

    def _adjoint(self, tensor: Any, adjoint: bool) -> Any:
        real = self._real(tensor)
        if not adjoint:
            return real
        rank = len(self._shape(tensor))
        return ops.permute_dims(real, [*range(rank - 2), rank - 1, rank - 2])

    def convert_quantize(self, op: Any) -> Any:
        """Convert QUANTIZE of real or of otherwise quantized values."""
        output = self.get_output_tensors(op)[0]
        if not output.qnn_params:
            raise RejectedOpError("a result without scale")
        return self.quantize(self._real(self.get_input_tensors(op)[0]), output)

    def convert_dequantize(self, op: Any) -> Any:
        """Convert DEQUANTIZE; a constant (weights kept in float16 or int8) is dequantized here."""
        data, output = self.get_input_tensors(op)[0], self.get_output_tensors(op)[0]
        dtype = self.get_tensor_type_str(data.tensor.Type())
        if not data.qnn_params and dtype != "float16":
            raise RejectedOpError(f"{dtype} without scale")
        if self.has_expr(data.tensor_idx):
            return self._real(data) if data.qnn_params else ops.astype(self.get_expr(data.tensor_idx), "float32")
        value: Any = self.get_tensor_value_or_prefetched(data)
        if not data.qnn_params:
            real = value.astype(np.float32)
        else:
            shape = [1] * value.ndim
            scale, zero_point = (data.qnn_params[key].value.numpy() for key in ("scale", "zero_point"))
            if scale.ndim:
                shape[data.qnn_params["axis"]] = -1
            real = (value.astype(np.int32) - zero_point.reshape(shape)).astype(np.float32) * scale.reshape(shape)
        if output.tensor_idx in self.subgraph.OutputsAsNumpy():
            return relax.const(real, "float32")
        self.set_prefetched_node(output.tensor_idx, real)
        return None
