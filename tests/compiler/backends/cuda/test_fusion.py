"""What runs in the kernel of a product: whole modules, their launches and records, and bytes with and without."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from emulated_runner import emulated, emulation
from tvm import relax
from tvm.script import relax as R

import octavo
from octavo.compiler.backends.cuda import lowering
from octavo.compiler.backends.cuda.backend import backend_of
from octavo.compiler.backends.cuda.isa import ISAS
from octavo.compiler.device_models import lowered_for
from octavo.ir.graph import Model
from octavo.ir.graph.inputs import input_specs
from qdq_graph import Qdq, graph

ISA = "cuda.sm_80"
X, Y, Z, S = (0.02, 3), (0.05, -7), (0.06, 11), (1 / 256, -128)


class Net:
    """Writes a network of int8 tensors; those named in `results` it gives."""

    def __init__(self, writer: Any, variables: dict[str, Any], layout: str, results: Sequence[str]) -> None:
        self.q = Qdq(writer, "int8")
        self.writer, self.layout, self.results = writer, layout, results
        self.integers: dict[str, Any] = {}
        for name in ("x", "r"):
            setattr(self, name, self.q.dequantize(name, variables[f"{name}_q"], X))
        self.rng = np.random.default_rng(3)

    def conv(self, name: str, x: Any, *, groups: int = 1, function: Callable[[Any], Any] | None = None) -> Any:
        """A convolution of 3 x 3 of 16 channels, or a function of it in float."""
        size = (16, 16 // groups, 3, 3) if self.layout == "NCHW" else (3, 3, 16 // groups, 16)
        weight = self.q.weight(f"{name}_w", self.rng.integers(-127, 128, size).astype(np.int8), 0.002 * groups**0.5)
        layouts = {"data_layout": self.layout, "kernel_layout": "OIHW" if self.layout == "NCHW" else "HWIO"}
        real = R.nn.conv2d(x, weight, padding=[1, 1, 1, 1], groups=groups, **layouts)
        return self.kept(name, real if function is None else function(self.writer.emit(f"{name}_conv", real)), Y)

    def kept(self, name: str, real: Any, params: tuple[float, int]) -> Any:
        """A tensor quantized, and back in float."""
        value = self.writer.emit(f"{name}_real", real)
        self.integers[name] = self.q.quantize(name, value, params, is_output=name in self.results)
        return self.q.dequantize(name, self.integers[name], params)

    def add(self, name: str, a: Any, b: Any, *, relu: bool = False) -> Any:
        total = self.writer.emit(f"{name}_sum", R.add(a, b))
        return self.kept(name, R.nn.relu(total) if relu else R.add(a, b), Z)

    def sigmoid(self, name: str, x: Any) -> Any:
        return self.kept(name, R.sigmoid(x), S)


def residual(net: Any) -> None:
    net.add("z", net.conv("y", net.x), net.r, relu=True)


def other_way_around(net: Any) -> None:
    net.add("z", net.r, net.conv("y", net.x))


def depthwise(net: Any) -> None:
    net.add("z", net.conv("y", net.x, groups=16), net.r)


def difference(net: Any) -> None:
    net.kept("z", R.subtract(net.r, net.conv("y", net.x)), Z)


def gate(net: Any) -> None:
    net.kept("z", R.multiply(net.conv("y", net.x), net.r), Y)


def sum_then_table(net: Any) -> None:
    net.sigmoid("z", net.add("s", net.conv("y", net.x), net.r))


def table_then_sum(net: Any) -> None:
    net.add("z", net.sigmoid("s", net.conv("y", net.x)), net.r)


def two_products(net: Any) -> None:
    net.add("z", net.conv("y", net.x), net.conv("short", net.r))


def two_tables(net: Any) -> None:
    net.add("z", net.sigmoid("a", net.conv("y", net.x)), net.sigmoid("b", net.conv("short", net.r)))


def block(net: Any) -> None:
    h = net.conv("h", net.x)
    net.add("z", net.conv("y", h), h, relu=True)


def constant(net: Any) -> None:
    shape = (16, 5, 7) if net.layout == "NCHW" else (5, 7, 16)
    net.add("z", net.conv("y", net.x), net.q.weight("c", net.rng.integers(-128, 128, shape).astype(np.int8), 0.03, 5))


def scaled(net: Any) -> None:
    net.kept("z", R.multiply(net.conv("y", net.x), relax.const(np.float32(0.3))), Y)


def function_then_sum(net: Any) -> None:
    def silu(real: Any) -> Any:
        return R.multiply(real, net.writer.emit("gate", R.sigmoid(real)))

    net.add("z", net.conv("y", net.x, function=silu), net.r)


def sum_of_three(net: Any) -> None:
    net.add("z", net.add("s", net.conv("y", net.x), net.r), net.x)


def read_twice(net: Any) -> None:
    y = net.conv("y", net.x)
    net.add("z", net.add("s", y, net.r), y)


def model_of(body: Callable[[Any], None], layout: str, results: Sequence[str] = ("z",)) -> Model:
    """A network whose tensors are all of one shape."""

    def written(writer: Any, variables: dict[str, Any]) -> Any:
        net = Net(writer, variables, layout, results)
        body(net)
        found = [net.integers[name] for name in results]
        return found[0] if len(found) == 1 else relax.Tuple(found)

    shape = (1, 16, 5, 7) if layout == "NCHW" else (1, 5, 7, 16)
    return octavo.load(graph(dict.fromkeys(("x_q", "r_q"), (shape, "int8")), written))


def launches(model: Model, isa: str = ISA) -> list[str]:
    return [kernel.name for kernel in lowered_for(backend_of(isa), model).plan.kernels if kernel.name != "transpose"]


EXPECTED = {
    residual: ["conv2d_gemm_add"],
    other_way_around: ["conv2d_gemm_add"],
    depthwise: ["depthwise_add"],
    difference: ["conv2d_gemm_subtract"],
    gate: ["conv2d_gemm_multiply"],
    sum_then_table: ["conv2d_gemm_add_lookup"],
    table_then_sum: ["conv2d_gemm_lookup_add"],
    two_products: ["conv2d_gemm", "conv2d_gemm_add"],
    two_tables: ["conv2d_gemm_lookup", "conv2d_gemm_lookup_add"],
    block: ["conv2d_gemm", "conv2d_gemm_add"],
    constant: ["conv2d_gemm_add"],
    scaled: ["conv2d_gemm_lookup"],
    function_then_sum: ["conv2d_gemm_function_add"],
    sum_of_three: ["conv2d_gemm_add", "add"],
    read_twice: ["conv2d_gemm", "add", "add"],
}
"""The launches where all tensors lie in one layout."""

MIXED = {
    **{body: ["conv2d_gemm", "add"] for body in (residual, other_way_around)},
    depthwise: ["depthwise", "add"],
    difference: ["conv2d_gemm", "subtract"],
    gate: ["conv2d_gemm", "multiply"],
    function_then_sum: ["conv2d_gemm_function", "add"],
    sum_then_table: ["conv2d_gemm", "add", "lookup"],
    table_then_sum: ["conv2d_gemm_lookup", "add"],
    sum_of_three: ["conv2d_gemm", "add", "add"],
}
"""Those that differ where the input that a sum reads lies channels first."""


@pytest.mark.parametrize("body", EXPECTED, ids=lambda body: body.__name__)
def test_an_op_runs_in_the_kernel_of_the_product_that_it_alone_reads(body: Any) -> None:
    assert launches(model_of(body, "NHWC")) == EXPECTED[body]
    assert launches(model_of(body, "NCHW")) == MIXED.get(body, EXPECTED[body])


def samples(model: Model) -> dict[str, Any]:
    rng = np.random.default_rng(5)
    return {spec.source_name: rng.integers(-128, 128, spec.shape).astype(np.int8) for spec in input_specs(model)}


@pytest.mark.parametrize("number", range(len(EXPECTED)), ids=[body.__name__ for body in EXPECTED])
def test_bytes_are_those_of_the_cpu_and_of_single_launches(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    body = list(EXPECTED)[number]
    model = model_of(body, ("NCHW", "NHWC")[number % 2] if body in (block, constant, two_products, two_tables) else "NHWC")
    x = samples(model)
    isa = list(ISAS)[number % len(ISAS)]
    found = emulation(model, isa)(x)
    count = len(launches(model, isa))
    monkeypatch.setattr(lowering, "chains_of", lambda *_: {})
    alone = emulation(model, isa)(x)
    assert len(launches(model, isa)) - count == {read_twice: 0, sum_then_table: 2, table_then_sum: 2, two_tables: 3}.get(body, 1)
    for name, expected in octavo.compile(model)(x).items():
        assert np.array_equal(found[name], expected)
        assert np.array_equal(alone[name], expected)
        assert len(np.unique(expected)) > 20


def test_each_op_has_a_record_that_names_the_kernel_it_runs_in() -> None:
    ops = octavo.explain(model_of(two_tables, "NHWC"), target=ISA).ops
    assert [(op.op, op.tensor, op.kernel, op.isa, op.integer) for op in ops] == [
        ("conv2d", "y_q", "conv2d_gemm_lookup", ISA, True),
        ("lookup", "a_q", "conv2d_gemm_lookup", ISA, True),
        ("conv2d", "short_q", "conv2d_gemm_lookup_add", ISA, True),
        ("lookup", "b_q", "conv2d_gemm_lookup_add", ISA, True),
        ("add", "z_q", "conv2d_gemm_lookup_add", ISA, True),
    ]


@pytest.mark.parametrize(
    ("results", "expected"),
    [
        (("y", "z"), ["conv2d_gemm", "add", "lookup"]),
        (("s", "z"), ["conv2d_gemm_add", "lookup"]),
        (("s",), ["conv2d_gemm_add"]),
    ],
)
def test_a_tensor_that_is_asked_for_is_written(results: Sequence[str], expected: list[str]) -> None:
    model = model_of(sum_then_table, "NHWC", results)
    assert launches(model)[: len(expected)] == expected
    x = samples(model)
    found, wanted = emulation(model, ISA)(x), octavo.compile(model)(x)
    assert all(np.array_equal(found[name], value) for name, value in wanted.items())


def test_what_was_fused_is_saved(tmp_path: Path) -> None:
    model = model_of(function_then_sum, "NHWC")
    executable = octavo.compile(model, target=ISA)
    executable.save(tmp_path / "net.octavo")
    loaded = octavo.load_executable(tmp_path / "net.octavo")
    assert octavo.explain(loaded) == octavo.explain(executable)
    x = samples(model)
    assert emulated(loaded)(x)["z_q"].tobytes() == octavo.compile(model)(x)["z_q"].tobytes()
