"""Weights of a .tflite file of 2 or 4 bits become int8; those with a scale for each block of a row float32. Converts no op."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import tflite

from .flatbuffer import Table

_INT2 = 19
"""TensorType.INT2, which the package `tflite` does not know."""
_BITS = {tflite.TensorType.INT4: 4, _INT2: 2}
NARROW = frozenset(_BITS)
"""Types of tensors that `widen` writes anew."""
_BLOCKWISE = 2
"""QuantizationDetails.BlockwiseQuantization, which the package `tflite` does not know."""


def widen(tables: Table, model: Any) -> None:
    """Write narrow constants anew, in buffers of their own; `model` is the file that the tables were read of."""
    for place, graph in enumerate(tables["Subgraphs"]):
        plain = model.Subgraphs(place)
        for index, tensor in enumerate(graph["Tensors"] or []):
            bits = _BITS.get(tensor.number("Type"))
            buffer = tables["Buffers"][tensor.number("Buffer")]
            if bits is None or buffer["Data"] is None or not buffer["Data"].size:
                continue
            shape = [int(dim) for dim in tensor["Shape"]] if tensor["Shape"] is not None else []
            value = _unpacked(buffer["Data"], bits, shape)
            tensor["Type"] = tflite.TensorType.INT8
            blocks = _blocks(plain.Tensors(index).Quantization())
            if blocks is not None:
                scales = graph["Tensors"][blocks]
                data = tables["Buffers"][scales.number("Buffer")]["Data"]
                dtype = np.float16 if scales.number("Type") == tflite.TensorType.FLOAT16 else np.float32
                steps = data.view(dtype).reshape(shape[0], -1).astype(np.float32)
                value = (value.reshape(shape[0], steps.shape[1], -1) * steps[..., None]).reshape(shape).astype(np.float32)
                tensor["Type"], tensor["Quantization"] = tflite.TensorType.FLOAT32, None
            tensor["Buffer"] = len(tables["Buffers"])
            tables["Buffers"].append(Table(kind="Buffer", fields={"Data": value.reshape(-1).view(np.uint8)}))


def _unpacked(data: npt.NDArray[Any], bits: int, shape: list[int]) -> npt.NDArray[Any]:
    """Return integers with a sign that lie in a byte, the first in its lowest bits."""
    count = int(np.prod(shape, dtype=int))
    parts = np.stack([(data >> shift) & ((1 << bits) - 1) for shift in range(0, 8, bits)], 1).reshape(-1)[:count].astype(np.int8)
    half = 1 << (bits - 1)
    return ((parts ^ half) - half).astype(np.int8).reshape(shape)


def _blocks(quantization: Any) -> int | None:
    """Return the tensor that has the scales of blocks; None of other weights."""
    if quantization is None or quantization.DetailsType() != _BLOCKWISE:
        return None
    table = quantization.Details()
    place = table.Offset(4)  # the field `scales`
    return int(np.frombuffer(table.Bytes, np.int32, 1, table.Pos + place)[0]) if place else 0
