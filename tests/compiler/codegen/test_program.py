"""Native programs: results returned as they come, calls from several threads, and what the virtual machine is for."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tvm
from tvm import relax

import octavo
from octavo.compiler.backends.cpu.link import float_passes
from octavo.compiler.codegen.generate import generate
from octavo.compiler.codegen.program import native_program
from octavo.compiler.codegen.tir_passes import llvm_module
from octavo.ir.graph.dataflow import BodyWriter, write_function
from octavo.ir.graph.kernel_attributes import IN_PLACE_ATTR
from octavo.runtime.code import ENTRY, MAX_INPUTS, Code
from octavo.runtime.llvm_host import host_target
from octavo.runtime.runner import MachineRunner, runner_of

X = np.arange(-6, 6, dtype=np.float32).reshape(3, 4)


def linked(write, shape=X.shape) -> tvm.IRModule:
    """main(x) = what `write(writer, x)` returns, after TVM's float passes."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(shape, "float32"))
    write_function(builder, "main", [x], lambda writer: write(writer, x))
    with host_target():
        return float_passes()(builder.get())


def run(module: tvm.IRModule, x: np.ndarray = X) -> list[np.ndarray]:
    code = generate(module, host_target())
    assert code.workspace is not None, "this module needs no virtual machine"
    return [value.numpy() for value in runner_of(code)([tvm.runtime.tensor(x)])]


def test_an_input_a_constant_and_one_value_twice_can_be_results():
    constant = np.array([[1.5, 2.5]], np.float32)

    def write(writer: BodyWriter, x):
        y = writer.emit("y", relax.op.nn.relu(x), is_output=True)
        c = writer.emit("c", relax.const(constant), is_output=True)
        return relax.Tuple([x, y, c, y])

    for got, want in zip(run(linked(write)), [X, np.maximum(X, 0), constant, np.maximum(X, 0)], strict=True):
        np.testing.assert_array_equal(got, want)


def test_kernels_of_plain_ops_are_no_functions_the_worker_pool_s():
    """TVM calls the kernel of a lone op after the op: "take", as one might call the claiming of work."""

    def write(writer: BodyWriter, x: relax.Var) -> relax.Expr:
        rows = relax.const(np.array([2, 0], np.int64))
        return writer.emit("taken", relax.op.take(x, rows, axis=0), is_output=True)

    module = linked(write)
    assert "take" in {str(var.name_hint) for var, _ in module.functions_items()}
    np.testing.assert_array_equal(run(module), [X[[2, 0]]])


def test_views_share_their_bytes():
    def write(writer: BodyWriter, x):
        a = writer.emit("a", relax.op.reshape(x, (2, 6)))
        b = writer.emit("b", relax.op.nn.relu(a))
        c = writer.emit("c", relax.op.reshape(b, (12,)), is_output=True)
        d = writer.emit("d", relax.op.reshape(x, (4, 3)), is_output=True)
        return relax.Tuple([c, d])

    flat, moved = run(linked(write))
    np.testing.assert_array_equal(flat, np.maximum(X, 0).reshape(12))
    np.testing.assert_array_equal(moved, X.reshape(4, 3))


def test_fields_of_a_split_are_values_of_their_own():
    def write(writer: BodyWriter, x):
        parts = writer.emit("parts", relax.op.split(x, 2, axis=1))
        left = writer.emit("left", relax.TupleGetItem(parts, 0))
        right = writer.emit("right", relax.TupleGetItem(parts, 1))
        return writer.emit("y", relax.op.subtract(right, left), is_output=True)

    np.testing.assert_array_equal(run(linked(write))[0], X[:, 2:] - X[:, :2])


def test_a_long_chain_keeps_two_tensors_in_memory():
    def write(writer: BodyWriter, x):
        for number in range(12):
            x = writer.emit(f"s{number}", relax.op.nn.softmax(x, axis=-1), is_output=number == 11)
        return x

    module = linked(write, shape=(64, 64))
    program = native_program(module)
    assert program is not None
    assert program.workspace <= 2 * 64 * 64 * 4
    x = np.random.default_rng(0).normal(size=(64, 64)).astype(np.float32)
    want = x
    for _ in range(12):
        want = np.exp(want - want.max(axis=-1, keepdims=True))
        want /= want.sum(axis=-1, keepdims=True)
    np.testing.assert_allclose(run(module, x)[0], want, rtol=1e-5)


def in_place(module: tvm.IRModule) -> tvm.IRModule:
    """The module with kernels that say that they may write over what they read."""
    kernels = {var: f.with_attr(IN_PLACE_ATTR, 1) for var, f in module.functions_items() if isinstance(f, tvm.tirx.PrimFunc)}
    module.update(tvm.IRModule(kernels))
    return module


def test_what_is_written_in_place_takes_no_memory_of_its_own():
    def write(writer: BodyWriter, x):
        for number in range(12):
            x = writer.emit(f"s{number}", relax.op.nn.softmax(x, axis=-1))
        return writer.emit("rows", relax.op.sum(x, axis=0), is_output=True)

    program = native_program(in_place(linked(write, shape=(64, 64))))
    assert program is not None
    assert program.workspace == 64 * 64 * 4


