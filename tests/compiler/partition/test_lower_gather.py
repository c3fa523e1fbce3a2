"""Ops that read by indices, lowered in both layouts and forms (integers, QDQ): NumPy's result bit for bit, no float op."""

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
from qdq_graph import Qdq, graph, lower, run_float, run_lowered

op: Any = relax.op
ISAS = isas_of(host_target())
SHAPE = (1, 6, 5, 7)
SAME = (0.05, 3)


def indices(*values: int) -> Any:
    return relax.const(np.asarray(values, np.int64))


MOVES = {
    "slice": (lambda x: op.strided_slice(x, axes=[1, 3], begin=[1, 0], end=[-1, 100]), lambda x: x[:, 1:-1]),
    "strides": (
        lambda x: op.strided_slice(x, axes=[3, 2], begin=[1, 0], end=[7, 5], strides=[3, 2]),
        lambda x: x[:, :, ::2, 1:7:3],
    ),
    "take": (lambda x: op.take(x, indices(4, 0, -1), axis=2), lambda x: x[:, :, [4, 0, -1]]),
    "take_one": (lambda x: op.take(x, relax.const(np.int64(2)), axis=1), lambda x: x[:, 2]),
    "flip": (lambda x: op.flip(x, axis=3), lambda x: x[..., ::-1]),
    "tile": (lambda x: op.tile(x, (2, 1, 3)), lambda x: np.tile(x, (2, 1, 3))),
    "repeat": (lambda x: op.repeat(x, 2, axis=1), lambda x: np.repeat(x, 2, axis=1)),
    "pad": (lambda x: op.nn.pad(x, [0, 0, 1, 2, 0, 3, 0, 0], pad_value=0), None),
    "reflect": (
        lambda x: op.nn.pad(x, [0, 0, 0, 0, 2, 1, 1, 1], pad_mode="reflect"),
        lambda x: np.pad(x, ((0, 0), (0, 0), (2, 1), (1, 1)), mode="reflect"),
    ),
}


def module_of(move, dtype: str, *, form: str, other: tuple[float, int] | None = None):
    """x_q -> a max pool of one pixel (a kernel, which keeps NCHW permuted) -> the move -> y_q."""
    zero = SAME[1] + (128 if dtype == "uint8" else 0)

    def body(writer, params):
        qdq = Qdq(writer, dtype)
        x = qdq.dequantize("x", params["x"], (SAME[0], zero))
        pooled = writer.emit("pool", op.nn.max_pool2d(x, pool_size=(1, 1)))
        p = qdq.quantize("p", pooled, (SAME[0], zero))
        if form == "integers":
            moved = writer.emit("moved", move(p))
            return writer.emit("y", op.reshape(moved, moved.ty.shape), is_output=True)
        scale, zero_point = other or (SAME[0], zero)
        return qdq.quantize(
            "y", writer.emit("moved", move(qdq.dequantize("p", p, (SAME[0], zero)))), (scale, zero_point), is_output=True
        )

    return graph({"x": (SHAPE, dtype)}, body)


def image(dtype: str) -> np.ndarray:
    low, high = numerics.INTEGER_RANGE[dtype]
    return np.random.default_rng(0).integers(low, high + 1, SHAPE).astype(dtype)


@pytest.mark.parametrize(("name", "dtype", "form"), list(AllPairs([list(MOVES), ["int8", "uint8"], ["integers", "qdq"]])))
def test_equals_numpy(name: str, dtype: str, form: str) -> None:
    move, expected = MOVES[name]
    x = image(dtype)
    zero = SAME[1] + (128 if dtype == "uint8" else 0)
    if name == "pad":
        fill = zero if form == "qdq" else 0
        want = np.pad(x, ((0, 0), (1, 2), (0, 3), (0, 0)), constant_values=fill)
    else:
        want = expected(x)
    module = module_of(move, dtype, form=form)
    # Both forms are lowered to one kernel.
    for isa in ISAS if form == "integers" else ISAS[:1]:
        records = lower(module, CPU, (isa,), 1).records
        assert all(record.integer for record in records), records
        assert "gather" in [record.op for record in records]
        np.testing.assert_array_equal(run_lowered(module, x, isa=isa), want)


@pytest.mark.parametrize("mode", ["half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric"])
def test_nearest_neighbours_equal_tvm(mode: str) -> None:
    """All roundings and sizes at once, as results of one graph."""
    zero = SAME[1] + 128
    roundings = ("round", "round_prefer_floor", "round_prefer_ceil", "floor", "ceil")

    def body(writer, params):
        qdq = Qdq(writer, "uint8")
        pooled = writer.emit("pool", op.nn.max_pool2d(qdq.dequantize("x", params["x"], (SAME[0], zero)), pool_size=(1, 1)))
        p = qdq.dequantize("p", qdq.quantize("p", pooled, (SAME[0], zero)), (SAME[0], zero))
        results = []
        for number, (rounding, size) in enumerate(itertools.product(roundings, ((12, 10), (9, 4), (3, 13)))):
            way = {"method": "nearest_neighbor", "coordinate_transformation_mode": mode, "rounding_method": rounding}
            moved = writer.emit(f"moved{number}", op.image.resize2d(p, size, layout="NHWC", **way))
            results.append(qdq.quantize(f"y{number}", moved, (SAME[0], zero), is_output=True))
        return relax.Tuple(results)

    module = graph({"x": (SHAPE, "uint8")}, body)
    x = image("uint8")
    records = lower(module, CPU, ISAS, 1).records
    assert all(record.integer for record in records), records
    assert [record.op for record in records].count("gather") == 15
    for got, want in zip(run_lowered(module, x), run_float(module, x), strict=True):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("name", ["slice", "pad", "repeat"])
def test_a_change_of_parameters_follows_the_move(name: str) -> None:
    module = module_of(MOVES[name][0], "uint8", form="qdq", other=(0.08, 77))
    x = image("uint8")
    zero = SAME[1] + 128
    moved = np.pad(x, ((0, 0), (1, 2), (0, 3), (0, 0)), constant_values=zero) if name == "pad" else MOVES[name][1](x)
    multiplier = float(np.float32(SAME[0]) / np.float32(0.08))
    want = numerics.requantize_tensor(moved, input_zero_point=zero, multiplier=multiplier, zero_point=77)
    assert all(record.integer for record in lower(module, CPU, ISAS, 1).records)
    np.testing.assert_array_equal(run_lowered(module, x), want)


@pytest.mark.parametrize("sections", [3, [1, 4]])
@pytest.mark.parametrize("form", ["integers", "qdq"])
def test_split_is_slices(form: str, sections) -> None:
    def body(writer, params):
        qdq = Qdq(writer, "uint8")
        x = params["x"] if form == "integers" else qdq.dequantize("x", params["x"], SAME)
        parts = writer.emit("parts", op.split(x, sections, axis=1))
        results = []
        for i in range(3):
            part = writer.emit(f"part{i}", relax.TupleGetItem(parts, i))
            if form == "integers":
                part = qdq.dequantize(f"part{i}", part, SAME)
                part = writer.emit(f"pool{i}", op.nn.max_pool2d(part, pool_size=(1, 1)))
            results.append(qdq.quantize(f"y{i}", part, SAME, is_output=True))
        return relax.Tuple(results)

    module = graph({"x": (SHAPE, "uint8")}, body)
    x = image("uint8")
    records = lower(module, CPU, ISAS, 1).records
    assert all(record.integer for record in records), records
    for got, want in zip(run_lowered(module, x), np.split(x, sections, axis=1), strict=True):
        np.testing.assert_array_equal(got, want)
