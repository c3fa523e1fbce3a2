"""Float ops that have kernels become composites; TVM computes the others."""

from script_modules import without_attributes
from tvm.ir import assert_structural_equal
from tvm.script import ir as I
from tvm.script import relax as R

from nets import residual_net
from octavo.compiler.partition.context import PartitionContext
from octavo.compiler.partition.outline_float import outline_float
from octavo.compiler.partition.pipeline import partition_module
from octavo.ir.graph.observe import OBSERVE
from octavo.profiling import instrument
from octavo.target import CPU


@I.ir_module
class Before:
    @R.function
    def main(x: R.Tensor((2, 8), "float32")) -> R.Tensor((2, 8), "float32"):
        with R.dataflow():
            halved = R.multiply(x, R.const(0.5, "float32"))
            y = R.nn.softmax(halved, axis=1)
            R.output(y)
        return y


@I.ir_module
class Expected:
    @R.function(private=True)
    def octavo_float_softmax_y(x: R.Tensor((2, 8), "float32")) -> R.Tensor((2, 8), "float32"):
        R.func_attr({"Composite": "octavo.float_softmax", "Primitive": True, "octavo.core": "y"})
        with R.dataflow():
            halved = R.multiply(x, R.const(0.5, "float32"))
            y = R.nn.softmax(halved, axis=1)
            R.output(y)
        return y

    @R.function
    def main(x: R.Tensor((2, 8), "float32")) -> R.Tensor((2, 8), "float32"):
        cls = Expected
        with R.dataflow():
            y: R.Tensor((2, 8), "float32") = cls.octavo_float_softmax_y(x)
            R.output(y)
        return y


@I.ir_module
class Integers:
    @R.function
    def main(x: R.Tensor((2, 8), "int32")) -> R.Tensor((2, 8), "int32"):
        with R.dataflow():
            y = R.add(x, x)
            R.output(y)
        return y


def test_an_op_with_a_kernel_becomes_a_composite() -> None:
    context = PartitionContext(target=CPU)
    assert_structural_equal(without_attributes(outline_float(Before, context), "octavo.op", "quantize_info"), Expected)
    assert set(context.regions) == {"octavo_float_softmax_y"}


def test_with_nothing_to_do_the_module_is_the_same() -> None:
    assert outline_float(Integers, PartitionContext(target=CPU)).same_as(Integers)


def test_for_a_device_observers_alone_are_outlined() -> None:
    instrumented = instrument(residual_net())
    parts = partition_module(instrumented.module, CPU, float_kernels=False)
    composites = [str(func.attrs["Composite"]) for _, func in parts.functions_items() if "Composite" in func.attrs]
    assert composites == [OBSERVE] * len(instrumented.observations)
