"""Small networks in the form that a frontend gives, for tests of profiling and quantizing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from tvm import relax
from tvm.relax import Expr, Var

from octavo.ir.graph import Model
from octavo.ir.graph.dataflow import BodyWriter, dtype_of, static_shape, write_function
from octavo.ir.identity import TensorEntry, TensorId, TensorTable


def model_of(
    inputs: Mapping[str, tuple[tuple[int, ...], str]],
    params: Mapping[str, np.ndarray],
    body: Callable[..., Expr],
    outputs: tuple[str, ...],
    *,
    fingerprint: str = "sha256:" + "0" * 64,
) -> Model:
    """Build a Model; `body(writer, **variables)` emits bindings, each named by a TensorId unless the name opens with "_"."""
    variables = {name: relax.Var(name, relax.TensorType(shape, dtype)) for name, (shape, dtype) in inputs.items()}
    variables |= {name: relax.Var(name, relax.TensorType(value.shape, str(value.dtype))) for name, value in params.items()}
    builder = relax.BlockBuilder()
    write_function(
        builder, "main", list(variables.values()), lambda writer: body(writer, **variables), {"num_input": len(inputs)}
    )
    module = builder.get()
    entries = [_entry(variables[name], "constant" if name in params else "input") for name in variables]
    for block in module["main"].body.blocks:
        for binding in block.bindings:
            if not binding.var.name.startswith("_"):
                entries.append(_entry(binding.var, "activation", is_output=binding.var.name in outputs))
    return Model(
        module=module,
        tensors=TensorTable(entries),
        params={TensorId(name): value for name, value in params.items()},
        input_ids=tuple(TensorId(name) for name in inputs),
        output_ids=tuple(TensorId(name) for name in outputs),
        fingerprint=fingerprint,
        source_format="relax",
    )


def _entry(var: Var, kind: Any, *, is_output: bool = False) -> TensorEntry:
    return TensorEntry(
        id=TensorId(var.name),
        source_name=f"net/{var.name}:0",
        kind=kind,
        op="Op" if kind == "activation" else "",
        shape=static_shape(var) or (),
        dtype=dtype_of(var),
        is_output=is_output,
    )


def residual_net(seed: int = 0, *, batch: int = 1) -> Model:
    """conv + bias + relu, depthwise + bias + clip, pointwise, residual add + relu, global mean, flatten, dense, softmax; NCHW."""
    rng = np.random.default_rng(seed)

    def weights(*shape: int) -> np.ndarray:
        return (rng.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float32)

    params = {
        "w1": weights(8, 3, 3, 3),
        "b1": weights(8),
        "w2": weights(8, 1, 3, 3),
        "b2": weights(8),
        "w3": weights(8, 8, 1, 1),
        "b3": weights(8),
        "w4": weights(10, 8),
        "b4": weights(10),
    }

    def body(writer: BodyWriter, x: Var, **p: Var) -> Expr:
        def conv(name: str, data: Expr, weight: Var, bias: Var, **attrs: Any) -> Expr:
            raw = writer.emit(f"_{name}_conv", relax.op.nn.conv2d(data, weight, **attrs))
            shaped = writer.emit(f"_{name}_bias", relax.op.reshape(bias, (1, -1, 1, 1)))
            return writer.emit(name, relax.op.add(raw, shaped))

        c1 = conv("c1", x, p["w1"], p["b1"], padding=1, strides=2)
        r1 = writer.emit("r1", relax.op.nn.relu(c1))
        c2 = conv("c2", r1, p["w2"], p["b2"], padding=1, groups=8)
        r2 = writer.emit("r2", relax.op.clip(c2, 0, 6))
        c3 = conv("c3", r2, p["w3"], p["b3"])
        s = writer.emit("s", relax.op.add(r1, c3))
        r3 = writer.emit("r3", relax.op.nn.relu(s))
        m = writer.emit("m", relax.op.mean(r3, axis=[2, 3], keepdims=True))
        f = writer.emit("f", relax.op.reshape(m, (batch, 8)))
        t = writer.emit("_t", relax.op.permute_dims(p["w4"], axes=[1, 0]))
        d = writer.emit("_d", relax.op.matmul(f, t))
        y = writer.emit("y", relax.op.add(d, p["b4"]))
        return writer.emit("p", relax.op.nn.softmax(y), is_output=True)

    return model_of({"x": ((batch, 3, 8, 8), "float32")}, params, body, ("p",))


def mlp(rng: np.random.Generator) -> Model:
    """Two dense layers, s1 -> h between them."""

    def body(writer: BodyWriter, **v: Any) -> Any:
        first = writer.emit("s1", relax.op.add(writer.emit("_m1", relax.op.matmul(v["x"], v["w1"])), v["b1"]))
        hidden = writer.emit("h", relax.op.nn.relu(first))
        return writer.emit("y", relax.op.add(writer.emit("_m2", relax.op.matmul(hidden, v["w2"])), v["b2"]), is_output=True)

    params = {
        "w1": rng.normal(size=(16, 24)),
        "b1": rng.normal(size=24),
        "w2": rng.normal(size=(24, 5)),
        "b2": rng.normal(size=5),
    }
    return model_of({"x": ((1, 16), "float32")}, {name: value.astype(np.float32) for name, value in params.items()}, body, ("y",))
