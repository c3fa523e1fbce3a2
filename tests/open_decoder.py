"""A small decoder of open batch and sequence, whose keys and values grow from step to step."""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from tvm import relax

import octavo

R: Any = relax.op
HEADS, SIZE = 2, 8
ZERO = {"int8": -3, "uint8": 130}
CARRY = {"key": "past_key", "value": "past_value"}


def decoder(*, encodes: bool = False, state: str = "float32", reads_past: bool = False) -> octavo.Model:
    """Return an attention of open batch and sequence over a past, which reads its keys as they lie and, once more, densely.

    With `encodes` it attends to what was encoded, too, of which something alone is computed. The past may hold integers or
    halves, and with `reads_past` it is read apart from what it grows to, so that it can't grow in place.
    """
    batch, sequence, past = (tvm.tirx.Var(name, "int64") for name in ("batch", "sequence", "past"))
    shape: Any = [batch, sequence, HEADS * SIZE]
    states: Any = [batch, HEADS, past, SIZE]
    x = relax.Var("x", relax.TensorType(shape, "float32"))
    keys, values = (relax.Var(name, relax.TensorType(states, state)) for name in ("past_key", "past_value"))
    builder: Any = relax.BlockBuilder()
    rows: Any = [batch, HEADS, tvm.tirx.Var("encoded_rows", "int64"), SIZE]
    encoded = relax.Var("encoded", relax.TensorType(rows, "float32"))
    with builder.function("main", [x, keys, values, *([encoded] if encodes else [])]):
        with builder.dataflow():

            def emit(name: str, value: Any) -> Any:
                return builder.emit(value, name_hint=name)

            split = [batch, sequence, HEADS, SIZE]
            new = emit("new", R.permute_dims(emit("split", R.reshape(x, split)), [0, 2, 1, 3]))
            kept = emit("kept", _kept(new, state)) if state != "float32" else new
            key, value = emit("key", R.concat([keys, kept], axis=2)), emit("value", R.concat([values, kept], axis=2))
            read = [each if state == "float32" else emit(f"{each.name}_read", _real(each, state)) for each in (key, value)]
            scores = emit("scores", R.matmul(new, emit("turned", R.permute_dims(read[0], [0, 1, 3, 2]))))
            weights = emit("weights", R.nn.softmax(scores, axis=-1))
            total = emit("total", R.sum(read[1], axis=[2], keepdims=True))
            y = emit("y", R.add(emit("read", R.matmul(weights, read[1])), total))
            if reads_past:
                for each in (keys, values):
                    y = emit(f"with_{each.name}", R.add(y, emit(f"{each.name}_sum", R.sum(each, axis=[2], keepdims=True))))
            if encodes:
                grown = emit("grown", R.exp(encoded))
                of_encoded = emit("of_encoded", R.matmul(new, emit("across", R.permute_dims(grown, [0, 1, 3, 2]))))
                y = emit("z", R.add(y, emit("read_encoded", R.matmul(emit("shares", R.nn.softmax(of_encoded)), grown))))
            outputs = builder.emit_output(relax.Tuple([y, key, value]))
        builder.emit_func_output(outputs)
    return octavo.load(builder.get())


def _kept(value: Any, dtype: str) -> Any:
    """Return what the past holds of a value: halves, or integers of one scale."""
    if dtype == "float16":
        return R.astype(value, dtype)
    return R.quantize(value, relax.const(np.float32(0.03)), relax.const(np.int32(ZERO[dtype])), axis=0, out_dtype=dtype)


def _real(value: Any, dtype: str) -> Any:
    """Return what is read of the past."""
    if dtype == "float16":
        return R.astype(value, "float32")
    return R.dequantize(value, relax.const(np.float32(0.03)), relax.const(np.int32(ZERO[dtype])), axis=0, out_dtype="float32")
