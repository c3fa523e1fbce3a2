"""Our converters of PyTorch's `quantized_decomposed` ops, static and dynamic. Imports no PyTorch; chooses no scale itself.

Scales known at export are written as constants, which is what integer kernels are recognised by; a constant that is quantized
becomes its integers here, as PyTorch computes them. Scales found at run time are variables.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from tvm import relax
from tvm.ir import GenericConst as Constant

from ...ir.qdq.dynamic import write_torch_integers, write_torch_parameters
from ...ir.untyped import ops
from ...numerics import INTEGER_RANGE
from ...numerics.dynamic import TorchStyle
from ..frontend import RejectedOpError
from ..relax_ops import dtype_of, shape_of
from .ops import Arguments, Converter


def _dtype_argument(value: Any) -> str:
    return str(value).removeprefix("torch.")


def _array(value: Any, what: str) -> npt.NDArray[Any]:
    """Return a literal number or a constant as an array."""
    if isinstance(value, float | int):
        return np.asarray(value)
    if not isinstance(value, Constant):
        raise RejectedOpError(f"its {what} must be constant")
    return value.value.numpy()


def integer_range(args: Arguments, dtype: str) -> tuple[int, int]:
    """Return the checked range [quant_min; quant_max] of a node; that of the dtype where none is given."""
    if dtype not in INTEGER_RANGE:
        raise RejectedOpError(f"element type {dtype} is none of {', '.join(INTEGER_RANGE)}")
    dtype_min, dtype_max = INTEGER_RANGE[dtype]
    given = [args[name] for name in ("quant_min", "quant_max")]
    low, high = (
        default if value is None else int(_array(value, "range").item())
        for value, default in zip(given, (dtype_min, dtype_max), strict=True)
    )
    if not dtype_min <= low < high <= dtype_max:
        raise RejectedOpError(f"range [{low}; {high}] lies outside of {dtype}'s [{dtype_min}; {dtype_max}]")
    return low, high


def _parameters(args: Arguments, dtype: str) -> tuple[npt.NDArray[Any], npt.NDArray[np.int32], int]:
    """Return scale (as declared, float32 or float64), zero point and axis that a quantize or dequantize states, checked."""
    per_channel = "scales" in args.values
    scale = _array(args["scales"] if per_channel else args["scale"], "scale")
    zero_argument = args["zero_points"] if per_channel else args["zero_point"]
    zero_point = np.zeros(scale.shape, np.int32) if zero_argument is None else _array(zero_argument, "zero point")
    in_float32 = scale.astype(np.float32)
    if not (np.isfinite(in_float32).all() and (in_float32 > 0).all()):
        raise RejectedOpError("every scale must be finite and positive in float32")
    dtype_min, dtype_max = INTEGER_RANGE[dtype]
    if (zero_point < dtype_min).any() or (zero_point > dtype_max).any():
        raise RejectedOpError(f"a zero point lies outside of {dtype}'s [{dtype_min}; {dtype_max}]")
    zero_point = zero_point.astype(np.int32)
    if not per_channel:
        return scale.reshape(()), zero_point.reshape(()), 0
    shape = shape_of(args["input"])
    axis = int(args["axis"]) % max(len(shape), 1)
    scale, zero_point = scale.reshape(-1), zero_point.reshape(-1)
    if scale.shape != (shape[axis],) or zero_point.shape != scale.shape:
        raise RejectedOpError(f"{scale.size} scales and {zero_point.size} zero points do not fit axis {axis} of {shape}")
    return scale, zero_point, axis


def _expressions(args: Arguments, dtype: str) -> tuple[Any, Any, int]:
    """Return scale and zero point as Relax takes them, and the axis: constants, or scalars that arrive at run time."""
    scale, zero_point = args.values.get("scale"), args.values.get("zero_point")
    if isinstance(scale, relax.Var):
        scale = args.emit(ops.reshape(scale, []))
        return scale, args.emit(ops.reshape(zero_point, [])), 0
    declared, zeros, axis = _parameters(args, dtype)
    return relax.const(declared.astype(np.float32), "float32"), relax.const(zeros, "int32"), axis


def _quantize(args: Arguments) -> Any:
    """A range narrower than the dtype's becomes a clip of the integers."""
    dtype, x = _dtype_argument(args["dtype"]), args["input"]
    low, high = integer_range(args, dtype)
    if isinstance(x, Constant):
        return relax.const(_quantized(args, x.value.numpy(), dtype, low, high), dtype)
    if isinstance(args.values.get("scale"), relax.Var):
        return write_torch_integers(x, args["scale"], args["zero_point"], dtype, (low, high), args.emit)
    scale, zero_point, axis = _expressions(args, dtype)
    result = ops.quantize(x, scale, zero_point, axis=axis, out_dtype=dtype)
    if (low, high) == INTEGER_RANGE[dtype]:
        return result
    return ops.clip(args.emit(result), low, high)


