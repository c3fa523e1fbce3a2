"""Float functions give the same bits for each size, known or open: which product is rounded with a sum is settled before LLVM."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import tvm
from tvm import relax

from octavo.compiler.backends.cpu.link import float_passes
from octavo.compiler.codegen.generate import generate
from octavo.ir.graph.dataflow import BodyWriter, write_function
from octavo.runtime.llvm_host import host_target
from octavo.runtime.runner import runner_of

SIZES = (1, 2, 3, 5, 16, 33)
Write = Callable[[BodyWriter, list[relax.Var]], relax.Expr]


def rotary(writer: BodyWriter, given: list[relax.Var]) -> relax.Expr:
    """a * b - c * d, all read once."""
    a, b, c, d = given
    products = [writer.emit(name, relax.op.multiply(*pair)) for name, pair in (("p", (a, b)), ("q", (c, d)))]
    return writer.emit("y", relax.op.subtract(*products), is_output=True)


def shared_product(writer: BodyWriter, given: list[relax.Var]) -> relax.Expr:
    """A product that two sums read stays in memory."""
    a, b, c, d = given
    p = writer.emit("p", relax.op.multiply(a, b))
    sums = [writer.emit(name, relax.op.add(p, other)) for name, other in (("s", c), ("t", d))]
    return writer.emit("y", relax.op.maximum(*sums), is_output=True)


def by_row(writer: BodyWriter, given: list[relax.Var]) -> relax.Expr:
    """A product of each row's sum meets each element."""
    a, b, c, _ = given
    total = writer.emit("total", relax.op.sum(writer.emit("p", relax.op.multiply(a, b)), axis=[1], keepdims=True))
    scaled = writer.emit("scaled", relax.op.multiply(total, relax.const(np.float32(0.1))))
    return writer.emit("y", relax.op.add(scaled, c), is_output=True)


def module(write: Write, rows: object) -> tvm.IRModule:
    """main(a, b, c, d) of [rows, 4] through the float passes."""
    builder = relax.BlockBuilder()
    given = [relax.Var(name, relax.TensorType((rows, 4), "float32")) for name in "abcd"]
    write_function(builder, "main", given, lambda writer: write(writer, given))
    with host_target():
        return float_passes()(builder.get())


def run(linked: tvm.IRModule, values: list[np.ndarray], shapes: list[tuple[object, int]]) -> np.ndarray:
    from octavo.runtime.size import Size

    code = generate(linked, host_target())
    given = [tuple(Size.named(dim) if isinstance(dim, str) else dim for dim in shape) for shape in shapes]
    [result] = runner_of(code, given)([tvm.runtime.tensor(value) for value in values])
    return result.numpy()


@pytest.mark.parametrize("write", [rotary, shared_product, by_row])
def test_results_are_the_same_bits_for_known_and_open_sizes(write: Write, rng: np.random.Generator):
    opened = module(write, tvm.tirx.Var("rows", "int64"))
    for rows in SIZES:
        values = [rng.standard_normal((rows, 4)).astype(np.float32) for _ in range(4)]
        known = run(module(write, rows), values, [(rows, 4)] * 4)
        np.testing.assert_array_equal(run(opened, values, [("rows", 4)] * 4), known)


def test_the_first_of_two_products_is_rounded_with_the_sum(rng: np.random.Generator):
    a, b, c, d = values = [rng.standard_normal((64, 4)).astype(np.float32) for _ in range(4)]
    # The product of two float32 is exact in float64, where the sum is rounded once more, to nothing that float32 sees.
    want = (a.astype(np.float64) * b - (c * d)).astype(np.float32)
    np.testing.assert_array_equal(run(module(rotary, 64), values, [(64, 4)] * 4), want)


def test_a_product_that_two_sums_share_is_rounded_before_them(rng: np.random.Generator):
    a, b, c, d = values = [rng.standard_normal((3, 4)).astype(np.float32) for _ in range(4)]
    np.testing.assert_array_equal(run(module(shared_product, 3), values, [(3, 4)] * 4), np.maximum(a * b + c, a * b + d))


def test_loops_over_the_same_elements_become_one():
    text = module(rotary, 64).script()
    assert "sblock_alloc_buffer" not in text
    assert text.count("llvm.fma") == 1


@pytest.mark.parametrize(
    ("target", "is_settled"),
    [
        ({"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": "haswell"}, True),
        ({"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": "x86-64"}, False),
        ({"kind": "llvm", "mtriple": "aarch64-linux-gnu"}, True),
        ({"kind": "llvm", "mtriple": "wasm32-unknown-unknown"}, False),
    ],
)
def test_processors_without_such_an_instruction_call_no_function_for_it(target: dict[str, str], is_settled: bool) -> None:
    builder = relax.BlockBuilder()
    params = [relax.Var(name, relax.TensorType((8, 16), "float32")) for name in "abcd"]
    write_function(builder, "main", params, lambda writer: rotary(writer, params))
    with tvm.target.Target(target):
        module = float_passes()(builder.get())
    assert ("llvm.fma" in module.script()) == is_settled
