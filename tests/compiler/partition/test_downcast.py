"""Downcasting a float module: which tensors are kept in 16 bits, what is computed then, and what is said of it."""

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.ir import assert_structural_equal
from tvm.script import ir as I
from tvm.script import relax as R

from octavo.compiler.backends.cpu.link import link
from octavo.compiler.codegen.generate import vm_passes
from octavo.compiler.partition.context import PartitionContext
from octavo.compiler.partition.downcast import downcast
from octavo.errors import CompileError
from octavo.numerics.floats.half import HalfDtype
from octavo.runtime.llvm_host import host_target
from octavo.target import CPU
from octavo.target.precision import Precision
from qdq_graph import Qdq, graph, lower, run_float


def const(rng: np.random.Generator, *shape: int) -> Any:
    return relax.const(rng.normal(size=shape).astype(np.float32))


INPUT: dict[str, tuple[tuple[int, ...], str]] = {"x": ((1, 4, 6, 6), "float32")}


def context_of(dtype: HalfDtype, **kept: str) -> PartitionContext:
    return PartitionContext(target=CPU, precision=Precision(dtype=dtype, kept=kept))


def halves_of(module: tvm.IRModule, context: PartitionContext) -> set[str]:
    downcast(module, context)
    return context.half_names


def test_tensors_between_kernels_are_kept_in_16_bits(rng: np.random.Generator) -> None:
    w, b, v, factor = const(rng, 4, 4, 3, 3), const(rng, 1, 4, 1, 1), const(rng, 4, 4, 1, 1), const(rng, 1)

    def before(f: Any, x: dict[str, Any]) -> Any:
        c = f.emit("c", relax.op.nn.conv2d(x["x"], w, padding=1))
        r = f.emit("r", relax.op.nn.relu(f.emit("a", relax.op.add(c, b))))
        d = f.emit("d", relax.op.nn.conv2d(r, v))
        # The last operand of a sum is part of its kernel; the other one, which was there before, is read.
        s = f.emit("s", relax.op.add(r, d))
        p = f.emit("p", relax.op.concat([s, r], axis=1))
        return f.emit("y", relax.op.multiply(f.emit("m", relax.op.nn.max_pool2d(p)), factor), is_output=True)

    def after(f: Any, x: dict[str, Any]) -> Any:
        def half(name: str, value: Any) -> Any:
            return f.emit(f"{name}_bfloat16", relax.op.astype(value, "bfloat16"))

        def rounded(name: str, value: Any) -> Any:
            return f.emit(f"{name}_rounded", relax.op.astype(value, "float32"))

        x_rounded = rounded("x", half("x", x["x"]))
        c = f.emit("c", relax.op.nn.conv2d(x_rounded, w, padding=1))
        r_half = half("r", f.emit("r", relax.op.nn.relu(f.emit("a", relax.op.add(c, b)))))
        r = rounded("r", r_half)
        d = f.emit("d", relax.op.nn.conv2d(r, v))
        s_half = half("s", f.emit("s", relax.op.add(r, d)))
        p = rounded("p", f.emit("p_bfloat16", relax.op.concat([s_half, r_half], axis=1)))
        return f.emit("y", relax.op.multiply(f.emit("m", relax.op.nn.max_pool2d(p)), factor), is_output=True)

    context = context_of("bfloat16")
    assert_structural_equal(downcast(graph(INPUT, before), context), graph(INPUT, after))
    assert context.half_names == {"x_bfloat16", "r_bfloat16", "s_bfloat16", "p_bfloat16"}
    assert context.sources["r_rounded"] == "r"


def test_a_tensor_stays_float32_where_the_caller_says_so() -> None:
    def body(f: Any, x: dict[str, Any]) -> Any:
        r = f.emit("r", relax.op.nn.softmax(x["x"]))
        return f.emit("y", relax.op.nn.softmax(r), is_output=True)

    module = graph(INPUT, body)
    assert halves_of(module, context_of("float16", r="it is large")) == {"x_float16"}
    assert downcast(module, context_of("float16", r="", x="")).same_as(module)


