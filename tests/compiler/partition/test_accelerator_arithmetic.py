"""Ops whose quantize says an accelerator's rounding are computed so: equal to integers worked out here, word by word."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from allpairspy import AllPairs
from tvm import relax

import octavo
from octavo import numerics
from octavo.compiler.backends import Backend
from octavo.compiler.partition.pipeline import integer_regions, partition_module
from octavo.ir.composites.attributes import read_composites
from octavo.ir.graph.partition_state import read_state
from octavo.numerics.rounding.fixed_point import quantize_multiplier
from octavo.target import CPU, OpSupport, TargetDescription
from qdq_graph import Qdq, graph, round_as, run_lowered, side_by_side

op: Any = relax.op
SHIFTS = ("shift_half_up", "shift_half_away", "shift_half_even")
FIXED_POINTS = ("fixed_point_once", "fixed_point_twice", "fixed_point_twice_away")
WORDS = (*SHIFTS, *FIXED_POINTS)
ZERO = {"int8": 0, "uint8": 128}


def half_up(value: Fraction) -> int:
    return math.floor(value + Fraction(1, 2))


def half_away(value: Fraction) -> int:
    return half_up(value) if value >= 0 else -half_up(-value)


def rounded(total: int, real: float, word: str) -> int:
    """total * real, as the words of docs/targets.md define it, in exact fractions."""
    if word in SHIFTS:
        return {"up": half_up, "away": half_away, "even": round}[word.rsplit("_")[-1]](Fraction(total) * Fraction(real))
    mantissa, exponent = quantize_multiplier(real)
    if word == "fixed_point_once":
        return half_up(Fraction(total * mantissa) * Fraction(2) ** (exponent - 31))
    first = half_up(Fraction((total << max(exponent, 0)) * mantissa, 2**31))
    last = half_away if word == "fixed_point_twice_away" else half_up
    return last(Fraction(first) * Fraction(2) ** min(exponent, 0))


def averaged(total: int, count: int, real: float, word: str) -> int:
    """A mean in fixed point: the multiplier's mantissa is divided by the count first, rounding down."""
    mantissa, exponent = quantize_multiplier(real)
    gained = count.bit_length() - 1
    mantissa, exponent = mantissa * 2**gained // count, exponent - gained
    if word == "fixed_point_once":
        return half_up(Fraction(total * mantissa) * Fraction(2) ** (exponent - 31))
    first = half_up(Fraction((total << max(exponent, 0)) * mantissa, 2**31))
    last = half_away if word == "fixed_point_twice_away" else half_up
    return last(Fraction(first) * Fraction(2) ** min(exponent, 0))


def stored(values: Any, zero_point: int, dtype: str, low: int | None = None) -> np.ndarray:
    qmin, qmax = numerics.INTEGER_RANGE[dtype]
    return np.clip(np.asarray(values) + zero_point, qmin if low is None else low, qmax).astype(dtype)


