"""Attention as one kernel: found where nobody else reads what it doesn't write, the same bytes as its steps, and told of each."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

import octavo
from nets import model_of
from octavo.compiler.backends.cpu import lowering
from octavo.compiler.backends.cpu.compose import Composed
from octavo.compiler.backends.cpu.kernels import ATTENTION, FLOAT_ATTENTION, KNOWN_ATTENTION
from octavo.ir.graph import Model
from octavo.ir.graph.dataflow import BodyWriter
from octavo.quantizer.choices import Choices
from octavo.quantizer.quantize_graph import quantize_graph
from octavo.runtime.llvm_host import host_target

R: Any = relax.op
MOVES = ("reshape", "permute_dims", "expand_dims", "tile", "nn.softmax")
PLAIN = octavo.Recipe(float_ops=MOVES, bias_correction=False, weight_rounding="nearest", equalization="none", min_sqnr=None)
TOKENS, HEADS, WIDTH = 19, 2, 8
X = (2, TOKENS, HEADS * WIDTH)

DIVIDED = ("divided", "divided, masked")
in_integers = pytest.mark.needs_isa("x86.avx_vnni")


def network(kind: str) -> Model:
    """Heads of one input; `kind` says what else there is."""
    is_masked = kind not in ("plain", "divided")

    def body(writer: BodyWriter, **v: Any) -> Any:
        def head(name: str, axes: tuple[int, ...]) -> Any:
            made = writer.emit(f"{name}p", R.matmul(v["x"], v[f"w{name}"]))
            split = writer.emit(f"{name}s", R.reshape(made, (*X[:2], HEADS, WIDTH)))
            return writer.emit(name, R.permute_dims(split, axes))

        def shared(name: str, axes: tuple[int, ...]) -> Any:
            """One head for all queries."""

            def emit(step: str, value: Any) -> Any:
                return writer.emit(f"{name}{step}", value)

            made = emit("p", R.matmul(v["x"], v[f"w{name}"]))
            one = emit("h", R.permute_dims(emit("s", R.reshape(made, (*X[:2], 1, WIDTH))), (0, 2, 1, 3)))
            wide = emit("t", R.tile(emit("e", R.expand_dims(one, 2)), (1, 1, HEADS, 1, 1)))
            many = emit("r", R.reshape(wide, (X[0], HEADS, TOKENS, WIDTH)))
            return many if axes == (0, 1, 2, 3) else emit("", R.permute_dims(many, axes))

        q = head("q", (0, 2, 1, 3))
        if kind.startswith("shared"):
            k, values = shared("k", (0, 1, 3, 2)), shared("v", (0, 1, 2, 3))
        else:
            k, values = head("k", (0, 2, 3, 1)), head("v", (0, 2, 1, 3))
        s = writer.emit("s", R.matmul(q, k), is_output=kind == "scores are returned")
        if kind.endswith("where"):
            scores = writer.emit("d", R.divide(s, relax.const(3.0))) if "scaled" in kind else s
            s = writer.emit("m", R.where(v["hidden"], relax.const(-np.inf, "float32"), scores))
        else:
            if kind.startswith("divided"):
                s = writer.emit("d", R.divide(s, relax.const(3.0)))
            if is_masked:
                s = writer.emit("m", R.add(s, v["mask"]))
        if kind.endswith("tanh"):
            s = writer.emit("c", R.tanh(s))
        p = writer.emit("p", R.nn.softmax(s), is_output=kind == "softmax is returned")
        y = writer.emit("y", R.matmul(p, values), is_output=kind == "as it lies")
        results = [y if kind == "as it lies" else writer.emit("z", R.permute_dims(y, (0, 2, 1, 3)), is_output=True)]
        results += [s] if kind == "scores are returned" else [p] if kind == "softmax is returned" else []
        return results[0] if len(results) == 1 else relax.Tuple(results)

    rng = np.random.default_rng(5)
    widths = (16, 8, 8) if kind.startswith("shared") else (16, 16, 16)
    params = {f"w{name}": rng.normal(size=(16, width)).astype(np.float32) / 3 for name, width in zip("qkv", widths, strict=True)}
    seen = np.tri(TOKENS, dtype=bool)
    masks: dict[str, Any] = {"mask": np.where(seen, 0, -1e9).astype(np.float32)}
    if kind.endswith("where"):
        masks = {"hidden": ~seen}
    returned = {"softmax is returned": ("z", "p"), "scores are returned": ("z", "s"), "as it lies": ("y",)}
    names = returned.get(kind, ("z",))
    return model_of({"x": (X, "float32")}, params | (masks if is_masked else {}), body, names)


def quantized_of(model: Model, *, by_row: bool = True) -> tuple[Any, list[np.ndarray]]:
    rng = np.random.default_rng(6)
    samples = [rng.normal(size=X).astype(np.float32) for _ in range(4)]
    profile = octavo.profile(model, samples)
    layers = [layer for layer in quantize_graph(model, profile, recipe=PLAIN).plan.layers if "matmul" in layer.op]
    per_row = {layer.output: "it is tried" for layer in layers if by_row}
    return quantize_graph(model, profile, recipe=PLAIN, changes=Choices(per_row=per_row)), samples


def kernels_of(quantized: Any, target: str | None = None) -> dict[str, str]:
    ops = octavo.explain(quantized, target=target).ops
    return {op.tensor: op.kernel for op in ops if op.op in ("batch_matmul", "nn.softmax")}


@pytest.mark.parametrize("kind", ["plain", "masked", *DIVIDED])
def test_machines_with_vnni_take_one_kernel(kind: str) -> None:
    for by_row, kernel in ((True, ATTENTION), (False, KNOWN_ATTENTION)):
        quantized, _ = quantized_of(network(kind), by_row=by_row)
        assert set(kernels_of(quantized, "x86.avx512_vnni").values()) == {kernel}


def check_steps(quantized: Model, samples: Any, fused: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compare with the steps' bytes."""
    one = octavo.compile(quantized)
    monkeypatch.setattr(lowering, "compose_attention", lambda *_: Composed(calls={}, fused={}))
    assert fused not in kernels_of(quantized).values()
    steps = octavo.compile(quantized)
    for sample in samples:
        for name, value in steps(sample).items():
            np.testing.assert_array_equal(one(sample)[name], value)


