"""Lowering keeps the whole module: other entry points, helpers, attributes; and says what unbound parameters cost."""

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R

import octavo
from missing import MachineLacks
from octavo.compiler.backends.cpu.kernels import isas_of
from octavo.compiler.partition.pipeline import partition_module
from octavo.runtime.llvm_host import host_target
from octavo.target import CPU


@I.ir_module
class Whole:
    I.module_attrs({"of_a_user": "kept"})

    @R.function(private=True)
    def helper(x: R.Tensor((2, 4), "float32")) -> R.Tensor((2, 4), "float32"):
        with R.dataflow():
            y = R.negative(x)
            R.output(y)
        return y

    @R.function
    def other(x: R.Tensor((2, 4), "float32")) -> R.Tensor((2, 4), "float32"):
        cls = Whole
        with R.dataflow():
            y = R.add(x, R.const(1.0, "float32"))
            z = cls.helper(y)
            R.output(z)
        return z

    @R.function
    def main(x: R.Tensor((2, 4), "float32")) -> R.Tensor((2, 4), "float32"):
        cls = Whole
        with R.dataflow():
            h = cls.helper(x)
            q = R.quantize(h, R.const(0.01, "float32"), R.const(3, "int32"), out_dtype="int8", axis=0)
            d = R.dequantize(q, R.const(0.01, "float32"), R.const(3, "int32"), out_dtype="float32", axis=0)
            m = R.nn.relu(d)
            q2 = R.quantize(m, R.const(0.01, "float32"), R.const(-5, "int32"), out_dtype="int8", axis=0)
            r = R.dequantize(q2, R.const(0.01, "float32"), R.const(-5, "int32"), out_dtype="float32", axis=0)
            R.output(r)
        return r


def run(executable, name: str, x: np.ndarray) -> np.ndarray:
    return relax.VirtualMachine(executable, tvm.cpu())[name](tvm.runtime.tensor(x)).numpy()


def test_every_entry_point_runs_as_tvm_runs_it():
    x = np.random.default_rng(0).normal(size=(2, 4)).astype(np.float32)
    plain = tvm.compile(Whole, tvm.target.Target("llvm"))
    ours = tvm.compile(Whole, tvm.target.Target("llvm"), relax_pipeline=octavo.relax_pipeline(target="llvm"))
    for name in ("main", "other"):
        np.testing.assert_array_equal(run(ours, name, x), run(plain, name, x))


def test_partition_keeps_functions_and_the_module_s_attributes():
    parts = partition_module(Whole, CPU)
    assert {"main", "helper", "other"} < {var.name_hint for var in parts.get_global_vars()}
    assert parts.attrs["of_a_user"] == "kept"


def test_a_target_without_a_cpu_is_warned_of():
    if isas_of(host_target())[0] == "generic":
        raise MachineLacks("a second ISA")
    with pytest.warns(UserWarning, match='target "llvm" names no CPU, so kernels are generic'):
        tvm.compile(Whole, tvm.target.Target("llvm"), relax_pipeline=octavo.relax_pipeline())
    tvm.compile(Whole, host_target(), relax_pipeline=octavo.relax_pipeline())  # without a warning, which would be an error


def test_unbound_parameters_are_named():
    module = tvm.IRModule(dict(Whole.functions_items()))
    module.update_func(module.get_global_var("main"), Whole["main"].with_attr("num_input", 0))
    with pytest.warns(UserWarning, match="main takes 1 parameters without values"):
        tvm.compile(module, tvm.target.Target("llvm"), relax_pipeline=octavo.relax_pipeline(target="llvm"))
