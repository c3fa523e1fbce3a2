"""A small transformer, float or quantized, of sizes that can be replaced by names: open ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from tvm import relax
from tvm.relax import Expr

import octavo
from nets import model_of
from octavo.ir.graph import Model
from octavo.ir.graph.dataflow import BodyWriter, DataflowView, call_to
from octavo.ir.identity import TensorId
from octavo.quantizer.choices import Choices
from octavo.quantizer.quantize_graph import quantize_graph
from open_sizes import with_sizes

R: Any = relax.op
BATCH, SEQUENCE, PAST, ALL = 7, 11, 26, 37
"""Sizes in the quantized module, which divide no other dimension."""
WIDTH, HEADS, INNER, WORDS = 32, 4, 64, 50
OPEN = {ALL: "past + sequence", BATCH: "batch", SEQUENCE: "sequence", PAST: "past"}
PLAIN = {"bias_correction": False, "weight_rounding": "nearest", "equalization": "none", "min_sqnr": None}


def block(writer: BodyWriter, v: Mapping[str, Any], *, has_past: bool) -> Expr:
    """Attention and a dense layer behind it, each with a residual and a norm."""

    def emit(value: Any) -> Any:
        return writer.emit(f"t{len(writer.bindings)}", value)

    def dense(x: Any, weight: str) -> Any:
        return emit(R.add(emit(R.matmul(x, v[weight])), v[f"{weight}_bias"]))

    def heads(x: Any) -> Any:
        return emit(R.permute_dims(emit(R.reshape(x, [BATCH, SEQUENCE, HEADS, WIDTH // HEADS])), [0, 2, 1, 3]))

    x = emit(R.take(v["words"], v["ids"], axis=0))
    query, key, value = (heads(dense(x, name)) for name in ("wq", "wk", "wv"))
    if has_past:
        key, value = (emit(R.concat([v[f"past_{name}"], new], axis=2)) for name, new in (("k", key), ("v", value)))
    scores = emit(R.divide(emit(R.matmul(query, emit(R.permute_dims(key, [0, 1, 3, 2])))), relax.const(np.float32(3))))
    mixed = emit(R.matmul(emit(R.nn.softmax(emit(R.add(scores, v["mask"])), axis=-1)), value))
    flat = emit(R.reshape(emit(R.permute_dims(mixed, [0, 2, 1, 3])), [BATCH, SEQUENCE, WIDTH]))
    x = emit(R.nn.layer_norm(emit(R.add(x, dense(flat, "wo"))), v["gamma"], v["beta"], axes=[-1]))
    inner = emit(R.nn.gelu(dense(x, "w1")))
    x = emit(R.nn.layer_norm(emit(R.add(x, dense(inner, "w2"))), v["gamma"], v["beta"], axes=[-1]))
    last = emit(R.mean(x, axis=1))
    return relax.Tuple([writer.emit(f"y{place}", each, is_output=True) for place, each in enumerate((x, key, last))])


def network(*, has_past: bool) -> Model:
    rng = np.random.default_rng(3)
    weights = {"wq": (WIDTH, WIDTH), "wk": (WIDTH, WIDTH), "wv": (WIDTH, WIDTH), "wo": (WIDTH, WIDTH)}
    weights |= {"w1": (WIDTH, INNER), "w2": (INNER, WIDTH)}
    shapes = {**weights, **{f"{name}_bias": (shape[1],) for name, shape in weights.items()}}
    shapes |= {"gamma": (WIDTH,), "beta": (WIDTH,), "words": (WORDS, WIDTH)}
    params = {name: (rng.normal(size=shape) * 0.3).astype(np.float32) for name, shape in shapes.items()}
    kept = {f"past_{name}": ((BATCH, HEADS, PAST, WIDTH // HEADS), "float32") for name in "kv"} if has_past else {}
    keys = ALL if has_past else SEQUENCE
    inputs = {"ids": ((BATCH, SEQUENCE), "int64"), "mask": ((BATCH, 1, 1, keys), "float32"), **kept}
    return model_of(inputs, params, lambda writer, **v: block(writer, v, has_past=has_past), ("y0", "y1", "y2"))


def draw(rng: np.random.Generator, batch: int, sequence: int, past: int | None) -> dict[str, np.ndarray]:
    keys = sequence + (past or 0)
    data = {
        "ids": rng.integers(0, WORDS, (batch, sequence)),
        "mask": np.where(rng.random((batch, 1, 1, keys)) < 0.2, -9, 0).astype(np.float32),
    }
    if past is not None:
        shape = batch, HEADS, past, WIDTH // HEADS
        data |= {f"past_{name}": rng.normal(size=shape).astype(np.float32) for name in "kv"}
    return data


KINDS: dict[str, dict[str, Any]] = {
    "static": {},
    "int8 in all": {"float_ops": ()},
    "int16": {"activation_dtype": "int16", "float_ops": ()},
    "per row": {},
    "4 bits": {"weight_bits": 4, "weight_block": 32},
}


def quantized(kind: str, *, has_past: bool) -> Any:
    """Return the QDQ module of a transformer, of the sizes above."""
    model = network(has_past=has_past)
    rng = np.random.default_rng(4)
    samples = [draw(rng, BATCH, SEQUENCE, PAST if has_past else None) for _ in range(2)]
    named = [{f"net/{name}:0": value for name, value in sample.items()} for sample in samples]
    products = [
        binding.var.name
        for binding in DataflowView(model.module["main"]).bindings
        if call_to(binding.value, "matmul") is not None
    ]
    changes = {"changes": Choices(per_row={TensorId(name): "it is tried" for name in products})} if kind == "per row" else {}
    recipe = octavo.Recipe(**PLAIN, **KINDS[kind])
    return quantize_graph(model, octavo.profile(model, named), recipe=recipe, **changes).bound()


def loaded(module: Any, sizes: Mapping[int, Any]) -> Model:
    return octavo.load(with_sizes(module, sizes))