@in_integers
@pytest.mark.parametrize("kind", ["plain", "masked", "as it lies", "shared", "tanh", "shared, tanh", "shared, where", *DIVIDED])
def test_the_bytes_of_the_steps(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Heads that are moved or shared by queries; with a function between the product and the softmax there are two kernels."""
    quantized, samples = quantized_of(network(kind))
    products = {name: kernel for name, kernel in kernels_of(quantized).items() if name != "p"}
    assert products == dict.fromkeys("sy", "batch_matmul.rows.tiled" if "tanh" in kind else ATTENTION)
    check_steps(quantized, samples, ATTENTION, monkeypatch)


@in_integers
@pytest.mark.parametrize("kind", ["plain", "masked", "as it lies", "shared", "tanh", *DIVIDED])
def test_the_bytes_of_the_steps_with_constant_parameters(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    quantized, samples = quantized_of(network(kind), by_row=False)
    kernels = kernels_of(quantized)
    assert (KNOWN_ATTENTION in kernels.values()) == (kind != "tanh")
    check_steps(quantized, samples, KNOWN_ATTENTION, monkeypatch)


FUSED = ("plain", "masked", "as it lies", "scaled, where", "shared", "shared, scaled, where", *DIVIDED)


@pytest.mark.parametrize("kind", [*FUSED, "tanh", "softmax is returned", "scores are returned"])
def test_the_bytes_of_the_steps_in_float(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Heads that are shared are multiplied as one, between reshapes; a mask that chooses is an addend."""
    model = network(kind)
    kernels = [op.kernel for op in octavo.explain(model).ops]
    assert (FLOAT_ATTENTION in kernels) == (kind in FUSED)
    check_steps(model, [np.random.default_rng(6).normal(size=X).astype(np.float32)], FLOAT_ATTENTION, monkeypatch)


@in_integers
@pytest.mark.parametrize("kind", ["softmax is returned", "scores are returned"])
def test_what_somebody_else_reads_is_written(kind: str) -> None:
    for by_row in (True, False):
        quantized, _ = quantized_of(network(kind), by_row=by_row)
        assert not {ATTENTION, KNOWN_ATTENTION} & set(kernels_of(quantized).values())


@in_integers
def test_each_tensor_is_told_of() -> None:
    """Scores, softmax and moved heads are within what the kernel gives; that is the tensor it was."""
    model = network("masked")
    target = host_target()
    lineage = octavo.Lineage(model, target=target)
    with target, tvm.transform.PassContext(opt_level=3, instruments=[lineage]):
        quantized, samples = quantized_of(model)
        module = octavo.relax_pipeline(ids=quantized.tensors)(quantized.bound())
    states = {name: lineage[name] for name in ("q", "k", "v", "s", "p", "y", "z")}
    assert {name for name, state in states.items() if state.is_alive} == {"z"}
    assert {(state.kind, state.evidence, state.composite) for state in states.values()} == {
        ("inside", "announced", states["z"].composite)
    }
    (held,) = (check for check in octavo.verify_lineage(model, module, samples[0], lineage=lineage) if check.id == "z")
    assert held.sqnr_db > 30