def test_a_batch_normalization_and_the_clamp_behind_it_are_one_kernel_with_the_convolution(rng: np.random.Generator) -> None:
    statistics = [const(rng, 4), const(rng, 4), const(rng, 4), relax.const(rng.uniform(0.5, 2, 4).astype(np.float32))]

    def body(f: Any, x: dict[str, Any]) -> Any:
        c = f.emit("c", relax.op.nn.conv2d(x["x"], const(rng, 4, 4, 1, 1)))
        n = f.emit("n", relax.op.nn.batch_norm(c, *statistics, axis=1, training=False))
        r = f.emit("r", relax.op.clip(f.emit("first", relax.TupleGetItem(n, 0)), 0, 6))
        return f.emit("y", relax.op.nn.softmax(r), is_output=True)

    module = graph(INPUT, body)
    assert halves_of(module, context_of("bfloat16")) == {"x_bfloat16", "r_bfloat16"}
    records = lower(module, CPU, ("generic",), 1, (), Precision(dtype="bfloat16")).records
    told = [(record.op, record.tensor, record.dtype) for record in records]
    assert told == [("nn.conv2d", "r", "bfloat16"), ("nn.softmax", "y", "")]


def test_a_quantized_module_is_refused() -> None:
    def body(f: Any, x: dict[str, Any]) -> Any:
        q = Qdq(f, "int8")
        return f.emit("y", relax.op.nn.relu(q.dequantize("x", q.quantize("x", x["x"], (0.1, 0)), (0.1, 0))), is_output=True)

    with pytest.raises(CompileError, match="precision 'float16' is for float models, and this one is quantized"):
        lower(graph(INPUT, body), CPU, ("generic",), 1, (), Precision(dtype="float16"))


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_pools_and_concatenations_stay_in_16_bits(rng: np.random.Generator, layout: str) -> None:
    """Of small integers every sum is exact, so TVM's own float16 is the same to the last bit."""
    axis = layout.index("C")

    def body(f: Any, x: dict[str, Any]) -> Any:
        m = f.emit("m", relax.op.nn.max_pool2d(x["x"], (3, 3), (2, 2), (1, 1, 0, 1), layout=layout))
        a = f.emit("a", relax.op.nn.avg_pool2d(x["x"], (2, 2), (2, 2), layout=layout, ceil_mode=True))
        c = f.emit("c", relax.op.concat([m, a, m], axis=axis))
        return f.emit("y", relax.op.nn.max_pool2d(c, (2, 2), layout=layout), is_output=True)

    shape = (1, 5, 8, 10) if layout == "NCHW" else (1, 8, 10, 5)
    module = graph({"x": (shape, "float32")}, body)
    lowered = lower(module, CPU, ("generic",), 1, (), Precision(dtype="float16"))
    kernels = [kernel.name for kernel in lowered.kernels.values() if kernel.name != "transpose"]
    pools = ["float16.max_pool2d", "float16.avg_pool2d"]
    assert kernels == ["float32.to_float16", *pools, "half.concat", "float16.to_float32"]
    assert [(record.op, record.dtype) for record in lowered.records] == [
        *(("nn.max_pool2d", "float16"), ("nn.avg_pool2d", "float16"), ("concat", "float16"), ("nn.max_pool2d", "")),
    ]
    x = rng.integers(-9000, 9000, shape).astype(np.float32)
    linked = link(lowered, host_target())
    main = relax.VirtualMachine(relax.build(vm_passes()(linked), host_target(), relax_pipeline=None), tvm.cpu())["main"]
    assert np.array_equal(main(tvm.runtime.tensor(x)).numpy(), run_float(downcast(module, context_of("float16")), x))


@I.ir_module
class Before:
    @R.function
    def main(x: R.Tensor((2, 8), "float32")) -> R.Tensor((2, 8), "float32"):
        with R.dataflow():
            a = R.nn.softmax(x, axis=1)
            b = R.reshape(a, (2, 8))
            y = R.nn.softmax(b, axis=1)
            R.output(y)
        return y


@I.ir_module
class Expected:
    @R.function
    def main(x: R.Tensor((2, 8), "float32")) -> R.Tensor((2, 8), "float32"):
        with R.dataflow():
            x_float16 = R.astype(x, "float16")
            x_rounded = R.astype(x_float16, "float32")
            a = R.nn.softmax(x_rounded, axis=1)
            a_float16 = R.astype(a, "float16")
            b_float16 = R.reshape(a_float16, (2, 8))
            b_rounded = R.astype(b_float16, "float32")
            y = R.nn.softmax(b_rounded, axis=1)
            R.output(y)
        return y


def test_what_computes_reads_float32_and_what_moves_moves_16_bits() -> None:
    assert_structural_equal(downcast(Before, context_of("float16")), Expected)


def test_without_a_precision_the_module_is_the_same() -> None:
    assert downcast(Before, PartitionContext(target=CPU)).same_as(Before)
