"""ONNX Runtime's ops on packed weights with a scale for each block: MatMulNBits and GatherBlockQuantized, as QDQ.

Works on protos, like the rewriting of QOperator nodes, and looks at the weights, which several values share a byte of.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from ..frontend import RejectedOpError
from .node_rewrite import NodeRewrite

_BITS = (2, 4, 8)


def _unpacked(packed: npt.NDArray[np.uint8], bits: int) -> npt.NDArray[np.uint8]:
    """Return the integers of the bytes of each row, those in the low bits first."""
    if bits == 8:
        return packed
    parts = [(packed >> np.uint8(shift)) & np.uint8(2**bits - 1) for shift in range(0, 8, bits)]
    return np.stack(parts, axis=-1).reshape(*packed.shape[:-1], -1).astype(np.uint8)


def _bits(r: NodeRewrite) -> int:
    bits = int(r.attrs.get("bits", 4))
    if bits not in _BITS:
        raise RejectedOpError(f"its attribute bits = {bits} is none of {', '.join(map(str, _BITS))}; quantize it to one of these")
    return bits


def _matmul(r: NodeRewrite) -> None:
    """Take MatMulNBits: A @ B^T + bias of B uint8 [N, blocks, bytes of a block]."""
    bits = _bits(r)
    inputs, outputs, block = (int(r.attrs.get(name, 0)) for name in ("K", "N", "block_size"))
    blocks = -(-inputs // block) if block else 0
    packed = r.value(1, "B")
    if packed.dtype != np.uint8 or packed.size != outputs * blocks * block * bits // 8 or not packed.size:
        raise RejectedOpError(
            f"B {packed.dtype} {packed.shape} does not fit K {inputs}, N {outputs}, block_size {block}, {bits} bits"
        )
    values = _unpacked(packed.reshape(outputs, -1), bits)
    scale = r.value(2, "scales").astype(np.float32).reshape(outputs, blocks)
    zero_point = _zero_points(r, outputs, blocks, bits)
    order = r.value(4, "g_idx").reshape(-1)[:inputs] if r.input(4) else None
    if inputs % block or order is not None or zero_point.dtype != np.uint8:  # has no form in QDQ
        place = np.arange(inputs) // block if order is None else order
        real = (values[:, :inputs].astype(np.float32) - zero_point[:, place].astype(np.float32)) * scale[:, place]
        matrix = r.constant(np.ascontiguousarray(real.T.astype(np.float32)))
    else:
        operands = [r.constant(np.ascontiguousarray(each)) for each in (values, scale, zero_point)]
        matrix = r.emit("Transpose", [r.emit("DequantizeLinear", operands, axis=1, block_size=block)], perm=[1, 0])
    bias = r.input(5)
    product = r.emit("MatMul", [r.required(0, "A"), matrix], to="" if bias else r.node.output[0])
    if bias:
        r.emit("Add", [product, bias], to=r.node.output[0])


def _zero_points(r: NodeRewrite, outputs: int, blocks: int, bits: int) -> npt.NDArray[np.uint8] | npt.NDArray[np.float32]:
    """Return [outputs, blocks]: integers, which are packed by rows, or floats, which are not."""
    if not r.input(3):
        return np.full((outputs, blocks), 2 ** (bits - 1), np.uint8)
    given = r.value(3, "zero_points")
    if given.dtype == np.uint8:
        return np.ascontiguousarray(_unpacked(given.reshape(outputs, -1), bits)[:, :blocks])
    return given.astype(np.float32).reshape(outputs, -1)[:, :blocks]


def _gather(r: NodeRewrite) -> None:
    """Take GatherBlockQuantized: choose among integers, their scales and zero points, then dequantize what was chosen."""
    bits, block = _bits(r), int(r.attrs.get("block_size", 128))
    data, scale = r.value(0, "data"), r.value(2, "scales")
    gathered, quantized = (
        int(r.attrs.get(name, default)) % data.ndim for name, default in (("gather_axis", 0), ("quantize_axis", 1))
    )
    if gathered == quantized:
        raise RejectedOpError(f"its gather_axis and quantize_axis are both {gathered}; quantize along another axis")
    is_packed = data.dtype == np.uint8
    zero_point = r.value(3, "zero_points") if r.input(3) else None
    if is_packed:
        data = _unpacked(data, bits)
        if zero_point is None:
            zero_point = np.full(scale.shape, 2 ** (bits - 1), np.uint8)
        else:
            zero_point = _unpacked(zero_point, bits)[..., : scale.shape[-1]]
    chosen = [r.constant(np.ascontiguousarray(data)) if is_packed else r.input(0), r.input(2)]
    if zero_point is not None:
        chosen.append(r.constant(np.ascontiguousarray(zero_point)) if is_packed else r.input(3))
    parts = [r.emit("Gather", [each, r.required(1, "indices")], axis=gathered) for each in chosen]
    axis = quantized if quantized < gathered else quantized - data.ndim  # indices may have several axes
    r.emit("DequantizeLinear", parts, to=r.node.output[0], axis=axis, block_size=block)


REWRITES: dict[str, Callable[[NodeRewrite], None]] = {"GatherBlockQuantized": _gather, "MatMulNBits": _matmul}
"""How each op becomes QDQ."""
