"""Products of two variables read what is only transposed as it lies: launches, bytes, records."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from emulated_runner import emulation
from tvm.script import relax as R

import octavo
from octavo.compiler.backends.cuda.backend import backend_of
from octavo.compiler.backends.cuda.isa import ISAS
from octavo.compiler.device_models import lowered_for
from octavo.ir.graph import Model
from qdq_graph import Qdq, graph

ISA = "cuda.sm_80"
X, S, P, Y = (0.02, 3), (0.4, -7), (1 / 256, -128), (0.01, 5)
TOKENS, HEADS, DEPTH = 20, 3, 32


class Net:
    """Writes int8 tensors of heads."""

    def __init__(self, writer: Any, variables: dict[str, Any], dtype: str) -> None:
        self.q = Qdq(writer, dtype)
        self.writer, self.zero_point_shift = writer, 0 if dtype == "int8" else 128
        self.inputs = {name: self.q.dequantize(name, value, self.params(X)) for name, value in variables.items()}

    def params(self, params: tuple[float, int]) -> tuple[float, int]:
        return params[0], params[1] + self.zero_point_shift

    def kept(self, name: str, real: Any, params: tuple[float, int] = X, *, is_output: bool = False) -> Any:
        value = self.q.quantize(name, self.writer.emit(f"{name}_real", real), self.params(params), is_output=is_output)
        return value if is_output else self.q.dequantize(name, value, self.params(params))

    def split_features(self, name: str, *orders: tuple[int, ...]) -> Any:
        value = self.inputs[name]
        for number, axes in enumerate(orders):
            value = self.kept(f"{name}{number}", R.permute_dims(value, axes))
        return value


SWAP, KEYS = (0, 2, 1, 3), (0, 2, 3, 1)


def attention(net: Net, *keys: tuple[int, ...]) -> Any:
    scores = net.kept("s", R.matmul(net.split_features("q", SWAP), net.split_features("k", *keys)), S)
    weights = net.kept("p", R.nn.softmax(scores, axis=-1), P)
    return net.kept("y", R.matmul(weights, net.split_features("v", SWAP)), Y, is_output=True)


def one_transposition(net: Net) -> Any:
    return attention(net, KEYS)


def two_transpositions(net: Net) -> Any:
    return attention(net, SWAP, (0, 1, 3, 2))


def rows_that_part(net: Net) -> Any:
    """The rows of the first operand lie nowhere dense."""
    return net.kept("y", R.matmul(net.split_features("q", KEYS), net.split_features("v", SWAP)), Y, is_output=True)


def channels_last(net: Net) -> Any:
    """What is transposed is a convolution's result, which lies in another layout than the graph has it."""
    weight = net.q.weight("w", np.random.default_rng(1).integers(-127, 128, (TOKENS, TOKENS, 1, 1)).astype(np.int8), 0.01)
    found = net.kept("c", R.nn.conv2d(net.inputs["q"], weight), S)
    keys = net.kept("t", R.permute_dims(found, (0, 1, 3, 2)), S)
    return net.kept("y", R.matmul(net.inputs["k"], keys), (4.0, 0), is_output=True)


def read_twice(net: Net) -> Any:
    q = net.split_features("q", SWAP)
    first = net.kept("s", R.matmul(q, net.split_features("k", KEYS)), S)
    return net.kept("y", R.matmul(first, q), Y, is_output=True)


def model_of(body: Callable[[Net], Any], dtype: str = "int8") -> Model:
    inputs = dict.fromkeys(("q", "k", "v"), ((2, TOKENS, HEADS, DEPTH), dtype))
    return octavo.load(graph(inputs, lambda writer, variables: body(Net(writer, variables, dtype))))


def launches(model: Model) -> list[str]:
    return [kernel.name for kernel in lowered_for(backend_of(ISA), model).plan.kernels]


PRODUCT = "batch_matmul_gemm"
EXPECTED = {
    one_transposition: [PRODUCT, "softmax", PRODUCT],
    two_transpositions: [PRODUCT, "softmax", PRODUCT],
    read_twice: ["move", PRODUCT, PRODUCT],
    rows_that_part: ["move", PRODUCT],
    channels_last: ["transpose", "conv2d_gemm", "move", PRODUCT],
}


@pytest.mark.parametrize("body", EXPECTED, ids=lambda body: body.__name__)
def test_a_transposition_has_no_launch_where_a_product_reads_around_it(body: Any) -> None:
    assert launches(model_of(body)) == EXPECTED[body]


@pytest.mark.parametrize("number", range(len(EXPECTED)), ids=[body.__name__ for body in EXPECTED])
def test_bytes_are_those_of_the_cpu(number: int) -> None:
    body, dtype = list(EXPECTED)[number], ("int8", "uint8")[number % 2]
    if body is channels_last:
        dtype = "int8"
    model, rng = model_of(body, dtype), np.random.default_rng(2)
    reference = octavo.compile(model)
    x = {spec.source_name: rng.integers(0, 256, spec.shape).astype(np.uint8).view(dtype) for spec in reference.inputs}
    for isa in list(ISAS)[number % 2 :: 2]:
        found = emulation(model, isa)(x)
        for name, expected in reference(x).items():
            assert np.array_equal(found[name], expected)
            assert len(np.unique(expected)) > 20


def test_a_transposition_is_recorded_as_the_products() -> None:
    ops = octavo.explain(model_of(two_transpositions), target=ISA).ops
    assert [op.op for op in ops] == ["move", "move", "move", "batch_matmul", "softmax", "move", "batch_matmul"]
    assert {op.kernel for op in ops if op.op == "move"} == {PRODUCT}
