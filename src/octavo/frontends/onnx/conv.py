"""Our converters of ONNX ops with weights: Conv, ConvTranspose, Gemm, BatchNormalization, as integer kernels recognise them.

One-dimensional convolutions become two-dimensional ones of height 1. Normalization of dequantized values becomes a product and a
sum. Factors of Gemm go into its weights and its bias. All shapes are static here.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm import relax
from tvm.ir import GenericConst as Constant

from ...ir.graph.dataflow import call_to
from ...ir.untyped import ops
from ..frontend import RejectedOpError
from ..relax_ops import shape_of
from ..volumes import Volumes, Windows, transposed_images
from .norms import batch_norm_of_training
from .ops import Converter, NodeContext, input_at, with_padding


def convolution(
    context: NodeContext,
    data: Any,
    weight: Any,
    out_dtype: str = "",
    bias: Any = None,
    operands: Callable[[Any, Any], tuple[Any, Any]] | None = None,
) -> Any:
    """Return the convolution of a node's data and weight; `out_dtype` "" keeps theirs.

    `operands` makes what is convolved of data and weight, once these have the axes of an image.
    """
    emit = context.builder.emit
    spatial, kernel = shape_of(data)[2:], shape_of(weight)[2:]
    rank = len(spatial)
    if rank not in (1, 2, 3) or len(kernel) != rank:
        raise RejectedOpError(
            f"input of shape {shape_of(data)} and weight of shape {shape_of(weight)} make no 1-d to 3-d convolution"
        )
    strides, dilations = context.ints("strides", [1] * rank), context.ints("dilations", [1] * rank)
    data, padding = with_padding(context, data, kernel)
    is_row = rank == 1
    if is_row:
        data, weight = emit(ops.expand_dims(data, 2)), emit(ops.expand_dims(weight, 2))
        strides, dilations, padding, rank = [1, *strides], [1, *dilations], [0, padding[0], 0, padding[1]], 2
    if operands is not None:
        data, weight = operands(data, weight)
    groups = int(context.attrs.get("group", 1))
    typed = {"out_dtype": out_dtype} if out_dtype else {}

    def finish(result: Any) -> Any:
        return result if bias is None else _with_bias(context, result, bias)

    if rank == 3:
        windows = Windows(strides=strides, padding=padding, dilation=dilations)
        return Volumes(emit).convolution(data, weight, partial(ops.nn.conv2d, **typed), windows, groups, finish)
    result = emit(ops.nn.conv2d(data, weight, strides=strides, padding=padding, dilation=dilations, groups=groups, **typed))
    return ops.squeeze(emit(finish(result)), [2]) if is_row else finish(result)


def _with_bias(context: NodeContext, result: Any, bias: Any) -> Any:
    return ops.add(result, context.builder.emit(ops.reshape(bias, [1, shape_of(bias)[0], 1, 1])))


def _conv(context: NodeContext, inputs: list[Any]) -> Any:
    return convolution(context, inputs[0], inputs[1], bias=input_at(inputs, 2))


def _dequantize_of(context: NodeContext, expr: Any) -> Any:
    """Return the dequantize that a variable is bound to; None for anything else."""
    call: Any = context.builder.lookup_binding(expr) if isinstance(expr, relax.Var) else None
    return call_to(call, "dequantize")


def _conv_transpose(context: NodeContext, inputs: list[Any]) -> Any:
    """y[o] = sum of w[k] * x[i] over o = i * stride + k * dilation - before; rows become images of height 1.

    Of 16-bit integers, whose kernels know no transposed convolution, the input is spread by its zero point between rows and
    columns, then convolved at stride 1 with the turned kernel.
    """
    emit, (x, w) = context.builder.emit, inputs[:2]
    rank = len(shape_of(x)) - 2
    if rank not in (1, 2, 3) or len(shape_of(w)) != rank + 2:
        return None
    strides, dilations = (context.ints(name, [1] * rank) for name in ("strides", "dilations"))
    attributes: dict[str, Any] = {"strides": strides, "dilation": dilations, "groups": int(context.attrs.get("group", 1))}
    attributes["windows"] = _transposed_windows(context, shape_of(x)[2:], shape_of(w)[2:])
    bias = input_at(inputs, 2)

    def finish(result: Any) -> Any:
        return result if bias is None else _with_bias(context, result, bias)

    if rank == 3:
        return Volumes(emit).transposed_convolution(x, w, transposed_images, finish=finish, **attributes)
    if rank == 1:
        x, w = emit(ops.expand_dims(x, 2)), emit(ops.expand_dims(w, 2))
        attributes |= {"strides": [1, *strides], "dilation": [1, *dilations], "windows": [(0, 0), *attributes["windows"]]}
    quantized = _dequantize_of(context, inputs[0])
    if quantized is not None and _is_wide(quantized) and rank == 2:
        result = finish(emit(_wide_conv_transpose(context, quantized, w, **attributes)))
    else:
        result = finish(emit(transposed_images(x, w, **attributes)))
    return ops.squeeze(emit(result), [2]) if rank == 1 else result


def _is_wide(dequantize: Any) -> bool:
    """Return whether a dequantize reads 16-bit integers of one scale."""
    return str(dequantize.args[0].ty.dtype) in ("int16", "uint16") and dequantize.args[1].ty.ndim == 0


def _wide_conv_transpose(
    context: NodeContext, x: Any, w: Any, *, strides: list[int], windows: list[tuple[int, int]], dilation: list[int], groups: int
) -> Any:
    reach = [(taps - 1) * dilation for taps, dilation in zip(shape_of(w)[2:], dilation, strict=True)]
    befores = [far - before for far, (before, _) in zip(reach, windows, strict=True)]
    behinds = [far - after - stride + 1 for far, (_, after), stride in zip(reach, windows, strides, strict=True)]
    if min(befores) < 0:
        raise RejectedOpError(f"pads {windows} drop whole rows or columns of a 16-bit input")
    integers = _spread(context, x.args[0], int(x.args[2].value.numpy()), strides, [min(behind, 0) for behind in behinds])
    return ops.nn.conv2d(
        context.builder.emit(ops.dequantize(integers, *x.args[1:3], axis=0, out_dtype=str(w.ty.dtype))),
        _flipped_kernel(context, w, groups),
        padding=[*befores, *(max(behind, 0) for behind in behinds)],
        dilation=dilation,
        groups=groups,
    )


def _transposed_windows(context: NodeContext, sizes: list[Any], kernel: list[int]) -> list[tuple[int, int]]:
    """Return for each axis what is taken off the sums (before, after); after < 0 is added behind them.

    Sizes as in the ONNX operator reference, ConvTranspose: output = stride * (input - 1) + output_padding + reach + 1 - pads,
    with reach = (kernel - 1) * dilation.
    """
    rank = len(sizes)
    strides, dilations = context.ints("strides", [1] * rank), context.ints("dilations", [1] * rank)
    extra, pads = context.ints("output_padding", [0] * rank), context.ints("pads", [0] * 2 * rank)
    mode, declared = context.text("auto_pad", "NOTSET"), context.ints("output_shape", [])
    if declared and not all(isinstance(size, int) for size in sizes):
        raise RejectedOpError(f"output_shape {declared} of an image of open sizes; {context.symbols.advice()}")
    windows: list[tuple[int, int]] = []
    for axis, (size, taps, stride) in enumerate(zip(sizes, kernel, strides, strict=True)):
        # Of the sums, beyond stride * size: a number even where the size is open.
        beyond = (taps - 1) * dilations[axis] + 1 + extra[axis] - stride
        before, after = (0, 0) if mode == "VALID" else (pads[axis], pads[axis + rank])
        if mode in ("SAME_UPPER", "SAME_LOWER") or declared:
            over = beyond + stride * size - declared[axis - rank] if declared else beyond
            total = max(over, 0)
            before = total // 2 if mode != "SAME_LOWER" else total - total // 2
            # Where the sizes are declared, only SAME_UPPER puts the odd one behind.
            before = total - total // 2 if declared and mode != "SAME_UPPER" else before
            after = over - before
        after -= extra[axis]
        if -after >= stride:
            raise RejectedOpError(
                f"{-after} rows or columns beyond the last tap, of stride {stride}: expected less than the stride"
            )
        windows.append((before, after))
    return windows


def _spread(context: NodeContext, x: Any, zero_point: int, strides: list[int], dropped: list[int]) -> Any:
    """Put stride - 1 zero points behind each row and column of integers; `dropped` (0 or less) takes off some of the last."""
    emit = context.builder.emit
    batch, channels, height, width = shape_of(x)
    rows, columns = height * strides[0], width * strides[1]
    if strides != [1, 1]:
        x = emit(ops.reshape(x, [batch, channels, height, 1, width, 1]))
        x = emit(ops.nn.pad(x, [0, 0, 0, 0, 0, 0, 0, strides[0] - 1, 0, 0, 0, strides[1] - 1], pad_value=zero_point))
        x = emit(ops.reshape(x, [batch, channels, rows, columns]))
    if min(dropped) < 0:
        x = emit(ops.strided_slice(x, axes=[2, 3], begin=[0, 0], end=[rows + dropped[0], columns + dropped[1]]))
    return x


def _flipped_kernel(context: NodeContext, weight: Any, groups: int) -> Any:
    """Return a transposed convolution's weight [in, out / groups, rows, columns] as a convolution's [out, in / groups, ...]."""
    emit = context.builder.emit
    channels, outputs, *kernel = shape_of(weight)
    for axis, taps in enumerate(kernel):
        weight = emit(ops.flip(weight, 2 + axis)) if taps > 1 else weight
    if groups == 1:
        return emit(ops.permute_dims(weight, [1, 0, 2, 3]))
    weight = emit(ops.reshape(weight, [groups, channels // groups, outputs, *kernel]))
    weight = emit(ops.permute_dims(weight, [0, 2, 1, 3, 4]))
    return emit(ops.reshape(weight, [groups * outputs, channels // groups, *kernel]))


def _gemm(context: NodeContext, inputs: list[Any]) -> Any:
    """alpha * A @ B + beta * C; alpha goes into B and beta into C, into their scales where they are quantized constants."""
    emit = context.builder.emit
    a, b, c = inputs[0], inputs[1], input_at(inputs, 2)
    alpha, beta = (float(context.attrs.get(name, 1.0)) for name in ("alpha", "beta"))
    if not all(np.isfinite([alpha, beta])):
        raise RejectedOpError(f"alpha {alpha} and beta {beta} must be finite")
    b = _scaled(context, b, alpha)
    if context.attrs.get("transA", 0):
        a = emit(ops.permute_dims(a, [1, 0]))
    if context.attrs.get("transB", 0):
        b = emit(ops.permute_dims(b, [1, 0]))
    result = ops.matmul(a, b)
    return result if c is None else ops.add(emit(result), _scaled(context, c, beta))


def _scaled(context: NodeContext, value: Any, factor: float) -> Any:
    """Return factor * value, in the scale of a dequantize where that can be."""
    if factor == 1.0:
        return value
    dtype = str(value.ty.dtype)
    if isinstance(value, Constant):
        return relax.const(value.value.numpy() * np.dtype(dtype).type(factor), dtype)
    call = _dequantize_of(context, value)
    if call is not None and factor > 0 and isinstance(call.args[1], Constant):
        scale = call.args[1].value.numpy()
        scaled = (scale * np.float32(factor)).astype(scale.dtype)
        if np.isfinite(scaled).all() and (scaled > 0).all():
            parameters = [relax.const(scaled, str(scale.dtype)), call.args[2]]
            return context.builder.emit(ops.dequantize(call.args[0], *parameters, axis=call.attrs.axis, out_dtype=dtype))
    return context.builder.emit(ops.multiply(value, relax.const(factor, dtype)))


def _real_constant(context: NodeContext, expr: Any) -> npt.NDArray[Any] | None:
    """Return the values of a constant, or of a dequantized one (ONNX Runtime quantizes a normalization's, too)."""
    if isinstance(expr, Constant):
        return expr.value.numpy()
    call = _dequantize_of(context, expr)
    if call is None or not all(isinstance(operand, Constant) for operand in call.args):
        return None
    values, scale, zero_point = (operand.value.numpy() for operand in call.args)
    if scale.ndim == 1 and values.ndim != 1:
        return None
    return ((values.astype(np.int64) - zero_point).astype(np.float32) * scale).astype(np.float32)


def _batch_norm(context: NodeContext, inputs: list[Any]) -> Any:
    """Return x * factor + shift for dequantized x: a function of one value in each channel. Else TVM's op, which convs absorb."""
    if context.attrs.get("training_mode", 0):
        return batch_norm_of_training(context, inputs)
    statistics = [value for operand in inputs[1:5] if (value := _real_constant(context, operand)) is not None]
    if _dequantize_of(context, inputs[0]) is None or len(statistics) < 4:
        return None
    if any(context.is_read(output) for output in range(1, len(context.node.output))):
        return None
    shape = shape_of(inputs[0])
    scale, bias, mean, variance = (value.astype(np.float64) for value in statistics)
    with np.errstate(all="ignore"):
        factor = scale / np.sqrt(variance + float(context.attrs.get("epsilon", 1e-5)))
        shift = bias - mean * factor
    if len(shape) < 2 or any(value.shape != (shape[1],) or not np.isfinite(value).all() for value in (factor, shift)):
        return None
    along = [1, shape[1], *[1] * (len(shape) - 2)]
    factor_of, shift_of = (relax.const(value.reshape(along).astype(np.float32), "float32") for value in (factor, shift))
    result = ops.add(context.builder.emit(ops.multiply(inputs[0], factor_of)), shift_of)
    # The op has more results than the one that inference reads.
    return relax.Tuple([result, *inputs[3:5]]) if len(context.node.output) > 1 else result


CONVERTERS: dict[str, Converter] = {
    "BatchNormalization": _batch_norm,
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "Gemm": _gemm,
}
"""Our converters by ONNX op."""