def draw(rng: Any, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    low, high = numerics.INTEGER_RANGE[dtype]
    return rng.integers(low, high + 1, shape).astype(dtype)


def scales_of(word: str) -> tuple[float, list[float], float]:
    """Scales of input, weights by channel, and result, under which some sums are ties."""
    if word in SHIFTS:
        return 0.25, [0.5, 0.125, 0.25, 1.0], 8.0
    return 0.021, [0.03, 0.0125, 0.021, 0.05], 0.34


def weighted(kind: str, word: str, dtype: str, *, per_channel: bool) -> tuple[Any, np.ndarray, np.ndarray]:
    """A convolution, depthwise convolution or matmul with bias and relu: the module, an input, and what it must give."""
    rng = np.random.default_rng(5)
    x_scale, scales, y_scale = scales_of(word)
    scales = scales if per_channel else scales[:1] * 4
    x_zero, y_zero = ZERO[dtype] + 3, ZERO[dtype] - 11
    shape, weights, groups = {
        "conv2d": ((1, 6, 7, 8), (3, 3, 8, 4), 1),
        "depthwise": ((1, 6, 7, 4), (3, 3, 1, 4), 4),
        "matmul": ((5, 24), (24, 4), 1),
    }[kind]
    x, w = draw(rng, shape, dtype), rng.integers(-127, 128, weights).astype(np.int8)
    bias = rng.integers(-500, 500, 4).astype(np.int32)

    def body(writer: Any, params: Any) -> Any:
        qdq = Qdq(writer, dtype)
        read = qdq.dequantize("x", params["x"], (x_scale, x_zero))
        weight = qdq.weight("w", w, scales if per_channel else scales[0], np.zeros(4) if per_channel else 0, axis=w.ndim - 1)
        if kind == "matmul":
            core = op.matmul(read, weight)
        else:
            layouts = {"data_layout": "NHWC", "kernel_layout": "HWOI" if groups > 1 else "HWIO"}
            if groups > 1:
                weight = qdq.weight("w", w.transpose(0, 1, 3, 2), scales if per_channel else scales[0], axis=2)
            core = op.nn.conv2d(read, weight, strides=(1, 2), padding=(1, 1, 1, 1), groups=groups, **layouts)
        units = np.float32(x_scale) * np.asarray(scales, np.float32)
        added = writer.emit("sum", op.add(writer.emit("core", core), qdq.weight("b", bias, units)))
        return qdq.quantize("y", writer.emit("act", op.nn.relu(added)), (y_scale, y_zero), is_output=True)

    module = round_as(graph({"x": (shape, dtype)}, body), word)
    given = {"x_zero_point": x_zero, "bias": bias}
    if kind == "matmul":
        sums = numerics.matmul_accumulate(x, w, **given)
    else:
        window = numerics.Window(strides=(1, 2), padding=(1, 1, 1, 1))
        sums = numerics.conv2d_accumulate(x, w, window=window, groups=groups, **given)
    reals = [float(np.float32(x_scale)) * float(np.float32(scale)) / float(np.float32(y_scale)) for scale in scales]
    values = [[rounded(int(total), real, word) for total, real in zip(row, reals, strict=True)] for row in sums.reshape(-1, 4)]
    return module, x, stored(values, y_zero, dtype, y_zero).reshape(sums.shape)


def check_all(cases: list[tuple[Any, list[np.ndarray], np.ndarray, object]], word: str) -> None:
    """Compile modules as one, and compare each with what it must give: cases of (module, inputs, result, what it is about)."""
    together = side_by_side([module for module, *_ in cases])
    results = run_lowered(together, *(x for _, inputs, *_ in cases for x in inputs))
    for got, (_, _, want, about) in zip(results if len(cases) > 1 else [results], cases, strict=True):
        np.testing.assert_array_equal(got, want.reshape(got.shape), err_msg=str(about))
    assert arithmetic(together) == [split(word)] * len(cases)


def arithmetic(module: Any) -> list[tuple[str, str]]:
    """What the composites of a module say of their arithmetic."""
    found = [composite.quantize_info for composite in read_composites(partition_module(module, CPU)).values()]
    return [(info["requantize"], info["rounding"]) for info in found]


def split(word: str) -> tuple[str, str]:
    requantize = "shift" if word in SHIFTS else "fixed_point"
    return requantize, word.removeprefix(f"{requantize}_")


@pytest.mark.parametrize(("word", "kind", "dtype"), list(AllPairs([WORDS, ["conv2d", "depthwise", "matmul"], ["int8", "uint8"]])))
def test_sums_of_products(word: str, kind: str, dtype: str) -> None:
    module, x, want = weighted(kind, word, dtype, per_channel=dtype == "int8")
    np.testing.assert_array_equal(run_lowered(module, x), want)
    assert arithmetic(module) == [split(word)]


def reasons(module: Any, target: TargetDescription = CPU) -> set[str]:
    """Why ops stay float."""
    return {each.reason for each in integer_regions(module, target).rejections.values()}


def test_a_scale_that_is_no_power_of_two_does_not_shift() -> None:
    def body(writer: Any, params: Any) -> Any:
        qdq = Qdq(writer, "int8")
        core = op.matmul(qdq.dequantize("x", params["x"], (0.3, 0)), qdq.weight("w", np.ones((4, 2), np.int8), 0.5))
        return qdq.quantize("y", writer.emit("core", core), (1.0, 0), is_output=True)

    module = round_as(graph({"x": ((3, 4), "int8")}, body), "shift_half_up")
    want = "x has scale 0.3; shift_half_up takes powers of two alone: quantize with scales power_of_two"
    assert want in reasons(module)


def test_an_op_without_such_a_kernel_is_rejected() -> None:
    def body(writer: Any, params: Any) -> Any:
        qdq = Qdq(writer, "int8")
        soft = writer.emit("soft", op.nn.softmax(qdq.dequantize("x", params["x"], (0.25, 0))))
        return qdq.quantize("y", soft, (2.0**-8, -128), is_output=True)

    module = round_as(graph({"x": ((3, 16), "int8")}, body), "shift_half_even")
    softmax = OpSupport(op="nn.softmax", requantize="shift", rounding="half_even", scales="power_of_two")
    target = TargetDescription(name="npu", ops=(softmax,))
    want = "no kernel rounds nn.softmax shift_half_even, only half_even; target npu rounds it shift_half_even"
    assert want in reasons(module, target)


def test_a_vendor_that_rounds_otherwise_does_not_take_the_op() -> None:
    class Npu(Backend):
        description = TargetDescription(name="npu", ops=(OpSupport(op="matmul", weights=("int8",), fusions=("bias", "nn.relu")),))

        def emit(self, *_: Any) -> None:
            raise NotImplementedError

    module, _, _ = weighted("matmul", "half_up", "int8", per_channel=False)
    state = read_state(octavo.partition(octavo.load(module), target=Npu()))
    said = [*state.rejections.values(), *state.declined.values()]
    assert any("is rounded half_up; target npu rounds matmul half_even" in each for each in said), said


PAIR_SCALES = {
    "shift": [(0.25, 0.5, 1.0), (0.5, 0.0625, 0.125), (2.0**-20, 4.0, 8.0), (0.5, 0.5, 0.25)],
    "fixed_point": [(0.021, 0.034, 0.05), (0.5, 0.0625, 0.125), (0.021, 7.4, 9.3), (0.3, 0.3, 0.1)],
}


def pair_value(kind: str, a: int, b: int, scales: tuple[float, float, float], word: str) -> int:
    first, second, result = (float(np.float32(scale)) for scale in scales)
    if kind == "mul":
        real = np.float32(np.float32(scales[0]) * np.float32(scales[1])) / np.float32(scales[2])
        return rounded(a * b, float(real), word)
    sign = -1 if kind == "sub" else 1
    if word in SHIFTS:
        total = Fraction(a) * Fraction(first) + sign * Fraction(b) * Fraction(second)
        unit = 2.0**-40
        return rounded(int(total / Fraction(unit)), unit / result, word)
    unit = 2 * max(first, second)
    x, y = rounded(a << 20, first / unit, word), rounded(b << 20, second / unit, word)
    return rounded(x + sign * y, unit / (result * 2**20), word)


@pytest.mark.parametrize("kind", ["add", "sub", "mul"])
@pytest.mark.parametrize("word", WORDS)
def test_sums_and_products_of_two(word: str, kind: str) -> None:
    emitted = {"add": op.add, "sub": op.subtract, "mul": op.multiply}[kind]
    rng = np.random.default_rng(1)
    cases = []
    for i, scales in enumerate(PAIR_SCALES[split(word)[0]]):
        dtype, zeros = ("int8", "uint8")[i % 2], np.array([3, -7, 11]) + 128 * (i % 2)
        shapes = (((3, 40), (3, 40)), ((2, 3, 7), (7,)))[i // 2]
        a, b = (draw(rng, shape, dtype) for shape in shapes)

        def body(writer: Any, params: Any, scales: Any = scales, zeros: Any = zeros, dtype: str = dtype) -> Any:
            qdq = Qdq(writer, dtype)
            sides = (qdq.dequantize(name, params[name], (scales[i], zeros[i])) for i, name in enumerate("ab"))
            return qdq.quantize("y", writer.emit("core", emitted(*sides)), (scales[2], zeros[2]), is_output=True)

        module = round_as(graph({"a": (a.shape, dtype), "b": (b.shape, dtype)}, body), word)
        pairs = np.broadcast(a.astype(int) - zeros[0], b.astype(int) - zeros[1])
        want = [pair_value(kind, int(x), int(y), scales, word) for x, y in pairs]
        cases.append((module, [a, b], stored(want, zeros[2], dtype), scales))
    check_all(cases, word)


CHANGES = {"shift": [(0.25, 1.0), (0.5, 0.0625), (2.0, 16.0)], "fixed_point": [(0.021, 0.05), (0.3, 0.0625), (0.2, 1.6)]}


def change(kind: str, scales: tuple[float, float], dtype: str, zeros: tuple[int, int]) -> Any:
    """A change of parameters, alone or behind an op that only moves or chooses values."""

    def body(writer: Any, params: Any) -> Any:
        qdq = Qdq(writer, dtype)
        x = qdq.dequantize("x", params["x"], (scales[0], zeros[0]))
        moves = {
            "transpose": lambda: op.permute_dims(x, (0, 2, 1, 3)),
            "max_pool2d": lambda: op.nn.max_pool2d(x, (1, 1), layout="NHWC"),
            "slice": lambda: op.strided_slice(x, [1], [0], [16]),
            "max": lambda: op.max(x, axis=[3], keepdims=True),
            "concat": lambda: op.concat([x, qdq.dequantize("z", params["x"], (scales[1], zeros[1]))], axis=3),
        }
        moved = writer.emit("moved", moves[kind]()) if kind in moves else x
        return qdq.quantize("y", moved, (scales[1], zeros[1]), is_output=True)

    return graph({"x": ((1, 16, 16, 1), dtype)}, body)


MOVES = ("transpose", "max_pool2d", "slice", "max", "concat")
CHANGED = [(word, "requantize") for word in WORDS]
CHANGED += [(word, kind) for i, kind in enumerate(MOVES) for j, word in enumerate(WORDS) if (i + j) % 3 == 0]
"""Every word where parameters alone change; behind each move a shift and a product in fixed point: the code is the same."""


@pytest.mark.parametrize(("word", "kind"), CHANGED)
def test_changes_of_parameters(word: str, kind: str) -> None:
    cases = []
    for i, scales in enumerate(CHANGES[split(word)[0]]):
        dtype = ("int8", "uint8")[i % 2]
        zeros = (ZERO[dtype] + 5, ZERO[dtype] - 9)
        x = (np.arange(256) + numerics.INTEGER_RANGE[dtype][0]).astype(dtype).reshape(1, 16, 16, 1)
        module = round_as(change(kind, scales, dtype, zeros), word)
        real = float(np.float32(scales[0])) / float(np.float32(scales[1]))
        want = stored([rounded(int(value) - zeros[0], real, word) for value in x.ravel()], zeros[1], dtype).reshape(x.shape)
        want = want.transpose(0, 2, 1, 3) if kind == "transpose" else want
        want = np.concatenate([want, x], axis=3) if kind == "concat" else want
        cases.append((module, [x], want, (scales, dtype)))
    check_all(cases, word)


@pytest.mark.parametrize("word", WORDS)
def test_what_keeps_its_parameters_rounds_nothing(word: str) -> None:
    module = round_as(change("max_pool2d", (0.3, 0.3), "int8", (4, 4)), word)
    x = np.arange(-128, 128).astype(np.int8).reshape(1, 16, 16, 1)
    np.testing.assert_array_equal(run_lowered(module, x), x)
    assert arithmetic(module) == [("none", "none")]


@pytest.mark.parametrize("word", WORDS)
def test_tables_hold_the_real_function(word: str) -> None:
    """Every other integer makes a tie, below 0 and above."""

    def body(writer: Any, params: Any) -> Any:
        qdq = Qdq(writer, "int8")
        x = qdq.dequantize("x", params["x"], (0.5, 3))
        size = writer.emit("size", op.abs(x))
        slope = writer.emit("slope", op.multiply(size, relax.const(np.float32(-0.5))))
        line = writer.emit("line", op.add(slope, relax.const(np.float32(0.25))))
        return qdq.quantize("y", line, (0.5, 0), is_output=True)

    module = round_as(graph({"x": ((1, 256), "int8")}, body), word)
    x = np.arange(-128, 128).astype(np.int8).reshape(1, 256)
    reals = [(-abs(Fraction(int(value) - 3, 2)) / 2 + Fraction(1, 4)) * 2 for value in x.ravel()]
    away, even = word.endswith("away"), word.endswith("even")
    want = [half_away(real) if away else round(real) if even else half_up(real) for real in reals]
    np.testing.assert_array_equal(run_lowered(module, x).ravel(), stored(want, 0, "int8"))


def quotient(total: int, divisor: int, real: float, word: str) -> int:
    value = Fraction(total, divisor) * Fraction(real)
    return {"up": half_up, "away": half_away, "even": round}[word.rsplit("_")[-1]](value)


def averages(kind: str, x: Any) -> Any:
    if kind == "avg_pool2d":
        return op.nn.avg_pool2d(x, (3, 2), strides=(2, 2), padding=(1, 0, 0, 1), layout="NHWC", count_include_pad=False)
    if kind == "adaptive":
        return op.nn.adaptive_avg_pool2d(x, (1, 1), layout="NHWC")
    if kind == "sum":
        return op.sum(x, axis=[1], keepdims=True)
    return op.mean(x, axis=[1, 2] if kind == "image" else [3], keepdims=True)


def windows(kind: str, x: np.ndarray) -> list[np.ndarray]:
    """The integers of each average, in the order of the result."""
    if kind == "avg_pool2d":
        rows, columns = range(-1, x.shape[1] - 2, 2), range(0, x.shape[2], 2)
        found = [x[0, max(row, 0) : row + 3, column : column + 2] for row in rows for column in columns]
        return [window[..., channel].ravel() for window in found for channel in range(x.shape[3])]
    if kind == "sum":
        return list(x[0].transpose(1, 2, 0).reshape(-1, x.shape[1]))
    return list(x[0].reshape(-1, x.shape[3]).T) if kind in ("adaptive", "image") else list(x[0].reshape(-1, x.shape[3]))


@pytest.mark.parametrize("kind", ["avg_pool2d", "adaptive", "image", "channels", "sum"])
@pytest.mark.parametrize("word", WORDS)
def test_averages(word: str, kind: str) -> None:
    rng = np.random.default_rng(4)
    is_shift = word in SHIFTS
    is_pool = kind in ("avg_pool2d", "adaptive")
    cases = []
    in_fixed_point = [(0.3, 0.3)] if is_pool else [(0.3, 0.3), (0.021, 0.05), (0.3, 0.0625), (0.2, 1.6)]
    for i, scales in enumerate([(0.25, 0.125), (0.5, 0.5), (0.25, 2.0)] if is_shift else in_fixed_point):
        dtype = ("int8", "uint8")[i % 2]
        zeros = (ZERO[dtype] + 5, ZERO[dtype] - 9) if is_shift or not is_pool else (ZERO[dtype] + 5,) * 2
        x = np.clip(draw(rng, (1, 6, 8, 5), dtype).astype(int), zeros[0] - 40, zeros[0] + 40).astype(dtype)

        def body(writer: Any, params: Any, scales: Any = scales, zeros: Any = zeros, dtype: str = dtype) -> Any:
            qdq = Qdq(writer, dtype)
            value = writer.emit("core", averages(kind, qdq.dequantize("x", params["x"], (scales[0], zeros[0]))))
            return qdq.quantize("y", value, (scales[1], zeros[1]), is_output=True)

        module = round_as(graph({"x": (x.shape, dtype)}, body), word)
        found = windows(kind, x.astype(int))
        if kind == "sum":
            real = float(np.float32(scales[0])) / float(np.float32(scales[1]))
            values = [rounded(int((each - zeros[0]).sum()), real, word) for each in found]
        elif is_shift:
            values = [quotient(int((e - zeros[0]).sum()), e.size, scales[0] / scales[1], word) for e in found]
        elif not is_pool:
            real = float(np.float32(scales[0])) / float(np.float32(scales[1]))
            values = [averaged(int((e - zeros[0]).sum()), e.size, real, word) for e in found]
        else:
            values = [quotient(int(each.sum()), each.size, 1.0, "away") - zeros[1] for each in found]
        cases.append((module, [x], stored(values, zeros[1], dtype), (scales, dtype)))
    check_all(cases, word)


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("word", WORDS)
def test_products_of_two_activations(word: str, dtype: str) -> None:
    rng = np.random.default_rng(7)
    a, b = draw(rng, (2, 5, 19), dtype), draw(rng, (2, 19, 6), dtype)
    scales = (0.25, 0.5, 32.0) if word in SHIFTS else (0.021, 0.034, 0.9)
    zeros = tuple(ZERO[dtype] + offset for offset in (3, -7, 11))

    def body(writer: Any, params: Any) -> Any:
        qdq = Qdq(writer, dtype)
        sides = [qdq.dequantize(name, params[name], (scales[i], zeros[i])) for i, name in enumerate("ab")]
        return qdq.quantize("y", writer.emit("core", op.matmul(*sides)), (scales[2], zeros[2]), is_output=True)

    module = round_as(graph({"a": (a.shape, dtype), "b": (b.shape, dtype)}, body), word)
    sums = (a.astype(int) - zeros[0]) @ (b.astype(int) - zeros[1])
    real = float(np.float32(scales[0]) * np.float32(scales[1])) / float(np.float32(scales[2]))
    want = stored([rounded(int(total), real, word) for total in sums.ravel()], zeros[2], dtype).reshape(sums.shape)
    np.testing.assert_array_equal(run_lowered(module, a, b), want)
    assert arithmetic(module) == [split(word)]
