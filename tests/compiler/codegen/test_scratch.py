"""Large buffers of a kernel become its parameters; small ones and accumulators stay."""

from __future__ import annotations

import pytest
import tvm
from tvm import relax
from tvm.script import tirx as T

from octavo.compiler.backends.cpu.link import float_passes
from octavo.compiler.codegen.program import call_plan, native_program
from octavo.compiler.codegen.scratch import with_scratch
from octavo.ir.graph.dataflow import BodyWriter, write_function
from octavo.runtime.code import ENTRY
from octavo.runtime.llvm_host import host_target


@T.prim_func
def kernel(x: T.handle("float32", "global"), y: T.handle("float32", "global")) -> T.int32:
    source = T.decl_buffer((5000,), data=x)
    result = T.decl_buffer((5000,), data=y)
    doubled = T.alloc_buffer((5000,))
    sums = T.alloc_buffer((16,), scope="local")
    for i in range(5000):
        doubled[i] = source[i] * T.float32(2)
    for i in range(5000):
        sums[i % 16] = doubled[i]
        result[i] = sums[i % 16]


def test_a_large_buffer_is_a_parameter_and_an_accumulator_is_not() -> None:
    made, sizes = with_scratch(kernel, 16384)
    assert sizes == [20000]
    assert [param.name for param in made.params] == ["x", "y", "doubled_data"]
    text = made.script()
    assert 'alloc_buffer((16,), scope="local")' in text or "alloc_local((16,))" in text
    assert "alloc_buffer((5000,)" not in text


def test_what_fits_the_stack_stays_there() -> None:
    made, sizes = with_scratch(kernel, 20064)
    assert (made, sizes) == (kernel, [])


def turned_square(rows: object) -> tvm.IRModule:
    """A fused op that keeps a tensor of its own."""
    x = relax.Var("x", relax.TensorType((rows, 128), "float32"))  # pyright: ignore[reportArgumentType]

    def write(writer: BodyWriter) -> relax.Expr:
        root = writer.emit("root", relax.op.sqrt(x))
        turned = writer.emit("turned", relax.op.permute_dims(root, [1, 0]))
        return writer.emit("y", relax.op.multiply(turned, turned), is_output=True)  # one that is read once is not kept

    builder = relax.BlockBuilder()
    write_function(builder, "main", [x], write)
    with host_target():
        return float_passes()(builder.get())


def test_intermediate_tensors_of_a_fused_op_are_in_the_workspace() -> None:
    plan = call_plan(turned_square(64), on_stack=1024)
    assert plan is not None
    (call,) = plan.calls
    assert [operand.region for operand in call.operands] == ["input", "output", "workspace"]
    assert call.reads == 1
    assert plan.workspace == 64 * 128 * 4
    assert "alloc_buffer" not in next(function for _, function in plan.module.functions_items()).script()


@pytest.mark.parametrize("rows", [64, tvm.tirx.Var("rows", "int64")])
def test_in_this_process_tensors_of_open_sizes_alone_are_in_the_workspace(rows: object) -> None:
    program = native_program(turned_square(rows))
    assert program is not None
    [kernel] = [function for var, function in program.module.functions_items() if var.name_hint != ENTRY]
    assert ("alloc_buffer" in kernel.script()) == isinstance(rows, int)


def test_copies_are_calls_too() -> None:
    x = relax.Var("x", relax.TensorType((3, 4), "float32"))
    builder = relax.BlockBuilder()
    write_function(builder, "main", [x], lambda writer: relax.Tuple([x, x]))
    plan = call_plan(builder.get(), on_stack=0)
    assert plan is not None
    assert [(call.kernel, call.bytes, call.operands[1].index) for call in plan.calls] == [(None, 48, 0), (None, 48, 1)]
