"""Chains of float ops of single elements: one kernel for each, equal to the program's definition; others are left to TVM."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tvm import relax

from octavo.ir.graph.dataflow import DataflowView, op_name
from octavo.numerics.floats import float_function
from octavo.target import CPU
from qdq_graph import graph, lower, run_float, run_lowered

X = np.random.default_rng(3).normal(0, 2, (1, 3, 5, 7)).astype(np.float32)
Y = X[:, ::-1].copy()
op = relax.op


def number(value: float) -> Any:
    return relax.const(np.float32(value))


def module_of(body: Callable[[Any, Any, Any], Any]) -> Any:
    """A module of x and y; `body` takes a function that emits, and the two."""

    def write(w: Any, inputs: dict[str, Any]) -> Any:
        names = iter(f"v{index}" for index in range(100))
        result = body(lambda value: w.emit(next(names), value), inputs["x"], inputs["y"])
        if isinstance(result, relax.Tuple):
            return relax.Tuple([w.emit(next(names), op.negative(field), is_output=True) for field in result.fields])
        return w.emit("result", op.permute_dims(result, [0, 2, 3, 1]), is_output=True)

    return graph({"x": (X.shape, "float32"), "y": (X.shape, "float32")}, write)


def left(module: Any) -> list[str]:
    lowered = lower(module, CPU, ("generic",), 1)
    names = [op_name(binding.value) for binding in DataflowView(lowered.module["main"]).bindings]
    return [name for name in names if not name.startswith("octavo_") and name not in ("constant", "tuple")]


def gelu_of_parts(emit: Any, x: Any, _y: Any) -> Any:
    error = emit(op.erf(emit(op.divide(x, number(2**0.5)))))
    return emit(op.multiply(emit(op.multiply(x, emit(op.add(error, number(1))))), number(0.5)))


def gelu_of_powers(emit: Any, x: Any, _y: Any) -> Any:
    """As GPT-2 has it, and one power more."""
    cube = emit(op.multiply(emit(op.power(x, number(3))), number(0.044715)))
    bent = emit(op.tanh(emit(op.multiply(emit(op.add(x, cube)), number(0.7978846)))))
    half = emit(op.multiply(x, number(0.5)))
    return emit(op.power(emit(op.multiply(half, emit(op.add(bent, number(1))))), number(2)))


def softer_sum(emit: Any, x: Any, y: Any) -> Any:
    return emit(op.add(y, emit(op.multiply(emit(op.sigmoid(x)), x))))


def mixed(emit: Any, x: Any, y: Any) -> Any:
    a = emit(op.subtract(emit(op.nn.leakyrelu(emit(op.tanh(x)), 0.1)), y))
    b = emit(op.maximum(emit(op.clip(a, -0.5, 3.0)), emit(op.negative(a))))
    return emit(op.minimum(emit(op.abs(b)), emit(op.sqrt(emit(op.exp(x))))))


CHAINS = {
    "silu": lambda emit, x, _y: emit(op.nn.silu(x)),
    "gelu": lambda emit, x, _y: emit(op.nn.gelu(x)),
    "gelu tanh": lambda emit, x, _y: emit(op.nn.gelu_tanh(x)),
    "gelu of parts": gelu_of_parts,
    "gelu of powers": gelu_of_powers,
    "softer sum": softer_sum,
    "mixed": mixed,
}


@pytest.mark.parametrize("name", CHAINS)
def test_a_chain_is_one_kernel_close_to_tvm(name: str) -> None:
    module = module_of(CHAINS[name])
    assert left(module) == ["permute_dims"]
    got, expected = run_lowered(module, X, Y), run_float(module, X, Y)
    assert np.abs(got - expected).max() <= 1e-6 * np.abs(expected).max()


def test_a_value_that_others_read_ends_the_chain() -> None:
    def body(emit: Any, x: Any, _y: Any) -> Any:
        s = emit(op.sigmoid(x))
        return relax.Tuple([s, emit(op.multiply(s, x))])

    module = module_of(body)
    assert left(module) == ["multiply", "negative", "negative"]
    first, second = run_lowered(module, X, Y)
    sigmoid = float_function.sigmoid(X)
    assert np.array_equal(first, -sigmoid)
    assert np.array_equal(second, -(sigmoid * X))


def test_what_tvm_does_as_well_is_left_to_it() -> None:
    def body(emit: Any, x: Any, _y: Any) -> Any:
        return emit(op.multiply(x, emit(op.clip(emit(op.add(x, number(3))), 0, 6))))

    assert left(module_of(body)) == ["add", "clip", "multiply", "permute_dims"]


@pytest.mark.parametrize("exponent", [0.25, 0.5, 0.75, 1.25, 1.5, 2.0, 2.75, 3.0])
@pytest.mark.parametrize("is_alone", [False, True])
def test_powers_by_quarters_are_products_and_roots(exponent: float, is_alone: bool) -> None:
    """In a chain, and in TVM's loops."""

    def body(emit: Any, x: Any, _y: Any) -> Any:
        positive = emit(op.abs(x) if is_alone else op.exp(x))
        return emit(op.power(positive, number(exponent)))

    module = module_of(body)
    assert ("power" in left(module)) == is_alone
    got, expected = run_lowered(module, X, Y), run_float(module, X, Y)
    assert np.abs(got / expected - 1).max() < 1e-6


