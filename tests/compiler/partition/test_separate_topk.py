"""Values and places of a topk of dequantized integers become an op each."""

import numpy as np
from tvm.ir import assert_structural_equal
from tvm.script import ir as I
from tvm.script import relax as R

import octavo
from octavo.compiler.partition.separate_topk import separate_topk
from octavo.ir.graph.dataflow import eliminate_dead_code


@I.ir_module
class Before:
    @R.function
    def main(x_q: R.Tensor((2, 6), "uint8")) -> R.Tuple(R.Tensor((2, 3), "float32"), R.Tensor((2, 3), "int32")):
        with R.dataflow():
            x = R.dequantize(x_q, R.const(0.5, "float32"), R.const(3, "int32"))
            both = R.topk(x, k=3, axis=1, ret_type="both", dtype="int32")
            v = both[0]
            i = both[1]
            y = R.nn.relu(v)
            R.output(y, i)
        return (y, i)


@I.ir_module
class Expected:
    @R.function
    def main(x_q: R.Tensor((2, 6), "uint8")) -> R.Tuple(R.Tensor((2, 3), "float32"), R.Tensor((2, 3), "int32")):
        with R.dataflow():
            x = R.dequantize(x_q, R.const(0.5, "float32"), R.const(3, "int32"))
            v_topk = R.topk(x, k=3, axis=1, ret_type="values", dtype="int32")
            v_q = R.quantize(v_topk, R.const(0.5, "float32"), R.const(3, "int32"), out_dtype="uint8")
            v = R.dequantize(v_q, R.const(0.5, "float32"), R.const(3, "int32"))
            i = R.topk(x, k=3, axis=1, ret_type="indices", dtype="int32")
            y = R.nn.relu(v)
            R.output(y, i)
        return (y, i)


def test_each_result_is_an_op() -> None:
    assert_structural_equal(eliminate_dead_code(separate_topk(Before)), Expected)
    assert separate_topk(Expected).same_as(Expected)


def test_both_are_integer_and_the_values_those_of_the_integers(rng: np.random.Generator) -> None:
    model = octavo.load(Before)
    kernels = {op.tensor: (op.integer, op.kernel) for op in octavo.explain(model).ops}
    assert sum("topk" in kernel and integer for integer, kernel in kernels.values()) == 2
    x = rng.permutation(200)[:12].reshape(2, 6).astype(np.uint8)
    y, places = octavo.compile(model)(x).values()
    expected = np.argsort(-x.astype(np.int32), axis=1)[:, :3]
    np.testing.assert_array_equal(places, expected)
    np.testing.assert_array_equal(y, np.maximum((np.take_along_axis(x, expected, 1).astype(np.float32) - 3) * np.float32(0.5), 0))