def _quantized(args: Arguments, x: npt.NDArray[Any], dtype: str, low: int, high: int) -> npt.NDArray[Any]:
    """Return the integers of a constant: clamp(rint(x * (1 / scale)) + zero_point), half to even, in float32.

    PyTorch multiplies by the reciprocal, of a literal scale in float64.
    """
    scale, zero_point, axis = _parameters(args, dtype)
    inverse = (np.ones((), scale.dtype) / scale).astype(np.float32)
    if inverse.ndim:
        wide = [-1 if at == axis else 1 for at in range(x.ndim)]
        inverse, zero_point = inverse.reshape(wide), zero_point.reshape(wide)
    with np.errstate(over="ignore"):  # what overflows is clamped
        steps = np.rint(x.astype(np.float32) * inverse) + zero_point.astype(np.float32)
    return np.clip(steps, low, high).astype(dtype)


def _dequantize(args: Arguments) -> Any:
    declared, dtype = _dtype_argument(args["dtype"]), dtype_of(args["input"])
    if declared != dtype:
        raise RejectedOpError(f"it reads {dtype} but states {declared}")
    result = args["out_dtype"]
    if result is not None and _dtype_argument(result) != "float32":
        raise RejectedOpError(f"its result is {_dtype_argument(result)}; only float32 is supported")
    integer_range(args, dtype)
    scale, zero_point, axis = _expressions(args, dtype)
    return ops.dequantize(args["input"], scale, zero_point, axis=axis, out_dtype="float32")


def _choose(args: Arguments, *, symmetric: bool) -> Any:
    """Scale and zero point of a tensor found at run time, (1,) each; `TorchStyle` says how."""
    x, dtype = args["input"], _dtype_argument(args["dtype"])
    qmin, qmax, eps = int(args["quant_min"]), int(args["quant_max"]), float(args["eps"])
    if dtype not in ("int8", "uint8") or dtype_of(x) != "float32":
        raise RejectedOpError(f"it finds scales of {dtype_of(x)} for {dtype}; only those of float32 for 8 bits are supported")
    integer_range(args, dtype)
    if not 0 < eps < np.inf:
        raise RejectedOpError(f"its smallest scale is {eps}, which is not positive")
    style = TorchStyle(dtype=dtype, qmin=qmin, qmax=qmax, eps=eps, is_symmetric=symmetric)
    return write_torch_parameters(x, style, args.emit)


def _convert_element_type(args: Arguments) -> Any:
    dtype, x = _dtype_argument(args["dtype"]), args["input"]
    if dtype not in ("float16", "float32"):
        raise RejectedOpError(f"conversion to {dtype} is not supported")
    return relax.const(x.value.numpy().astype(dtype)) if isinstance(x, Constant) else ops.astype(x, dtype)


PT2E: dict[str, Converter] = {
    **{f"quantized_decomposed.quantize_per_tensor.{kind}": _quantize for kind in ("default", "tensor", "tensor2")},
    **{f"quantized_decomposed.dequantize_per_tensor.{kind}": _dequantize for kind in ("default", "tensor", "tensor2")},
    "quantized_decomposed.quantize_per_channel.default": _quantize,
    "quantized_decomposed.dequantize_per_channel.default": _dequantize,
    "quantized_decomposed.choose_qparams.tensor": lambda args: _choose(args, symmetric=False),
    "quantized_decomposed.choose_qparams_symmetric.tensor": lambda args: _choose(args, symmetric=True),
    "quantized_decomposed.convert_element_type.no_fuse": _convert_element_type,
}
"""Our converters by op and overload."""
