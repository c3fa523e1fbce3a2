"""Products of two float activations are close to NumPy's, over sizes, broadcast batches and permuted operands."""

import numpy as np
import pytest
import tvm
from kernel_runner import EACH_ISA, Compiled, part

from octavo.compiler.backends.cpu.kernels import FloatBatchMatmulSpec, float_batch_matmul
from octavo.ir.composites.matrix_view import MatrixView
from octavo.runtime.llvm_host import host_target

every_isa = pytest.mark.parametrize("isa", EACH_ISA)


def in_memory(value: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    """The tensor whose axes, taken in the order `axes`, give `value`."""
    return np.ascontiguousarray(np.transpose(value, np.argsort(axes)))


def check(rng: np.random.Generator, isa, a_batch, b_batch, size, *, a_axes=None, b_axes=None, y_axes=None, factor=1.0, threads=1):
    rows, inner, columns = size
    a = rng.normal(size=(*a_batch, rows, inner)).astype(np.float32)
    b = rng.normal(size=(*b_batch, inner, columns)).astype(np.float32)
    expected = a.astype(np.float64) @ b.astype(np.float64) * factor
    views = []
    for value, axes in ((a, a_axes), (b, b_axes), (expected, y_axes)):
        views.append(MatrixView(shape=value.shape, axes=axes or tuple(range(value.ndim))))
    spec = FloatBatchMatmulSpec(a=views[0], b=views[1], y=views[2], factor=factor, threads=threads)
    inputs = [in_memory(value, view.axes) for value, view in zip((a, b), views[:2], strict=True)]
    expected = in_memory(expected, views[2].axes).ravel()
    result = tvm.runtime.tensor(np.full(expected.size, 77, np.float32))
    function = Compiled({"kernel": float_batch_matmul(spec, isa=isa).func}, host_target())["kernel"]
    function(*(tvm.runtime.tensor(value.ravel()) for value in inputs), result)
    assert np.abs(result.numpy() - expected).max() <= 4e-6 * np.sqrt(inner), spec


@every_isa
def test_sizes(rng: np.random.Generator, isa):
    for size in part([(1, 1, 1), (2, 3, 15), (3, 16, 16), (6, 33, 17), (7, 64, 33), (13, 5, 64), (8, 2, 65), (9, 17, 129)], isa):
        check(rng, isa, (2,), (2,), size)


@every_isa
def test_batches_that_broadcast(rng: np.random.Generator, isa):
    for pair in part([((), ()), ((3,), ()), ((), (3,)), ((2, 1), (1, 3)), ((4, 2, 1), (5,))], isa):
        check(rng, isa, *pair, (5, 6, 18), factor=0.125)


@every_isa
@pytest.mark.parametrize("size", [(5, 64, 32), (9, 17, 33), (2, 15, 16), (3, 40, 70)])
def test_operands_and_result_of_attention(rng: np.random.Generator, isa, size):
    """Heads lie behind the tokens in memory; the keys' features are neighbours."""
    heads, keys = (0, 2, 1, 3), (0, 2, 3, 1)
    check(rng, isa, (1, 3), (1, 3), size, a_axes=heads, b_axes=keys, factor=0.3)
    check(rng, isa, (2, 3), (2, 3), size, b_axes=heads, y_axes=heads, threads=2)
