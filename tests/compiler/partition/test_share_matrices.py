"""Products with matrices that several heads share read these once, and not their copies."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tvm import relax
from tvm.ir import assert_structural_equal
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T

from octavo.compiler.backends.cpu.kernels import isas_of
from octavo.compiler.partition.share_matrices import share_matrices
from octavo.runtime.llvm_host import host_target
from octavo.target import CPU
from qdq_graph import Qdq, graph, lower, run_float, run_lowered

op: Any = relax.op
ISAS = isas_of(host_target())


@I.ir_module
class Before:
    @R.function
    def main(
        q: R.Tensor((1, 6, "s", 4), "float32"), k: R.Tensor((1, 2, "p", 4), "float32"), v: R.Tensor((1, 2, "p", 4), "float32")
    ):
        p = T.int64()
        with R.dataflow():
            wide = R.tile(R.expand_dims(k, axis=[2]), (1, 1, 3, 1, 1))
            keys = R.permute_dims(R.reshape(wide, R.shape([1, 6, p, 4])), (0, 1, 3, 2))
            scores = R.matmul(q, keys)
            y = R.matmul(scores, R.repeat(v, 3, axis=1))
            R.output(y)
        return y


@I.ir_module
class Expected:
    @R.function
    def main(
        q: R.Tensor((1, 6, "s", 4), "float32"), k: R.Tensor((1, 2, "p", 4), "float32"), v: R.Tensor((1, 2, "p", 4), "float32")
    ):
        s = T.int64()
        p = T.int64()
        with R.dataflow():
            shared = R.permute_dims(k, (0, 1, 3, 2))
            group = R.reshape(q, R.shape([1, 2, s * 3, 4]))
            of_groups = R.matmul(group, shared)
            scores = R.reshape(of_groups, R.shape([1, 6, s, p]))
            group_1 = R.reshape(scores, R.shape([1, 2, s * 3, p]))
            y = R.reshape(R.matmul(group_1, v), R.shape([1, 6, s, 4]))
            R.output(y)
        return y


def test_rows_of_heads_that_share_a_matrix_are_those_of_one() -> None:
    assert_structural_equal(share_matrices(Before), Expected, map_free_vars=True)


def attention_scores(repeats: str, *, quantized: bool = False) -> Any:
    """q (2, 6, 5, 4) times two matrices (2, 2, 7, 4), which three heads each share."""

    def body(writer: Any, params: Any) -> Any:
        x = Qdq(writer, "int8").dequantize("k", params["k"], (0.05, 3)) if quantized else params["k"]
        if repeats == "rows":  # no head: along another axis
            wide = op.reshape(
                writer.emit("many", op.tile(writer.emit("one", op.expand_dims(x, [3])), (1, 1, 1, 3, 1))), (2, 6, 7, 4)
            )
        elif repeats == "repeat":
            wide = op.repeat(x, 3, 1)
        else:
            one = writer.emit("one", op.expand_dims(x, [2]))
            wide = op.reshape(writer.emit("many", op.broadcast_to(one, (2, 2, 3, 7, 4))), (2, 6, 7, 4))
        keys = writer.emit("keys", op.permute_dims(writer.emit("wide", wide), [0, 1, 3, 2]))
        return writer.emit("y", op.matmul(params["q"], keys), is_output=True)

    inputs = {"q": ((2, 6, 5, 4), "float32"), "k": ((2, 2, 7, 4), "int8" if quantized else "float32")}
    return graph(inputs, body)


@pytest.mark.parametrize("repeats", ["repeat", "broadcast"])
def test_it_copies_nothing_and_computes_the_same(repeats: str, rng: np.random.Generator) -> None:
    module = attention_scores(repeats)
    kernels = [record.kernel for record in lower(module, CPU, ISAS, 1).records]
    assert kernels == ["float.batch_matmul"], kernels
    q, k = (rng.normal(0, 1, shape).astype(np.float32) for shape in ((2, 6, 5, 4), (2, 2, 7, 4)))
    np.testing.assert_allclose(run_lowered(module, q, k), run_float(module, q, k), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("repeats", "quantized"), [("rows", False), ("broadcast", True)])
def test_other_repetitions_and_quantized_matrices_stay_as_they_are(repeats: str, quantized: bool) -> None:
    module = attention_scores(repeats, quantized=quantized)
    assert share_matrices(module) is module