@pytest.mark.parametrize("exponent", [2.4, -1.0])
def test_other_powers_are_left_to_tvm(exponent: float) -> None:
    def body(emit: Any, x: Any, _y: Any) -> Any:
        return emit(op.power(emit(op.exp(x)), number(exponent)))

    module = module_of(body)
    assert left(module) == ["power", "permute_dims"]
    got, expected = run_lowered(module, X, Y), run_float(module, X, Y)
    assert np.abs(got / expected - 1).max() < 2e-6


def test_functions_fused_with_other_ops_have_the_same_bits() -> None:
    def body(emit: Any, x: Any, _y: Any) -> Any:
        wide = emit(op.broadcast_to(emit(op.tanh(emit(op.mean(x, axis=[1], keepdims=True)))), X.shape))
        return emit(op.power(wide, number(2)))

    module = module_of(body)
    got = run_lowered(module, X, Y)
    mean = run_lowered(module_of(lambda emit, x, _y: emit(op.mean(x, axis=[1], keepdims=True))), X, Y)
    expected = np.broadcast_to(float_function.tanh(mean), got.shape) ** 2
    assert np.array_equal(got, expected)


def blocks(rng: np.random.Generator, *, is_read_twice: bool = False) -> Any:
    """A convolution with SiLU, a depthwise one with hard-swish, and one whose SiLU is added to a value before it."""

    def body(w: Any, inputs: dict[str, Any]) -> Any:
        def conv(name: str, x: Any, shape: tuple[int, ...], **attributes: Any) -> Any:
            call = op.nn.conv2d(x, relax.const(rng.normal(size=shape).astype(np.float32)), **attributes)
            bias = relax.const(rng.normal(size=(1, shape[0], 1, 1)).astype(np.float32))
            return w.emit(name, op.add(w.emit(f"{name}_sums", call), bias))

        def silu(name: str, x: Any) -> Any:
            return w.emit(f"{name}_silu", op.multiply(x, w.emit(f"{name}_sigmoid", op.sigmoid(x))))

        first = conv("a", inputs["x"], (20, 3, 3, 3), padding=1)
        a = silu("a", first)
        b = conv("b", a, (20, 1, 3, 3), padding=1, groups=20)
        gate = w.emit("gate", op.clip(w.emit("b3", op.add(b, number(3))), 0, 6))
        b = w.emit("b6", op.divide(w.emit("bg", op.multiply(b, gate)), number(6)))
        c = w.emit("sum", op.add(a, silu("c", conv("c", b, (20, 20, 1, 1)))))
        y = w.emit("m", op.maximum(c, first)) if is_read_twice else c
        return w.emit("y", op.mean(y, axis=[2, 3]), is_output=True)

    return graph({"x": (X.shape, "float32")}, body)


@pytest.mark.parametrize("is_read_twice", [False, True])
def test_convolutions_end_in_what_alone_reads_their_sums(rng: np.random.Generator, is_read_twice: bool) -> None:
    module = blocks(rng, is_read_twice=is_read_twice)
    names = [kernel.name.split(" ")[0] for kernel in lower(module, CPU, ("generic",), 1).kernels.values()]
    separate = ["float.elementwise"] if is_read_twice else []
    assert names == ["transpose", "float.direct", *separate, "float.depthwise.3x3", "float.pointwise", "float.mean"]
    got, expected = run_lowered(module, X), run_float(module, X)
    assert np.abs(got - expected).max() <= 2e-6 * np.abs(expected).max()
