"""Each quantize and dequantize that no composite holds becomes one."""

from script_modules import without_attributes
from tvm.ir import assert_structural_equal
from tvm.script import ir as I
from tvm.script import relax as R

from octavo.compiler.partition.context import PartitionContext
from octavo.compiler.partition.outline_boundary import outline_boundary
from octavo.target import CPU


@I.ir_module
class Before:
    @R.function
    def main(x: R.Tensor((2, 8), "float32")) -> R.Tensor((2, 8), "float32"):
        with R.dataflow():
            x_q = R.quantize(x, R.const(0.5, "float32"), R.const(3, "int32"), out_dtype="int8", axis=0)
            turned = R.flip(x_q, axis=1)
            y = R.dequantize(turned, R.const(0.5, "float32"), R.const(3, "int32"), out_dtype="float32", axis=0)
            R.output(y)
        return y


@I.ir_module
class Expected:
    @R.function(private=True)
    def octavo_quantize_x_q(x: R.Tensor((2, 8), "float32")) -> R.Tensor((2, 8), "int8"):
        R.func_attr({"Composite": "octavo.quantize", "Primitive": True, "octavo.core": "x_q"})
        with R.dataflow():
            x_q = R.quantize(x, R.const(0.5, "float32"), R.const(3, "int32"), out_dtype="int8", axis=0)
            R.output(x_q)
        return x_q

    @R.function(private=True)
    def octavo_dequantize_y(turned: R.Tensor((2, 8), "int8")) -> R.Tensor((2, 8), "float32"):
        R.func_attr({"Composite": "octavo.dequantize", "Primitive": True, "octavo.core": "y"})
        with R.dataflow():
            y = R.dequantize(turned, R.const(0.5, "float32"), R.const(3, "int32"), out_dtype="float32", axis=0)
            R.output(y)
        return y

    @R.function
    def main(x: R.Tensor((2, 8), "float32")) -> R.Tensor((2, 8), "float32"):
        cls = Expected
        with R.dataflow():
            x_q: R.Tensor((2, 8), "int8") = cls.octavo_quantize_x_q(x)
            turned = R.flip(x_q, axis=1)
            y: R.Tensor((2, 8), "float32") = cls.octavo_dequantize_y(turned)
            R.output(y)
        return y


@I.ir_module
class Float:
    @R.function
    def main(x: R.Tensor((2, 8), "float32")) -> R.Tensor((2, 8), "float32"):
        with R.dataflow():
            y = R.nn.relu(x)
            R.output(y)
        return y


def test_each_becomes_a_composite() -> None:
    context = PartitionContext(target=CPU)
    assert_structural_equal(without_attributes(outline_boundary(Before, context), "octavo.op", "quantize_info"), Expected)
    assert set(context.regions) == {"octavo_quantize_x_q", "octavo_dequantize_y"}


def test_with_nothing_to_do_the_module_is_the_same() -> None:
    assert outline_boundary(Float, PartitionContext(target=CPU)).same_as(Float)
