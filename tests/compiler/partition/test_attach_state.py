"""What the passes found out of the whole function stands on "main", where lowering reads it."""

from tvm.ir import assert_structural_equal
from tvm.script import ir as I
from tvm.script import relax as R

from octavo.compiler.partition.attach_state import FLOAT_MODEL, attach_state
from octavo.compiler.partition.context import PartitionContext
from octavo.ir.graph.partition_state import read_state
from octavo.ir.graph.rules import Rejection
from octavo.target import CPU


@I.ir_module
class Before:
    @R.function
    def main(x: R.Tensor((2, 8), "float32")) -> R.Tensor((2, 8), "float32"):
        R.func_attr({"num_input": 1})
        with R.dataflow():
            y = R.nn.relu(x)
            R.output(y)
        return y


@I.ir_module
class Expected:
    @R.function
    def main(x: R.Tensor((2, 8), "float32")) -> R.Tensor((2, 8), "float32"):
        R.func_attr(
            {
                "num_input": 1,
                "octavo.partition": {
                    "tensors": {"x_q": "x"},
                    "pixels_of": {"x_strided": "x", "y_strided": "y"},
                    "cuts": ["x_strided"],
                    "halves": [],
                    "rejections": {"y": "wide"},
                },
            }
        )
        with R.dataflow():
            y = R.nn.relu(x)
            R.output(y)
        return y


def context_of(*, is_float: bool) -> PartitionContext:
    return PartitionContext(
        target=CPU,
        source_tensors={"x_q": "x"},
        sources={"x_strided": "x_q", "y_strided": "y"},
        cuts={"x_strided"},
        rejections={"y": Rejection(reason="wide")},
        is_float=is_float,
    )


def test_the_facts_are_an_attribute_of_main() -> None:
    assert_structural_equal(attach_state(Before, context_of(is_float=False)), Expected)


def test_of_a_float_model_the_reason_is_that_it_is_float() -> None:
    assert read_state(attach_state(Before, context_of(is_float=True))).rejections == {"y": FLOAT_MODEL}
