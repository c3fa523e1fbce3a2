"""Reductions over any axes and places of extremes, lowered: the oracle bit for bit, in the source's layout and the kernels'."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from allpairspy import AllPairs
from tvm import relax

from octavo import numerics
from octavo.compiler.backends.cpu.kernels import isas_of
from octavo.runtime.llvm_host import host_target
from octavo.target import CPU
from qdq_graph import Qdq, graph, lower, run_lowered

op: Any = relax.op
ISAS = isas_of(host_target())
X, Y = (0.02, 7), (0.03, -3)
SHAPE = (2, 6, 5, 4)
AXES = [axes for count in (1, 2, 3, 4) for axes in itertools.combinations(range(4), count)]
OPS = {"mean": op.mean, "sum": op.sum, "max": op.max, "min": op.min}


def integers(shape: tuple[int, ...], dtype: str = "int8", seed: int = 0) -> np.ndarray:
    low, high = numerics.INTEGER_RANGE[dtype]
    return np.random.default_rng(seed).integers(low, high, shape, endpoint=True).astype(dtype)


def oracle(kind: str, x: np.ndarray, axes: tuple[int, ...], qmin: int = -128) -> np.ndarray:
    ratio = np.float32(X[0]) / np.float32(Y[0])
    if kind in ("max", "min"):
        kept = numerics.reduce_extreme(x, axes, largest=kind == "max", qmin=-128, qmax=127)
        return numerics.requantize(kept.astype(np.int32) - X[1], ratio, Y[1], qmin, 127, "int8")
    count = np.prod([x.shape[axis] for axis in axes])
    multiplier = float(ratio / np.float32(count) if kind == "mean" else ratio)
    about = {"multiplier": multiplier, "input_zero_point": X[1], "zero_point": Y[1]}
    return numerics.reduce_sum(x, axes, **about, qmin=qmin, qmax=127, dtype="int8")


def ops_of(module: Any) -> set[tuple[str, bool]]:
    return {(record.op, record.integer) for record in lower(module, CPU, ISAS, 1).records}


@pytest.mark.parametrize("kind", OPS)
def test_every_choice_of_axes(kind: str) -> None:
    """All at once, as results of one graph: of an image as it comes, and of a pooled one, which lies channels last."""
    wanted: list[np.ndarray] = []
    x = integers(SHAPE)

    def body(writer, inputs):
        qdq = Qdq(writer, "int8")
        source = qdq.dequantize("x", inputs["x"], X)
        pooled = qdq.quantize("pooled", writer.emit("pool", op.nn.max_pool2d(source, pool_size=(1, 1))), X)
        images = [source, qdq.dequantize("pooled", pooled, X)]
        results = []
        for number, (image, axes, keep) in enumerate(AllPairs([[0, 1], AXES, [False, True]])):
            if kind == "mean" and axes in ((1, 2), (2, 3)):
                continue  # pooling has these
            value = writer.emit(f"core{number}", OPS[kind](images[image], list(axes), keep))
            value = writer.emit(f"act{number}", op.nn.relu(value)) if number % 3 == 0 else value
            results.append(qdq.quantize(f"y{number}", value, Y, is_output=True))
            want = oracle(kind, x, axes, Y[1] if number % 3 == 0 else -128)
            wanted.append(np.expand_dims(want, axes) if keep else want)
        return relax.Tuple(results)

    module = graph({"x": (SHAPE, "int8")}, body)
    assert ops_of(module) == {("reduce", True), ("pool2d", True)}
    for got, want in zip(run_lowered(module, x), wanted, strict=True):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("is_float", [False, True])
@pytest.mark.parametrize("largest", [False, True])
def test_places(largest: bool, is_float: bool, dtype: str) -> None:
    x = np.random.default_rng(0).choice(integers((7,), dtype), SHAPE)
    function = op.argmax if largest else op.argmin

    def body(writer, inputs):
        source = Qdq(writer, dtype).dequantize("x", inputs["x"], (0.02, 3)) if is_float else inputs["x"]
        results = [writer.emit("all", function(source), is_output=True)]
        for axis, keep in itertools.product((0, 1, -1), (False, True)):
            name = f"axis{axis % 4}{keep}"
            results.append(writer.emit(name, function(source, axis=axis, keepdims=keep), is_output=True))
        place = writer.emit("place", function(source, axis=2))
        results.append(writer.emit("narrow", op.astype(place, "int32"), is_output=True))
        return relax.Tuple(results)

    module = graph({"x": (SHAPE, dtype)}, body)
    assert ops_of(module) == {("place", True)}
    first, *others, narrow = run_lowered(module, x)
    assert first == numerics.arg_reduce(x.reshape(-1), 0, largest=largest)
    for got, (axis, keep) in zip(others, itertools.product((0, 1, -1), (False, True)), strict=True):
        want = numerics.arg_reduce(x, axis, largest=largest)
        np.testing.assert_array_equal(got, np.expand_dims(want, axis) if keep else want)
        assert got.dtype == np.int64
    np.testing.assert_array_equal(narrow, numerics.arg_reduce(x, 2, largest=largest))
    assert narrow.dtype == np.int32


def test_places_along_scales_of_their_own_stay_float() -> None:
    """Order among integers of different scales is not order among real values."""

    def body(writer, inputs):
        scales, zeros = (relax.const(np.asarray(v, dtype)) for v, dtype in (([0.1, 0.2], "float32"), ([0, 0], "int32")))
        x = writer.emit("x_dq", op.dequantize(inputs["x"], scales, zeros, axis=1))
        return writer.emit("place", op.argmax(x, axis=1), is_output=True)

    module = graph({"x": ((3, 2), "int8")}, body)
    reasons = [record.reason for record in lower(module, CPU, ISAS, 1).records]
    assert any("per axis" in reason for reason in reasons)
    assert run_lowered(module, np.int8([[3, 2], [3, 1], [-1, -1]])).tolist() == [1, 0, 0]
