"""An IRModule as a model: its variable names are the ids, its constants become parameters."""

import numpy as np
import pytest
from onnx.helper import make_node
from tvm import relax, topi
from tvm.script import ir as I
from tvm.script import relax as R

from octavo.errors import ModelError
from octavo.frontends import load


@pytest.fixture
def module(make_onnx):
    nodes = [make_node("Conv", ["x", "w", "b"], ["c"]), make_node("Relu", ["c"], ["y"]), make_node("Sigmoid", ["c"], ["z"])]
    constants = {"w": np.ones((2, 1, 3, 3), np.float32), "b": np.ones(2, np.float32)}
    return load(make_onnx(nodes, {"x": (1, 1, 5, 5)}, {"y": None, "z": None}, constants)).bound()


def test_module(module, run):
    model = load(module)
    assert model.source_format == "relax"
    assert (model.input_ids, model.output_ids) == (("x",), ("y", "z"))
    assert [str(i) for i in model.tensors] == ["x", "c_conv2d_arg1", "c_conv2d", "c_reshape_arg0", "c_reshape", "c", "y", "z"]
    assert [str(i) for i in model.params] == ["c_conv2d_arg1", "c_reshape_arg0"]
    assert (model.tensors["c"].op, model.tensors["c"].shape) == ("add", (1, 2, 3, 3))
    relax.analysis.well_formed(model.module)
    x = np.random.default_rng(0).standard_normal((1, 1, 5, 5)).astype(np.float32)
    for ours, theirs in zip(run(model.bound(), x), run(module, x), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_loading_twice_changes_nothing(module):
    model = load(module)
    again = load(model.bound())
    assert again.module.script() == model.module.script()


def test_a_returned_tuple_may_be_a_variable(run):
    """As TVM's torch frontend leaves it by default, also for a single result."""

    @I.ir_module
    class Bound:
        @R.function
        def main(x: R.Tensor((2,), "float32")) -> R.Tuple(R.Tensor((2,), "float32"), R.Tensor((2,), "float32")):
            with R.dataflow():
                total = R.add(x, x)
                root = R.sqrt(total)
                both = (root, total)
                gv = both
                R.output(gv)
            return gv

    model = load(Bound)
    assert (model.output_ids, model.output_names) == (("root", "total"), ("root", "total"))
    root, total = run(model.bound(), np.float32([2, 8]))
    np.testing.assert_array_equal((root, total), np.float32([[2, 4], [4, 16]]))


def test_a_returned_tuple_of_an_op_is_rejected():
    @I.ir_module
    class Split:
        @R.function
        def main(x: R.Tensor((2,), "float32")) -> R.Tuple(R.Tensor((1,), "float32"), R.Tensor((1,), "float32")):
            with R.dataflow():
                halves = R.split(x, 2)
                R.output(halves)
            return halves

    with pytest.raises(ModelError, match=r"main returns R\.split.*, which is no tensor that it binds to a variable"):
        load(Split)


def test_module_without_main():
    @I.ir_module
    class NoMain:
        @R.function
        def other(x: R.Tensor((1,), "float32")) -> R.Tensor((1,), "float32"):
            return x

    with pytest.raises(ModelError, match="no Relax function 'main'; it has other"):
        load(NoMain)


def test_control_flow_and_calls_are_rejected():
    @I.ir_module
    class Branches:
        @R.function
        def main(c: R.Tensor((), "bool"), x: R.Tensor((1,), "float32")) -> R.Tensor((1,), "float32"):
            if c:  # noqa: SIM108 - TVMScript has no conditional expression
                y = R.add(x, x)
            else:
                y = R.multiply(x, x)
            return y

    @I.ir_module
    class Calls:
        @R.function
        def inner(x: R.Tensor((1,), "float32")) -> R.Tensor((1,), "float32"):
            return R.add(x, x)

        @R.function
        def main(x: R.Tensor((1,), "float32")) -> R.Tensor((1,), "float32"):
            cls = Calls
            with R.dataflow():
                y = cls.inner(x)
                R.output(y)
            return y

    with pytest.raises(ModelError, match="without control flow"):
        load(Branches)
    with pytest.raises(ModelError, match="calls the Relax function 'inner'"):
        load(Calls)


def test_prim_funcs_are_kept(run):
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((4,), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            y = builder.emit_te(topi.add, x, x)
            z = builder.emit_output(relax.op.multiply(y, y))
        builder.emit_func_output(z)
    model = load(builder.get())
    assert sorted(name.name_hint for name in model.module.get_global_vars()) == ["add", "main"]
    assert len(model.tensors) == 3
    (z,) = run(model.bound(), np.float32([1, 2, 3, 4]))
    np.testing.assert_array_equal(z, [4, 16, 36, 64])
