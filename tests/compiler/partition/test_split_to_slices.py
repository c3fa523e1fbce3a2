"""A split becomes a slice for each part that is read."""

from tvm.ir import assert_structural_equal
from tvm.script import ir as I
from tvm.script import relax as R

from octavo.ir.graph.split_to_slices import split_to_slices


@I.ir_module
class Before:
    @R.function
    def main(x: R.Tensor((1, 6, 4), "float32")) -> R.Tensor((1, 3, 4), "float32"):
        with R.dataflow():
            parts = R.split(x, [2, 5], axis=1)
            middle = parts[1]
            y = R.nn.relu(middle)
            R.output(y)
        return y


@I.ir_module
class Expected:
    @R.function
    def main(x: R.Tensor((1, 6, 4), "float32")) -> R.Tensor((1, 3, 4), "float32"):
        with R.dataflow():
            middle = R.strided_slice(x, axes=[1], begin=[2], end=[5])
            y = R.nn.relu(middle)
            R.output(y)
        return y


def test_a_part_is_a_slice() -> None:
    assert_structural_equal(split_to_slices(Before), Expected)


def test_with_nothing_to_do_the_module_is_the_same() -> None:
    assert split_to_slices(Expected).same_as(Expected)
