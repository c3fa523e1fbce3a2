"""Our converters of torchao's affine ops, which `quantize_` leaves: scales found at run time by row, and weights by block.

Imports no PyTorch and no torchao. `torchao_linear` has brought what is quantized at run time into rows of a matrix.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from tvm import relax
from tvm.ir import GenericConst as Constant

from ...ir.qdq.dynamic import write_torch_integers, write_torch_parameters
from ...ir.untyped import ops
from ...numerics.dynamic import TorchStyle
from ..frontend import RejectedOpError
from ..relax_ops import dtype_of, shape_of
from .ops import Arguments, Converter
from .pt2e import integer_range

_SMALLEST_SCALE = float(np.finfo(np.float32).tiny)
"""What torchao takes where no smallest scale is declared."""
_DTYPES: dict[str, Literal["int8", "uint8"]] = {"torch.int8": "int8", "torch.uint8": "uint8"}


def _integer_type(args: Arguments, dtype_argument: str) -> tuple[Literal["int8", "uint8"], int, int]:
    """Return the dtype of the integers and their range, checked."""
    dtype = _DTYPES.get(str(args[dtype_argument]))
    if dtype is None:
        raise RejectedOpError(f"integers of {args[dtype_argument]}; those of int8 and uint8 are supported")
    return dtype, *integer_range(args, dtype)


def _check_rows(args: Arguments) -> None:
    shape, block = shape_of(args["input"]), [int(size) for size in args["block_size"]]
    if len(shape) != 2 or block != [1, shape[1]]:
        raise RejectedOpError(f"scales found at run time for blocks {block} of {shape}; those of whole rows are supported")


def _choose(args: Arguments) -> Any:
    """Scale and zero point of each row, [rows, 1], as torchao's choose_qparams_affine finds them."""
    _check_rows(args)
    dtype, low, high = _integer_type(args, "target_dtype")
    mapping = str(args["mapping_type"])
    if mapping not in ("SYMMETRIC", "ASYMMETRIC") or dtype_of(args["input"]) != "float32":
        raise RejectedOpError(f"{mapping} scales of {dtype_of(args['input'])}; (a)symmetric ones of float32 are supported")
    if mapping == "SYMMETRIC" and (low + high + 1) // 2 != (128 if dtype == "uint8" else 0):
        raise RejectedOpError(f"a symmetric range [{low}; {high}] of {dtype}")
    eps = _SMALLEST_SCALE if args["eps"] is None else float(args["eps"])
    if not 0 < eps < np.inf:
        raise RejectedOpError(f"its smallest scale is {eps}, which is not positive")
    style = TorchStyle(dtype=dtype, qmin=low, qmax=high, eps=eps, is_symmetric=mapping == "SYMMETRIC", by_row=True)
    scale, zero_point = write_torch_parameters(args["input"], style, args.emit)
    return scale, zero_point


def _quantize(args: Arguments) -> Any:
    _check_rows(args)
    dtype, low, high = _integer_type(args, "output_dtype")
    x, rows = args["input"], shape_of(args["input"])[0]
    return write_torch_integers(x, args["scale"], args["zero_point"], dtype, (low, high), args.emit, rows=rows)


def _dequantize(args: Arguments) -> Any:
    """Dequantize rows by parameters found at run time, or a constant by those of its blocks."""
    x, scale, zero_point = args["input"], args["scale"], args["zero_point"]
    _integer_type(args, "input_dtype")
    if not isinstance(x, Constant):
        _check_rows(args)
        return ops.dequantize(x, scale, zero_point, axis=0, out_dtype="float32")
    shape, block = shape_of(x), [int(size) for size in args["block_size"]]
    if len(shape) != 2 or len(block) != 2 or block[0] != 1 or not block[1] or shape[1] % block[1]:
        raise RejectedOpError(f"a weight {shape} with scales for blocks {block}; blocks within a row are supported")
    count = shape[0] * shape[1] // block[1]
    if not isinstance(scale, Constant) or not isinstance(zero_point, Constant | None):
        raise RejectedOpError("a constant with scales computed at run time")
    scales = scale.value.numpy().reshape(-1).astype(np.float32)
    zeros = np.zeros(count, np.int32) if zero_point is None else zero_point.value.numpy().reshape(-1).astype(np.int32)
    if scales.shape != (count,) or zeros.shape != (count,) or not (np.isfinite(scales).all() and (scales > 0).all()):
        raise RejectedOpError(f"{scales.size} scales and {zeros.size} zero points of a weight of {count} blocks")
    parameters = (relax.const(scales), relax.const(zeros))
    if block[1] == shape[1]:
        return ops.dequantize(x, *parameters, axis=0, out_dtype="float32")
    rows = args.emit(ops.reshape(x, [count, block[1]]))
    return ops.reshape(args.emit(ops.dequantize(rows, *parameters, axis=0, out_dtype="float32")), shape)


TORCHAO_AFFINE: dict[str, Converter] = {
    "torchao.choose_qparams_affine.default": _choose,
    "torchao.quantize_affine.default": _quantize,
    "torchao.dequantize_affine.default": _dequantize,
}
"""Our converters by op and overload."""