def test_what_is_read_later_is_not_written_over():
    def write(writer: BodyWriter, x):
        first = writer.emit("first", relax.op.nn.softmax(x, axis=-1))
        view = writer.emit("view", relax.op.reshape(first, (64 * 64,)))
        second = writer.emit("second", relax.op.nn.softmax(first, axis=-1))
        both = relax.op.sum(second), relax.op.sum(view)
        sums = [writer.emit(name, value) for name, value in zip(("a", "b"), both, strict=True)]
        return writer.emit("y", relax.op.subtract(*sums), is_output=True)

    program = native_program(in_place(linked(write, shape=(64, 64))))
    assert program is not None
    assert program.workspace >= 2 * 64 * 64 * 4


def _sum_of(count: int) -> tvm.IRModule:
    builder = relax.BlockBuilder()
    params = [relax.Var(f"x{index}", relax.TensorType(X.shape, "float32")) for index in range(count)]

    def write(writer: BodyWriter) -> relax.Expr:
        total = params[0]
        for index, param in enumerate(params[1:]):
            half = writer.emit(f"half{index}", relax.op.multiply(total, relax.const(0.5)))
            total = writer.emit(f"sum{index}", relax.op.add(half, param), is_output=index == count - 2)
        return total

    write_function(builder, "main", params, write)
    with host_target():
        return float_passes()(builder.get())


@pytest.mark.parametrize("count", [MAX_INPUTS, MAX_INPUTS + 1])
def test_many_inputs_are_passed_by_a_table(count):
    rng = np.random.default_rng(count)
    arrays = [rng.integers(-8, 8, X.shape).astype(np.float32) for _ in range(count)]
    expected = arrays[0]
    for array in arrays[1:]:
        expected = expected * np.float32(0.5) + array
    code = generate(_sum_of(count), host_target(), threads=2)
    assert code.workspace is not None
    prepared = runner_of(code).prepare([tvm.runtime.tensor(array) for array in arrays])
    prepared.run()  # the tensors live as long as the call
    np.testing.assert_array_equal(prepared.results()[0].numpy(), expected)


def test_a_call_that_is_no_kernel_goes_to_the_virtual_machine():
    def write(writer: BodyWriter, x):
        call = relax.call_dps_packed("tests.double", relax.Tuple([x]), out_ty=relax.TensorType(X.shape, "float32"))
        return writer.emit("y", call, is_output=True)

    @tvm.register_global_func("tests.double", override=True)
    def double(x, y) -> None:
        y.copyfrom(2 * x.numpy())

    module = linked(write)
    assert native_program(module) is None
    code = generate(module, host_target())
    assert code == Code(library=code.library)
    runner = runner_of(code)
    assert isinstance(runner, MachineRunner)
    (got,) = runner([tvm.runtime.tensor(X)])
    np.testing.assert_array_equal(got.numpy(), 2 * X)
    prepared = runner.prepare([tvm.runtime.tensor(X)])
    prepared.run()
    np.testing.assert_array_equal(prepared.results()[0].numpy(), 2 * X)


@pytest.fixture(scope="module")
def executable(shared):
    return octavo.compile(octavo.load(shared / "models/tflite/resnet8_cifar10_int8.tflite"))


def test_overlapping_calls_of_several_threads_give_each_its_own_result(executable):
    rng = np.random.default_rng(1)
    inputs = [rng.integers(-128, 128, executable.inputs[0].shape).astype(np.int8) for _ in range(8)]
    alone = [next(iter(executable(x).values())) for x in inputs]

    def many(index: int) -> bool:
        call = executable.bind(inputs[index])
        same = [np.array_equal(next(iter(executable(inputs[index]).values())), alone[index]) for _ in range(40)]
        same += [np.array_equal(next(iter(call().values())), alone[index]) for _ in range(40)]
        return all(same)

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(many, range(8)))


def test_results_of_earlier_calls_stay_as_they_were(executable):
    rng = np.random.default_rng(2)
    first, second = (rng.integers(-128, 128, executable.inputs[0].shape).astype(np.int8) for _ in range(2))
    call = executable.bind(first)
    (kept,) = call().values()
    copy = kept.copy()
    call.inputs[executable.inputs[0].source_name][:] = second
    call()
    executable(second)
    np.testing.assert_array_equal(kept, copy)


def test_kernels_stay_calls(executable):
    """TVM marks the buffers of one function as distinct by their variables, so kernels must not be merged into their caller."""
    entry = executable._code.functions[ENTRY]
    module = llvm_module(entry.functions, host_target())
    called = {name for name in executable._code.functions if name != ENTRY}
    source = module.inspect_source("ll")
    calls = re.findall(r"call i32 @(\w+)\(", source)
    assert called == {name for name in calls if name in called}
    assert not any(f"define i32 @{name}" in source for name in called)
    kernels = [op for op in octavo.explain(executable).ops if op.kernel]
    assert sum(name in called for name in calls) >= len(kernels) > 10
