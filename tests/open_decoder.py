"""A small decoder of open batch and sequence, whose keys and values grow from step to step."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax

import octavo

R: Any = relax.op
HEADS, SIZE = 2, 8
CARRY = {"key": "past_key", "value": "past_value"}


def decoder(*, encodes: bool = False) -> octavo.Model:
    """Return an attention of open batch and sequence over a past, which reads its keys as they lie and, once more, densely.

    With `encodes` it attends to what was encoded, too, of which something alone is computed.
    """
    batch, sequence, past = (tvm.tirx.Var(name, "int64") for name in ("batch", "sequence", "past"))
    shape: Any = [batch, sequence, HEADS * SIZE]
    states: Any = [batch, HEADS, past, SIZE]
    x = relax.Var("x", relax.TensorType(shape, "float32"))
    keys, values = (relax.Var(name, relax.TensorType(states, "float32")) for name in ("past_key", "past_value"))
    builder: Any = relax.BlockBuilder()
    rows: Any = [batch, HEADS, tvm.tirx.Var("encoded_rows", "int64"), SIZE]
    encoded = relax.Var("encoded", relax.TensorType(rows, "float32"))
    with builder.function("main", [x, keys, values, *([encoded] if encodes else [])]):
        with builder.dataflow():

            def emit(name: str, value: Any) -> Any:
                return builder.emit(value, name_hint=name)

            split = [batch, sequence, HEADS, SIZE]
            new = emit("new", R.permute_dims(emit("split", R.reshape(x, split)), [0, 2, 1, 3]))
            key, value = emit("key", R.concat([keys, new], axis=2)), emit("value", R.concat([values, new], axis=2))
            scores = emit("scores", R.matmul(new, emit("turned", R.permute_dims(key, [0, 1, 3, 2]))))
            weights = emit("weights", R.nn.softmax(scores, axis=-1))
            total = emit("total", R.sum(value, axis=[2], keepdims=True))
            y = emit("y", R.add(emit("read", R.matmul(weights, value)), total))
            if encodes:
                grown = emit("grown", R.exp(encoded))
                of_encoded = emit("of_encoded", R.matmul(new, emit("across", R.permute_dims(grown, [0, 1, 3, 2]))))
                y = emit("z", R.add(y, emit("read_encoded", R.matmul(emit("shares", R.nn.softmax(of_encoded)), grown))))
            outputs = builder.emit_output(relax.Tuple([y, key, value]))
        builder.emit_func_output(outputs)
    return octavo.load(builder.get())
