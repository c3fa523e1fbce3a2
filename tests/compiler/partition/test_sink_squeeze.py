"""Rows behind convolutions of images of one row: what follows is computed on the images, and everybody else gets rows."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R

from octavo.ir.graph.dataflow import BodyWriter, DataflowView, op_name, write_function
from octavo.ir.identity import NameSupply, TensorEntry, TensorId
from octavo.ir.simplify.sink_squeeze import sink_squeeze, with_images
from tvm_alone import tvm_alone

Ops = Callable[..., relax.Expr]
ops = relax.op
x = np.random.default_rng(0).standard_normal((1, 3, 9)).astype(np.float32)


@I.ir_module
class Before:
    @R.function
    def main(d: R.Tensor((1, 3, 1, 9), "float32"), w: R.Tensor((3, 3, 1, 1), "float32")):
        with R.dataflow():
            a = R.nn.conv2d(d, w)
            b = R.squeeze(a, axis=[2])
            c = R.nn.relu(b)
            e = R.expand_dims(c, axis=2)
            f = R.nn.conv2d(e, w)
            g = R.squeeze(f, axis=[2])
            h = R.add(g, c)
            y = R.sigmoid(h)
            R.output(y)
        return y


@I.ir_module
class Expected:
    @R.function
    def main(d: R.Tensor((1, 3, 1, 9), "float32"), w: R.Tensor((3, 3, 1, 1), "float32")):
        with R.dataflow():
            a = R.nn.conv2d(d, w)
            c = R.nn.relu(a)
            f = R.nn.conv2d(c, w)
            h = R.add(f, c)
            y_image = R.sigmoid(h)
            y = R.squeeze(y_image, axis=[2])
            R.output(y)
        return y


@I.ir_module
class OfWhatIsGiven:
    @R.function
    def main(d: R.Tensor((1, 3, 1, 9), "float32"), w: R.Tensor((3, 3, 1, 1), "float32")):
        with R.dataflow():
            a = R.add(R.nn.relu(d), w)
            b = R.squeeze(a, axis=[2])
            y = R.sigmoid(b)
            R.output(y)
        return y


def test_elements_of_what_is_given_alone_are_as_well_rows():
    assert sink_squeeze(OfWhatIsGiven) is OfWhatIsGiven


def behind(step: Ops) -> tvm.IRModule:
    """x -> a convolution of its image -> `step` on the rows of that -> their image, doubled."""
    data = relax.Var("x", relax.TensorType(x.shape, "float32"))
    weight = relax.const(np.eye(3, dtype=np.float32).reshape(3, 3, 1, 1))
    builder, supply = relax.BlockBuilder(), NameSupply()

    def body(writer: BodyWriter) -> relax.Expr:
        image = writer.emit("image", ops.nn.conv2d(writer.emit("wide", ops.expand_dims(data, 2)), weight))
        rows = writer.emit("rows", ops.squeeze(image, [2]))
        made = writer.emit("made", step(rows, data, lambda value: writer.emit(supply.fresh("step"), value)))
        made = writer.emit("first", relax.TupleGetItem(made, 0)) if isinstance(made.ty, relax.TupleType) else made
        back = writer.emit("back", ops.expand_dims(made, 2))
        return writer.emit("y", ops.add(back, back), is_output=True)

    write_function(builder, "main", [data], body)
    return builder.get()


def names(module: tvm.IRModule) -> list[str]:
    return [op_name(binding.value) for binding in DataflowView(module["main"]).bindings]


def test_rows_between_convolutions_become_images() -> None:
    tvm.ir.assert_structural_equal(sink_squeeze(Before), Expected)


slope, column = (np.random.default_rng(seed).standard_normal(shape).astype(np.float32) for seed, shape in ((1, 3), (2, (3, 1))))
MOVED: dict[str, Ops] = {
    "function": lambda rows, x, emit: ops.tanh(rows),
    "clip": lambda rows, x, emit: ops.clip(rows, -0.5, 0.5),
    "number": lambda rows, x, emit: ops.multiply(rows, relax.const(np.float32(2))),
    "by column": lambda rows, x, emit: ops.multiply(rows, relax.const(column)),
    "by width": lambda rows, x, emit: ops.add(relax.const(np.arange(9, dtype=np.float32)), rows),
    "other rows": lambda rows, x, emit: ops.subtract(x, rows),
    "itself": lambda rows, x, emit: ops.multiply(rows, rows),
    "slopes": lambda rows, x, emit: ops.nn.prelu(rows, relax.const(slope), axis=1),
    "pad": lambda rows, x, emit: ops.nn.pad(rows, [0, 0, 0, 1, 2, 3], pad_value=1.5),
    "joined": lambda rows, x, emit: ops.concat([rows, x], axis=-1),
    "joined channels": lambda rows, x, emit: ops.concat([x, rows], axis=1),
    "cut": lambda rows, x, emit: ops.strided_slice(rows, [-1], [1], [-2]),
    "norm": lambda rows, x, emit: ops.nn.batch_norm(rows, *[relax.const(np.abs(slope))] * 4, 1, training=False),
    "integers": lambda rows, x, emit: ops.dequantize(
        emit(ops.quantize(rows, relax.const(np.float32(0.1)), relax.const(np.int8(3)))),
        relax.const(np.float32(0.1)),
        relax.const(np.int8(3)),
    ),
}


@pytest.mark.parametrize("step", MOVED.values(), ids=MOVED.keys())
def test_the_same_is_computed_of_images(step: Ops) -> None:
    module = behind(step)
    moved = sink_squeeze(module)
    assert "squeeze" in names(module)
    assert "squeeze" not in names(moved)
    np.testing.assert_array_equal(tvm_alone(moved)(x)[0], tvm_alone(module)(x)[0])


KEPT: dict[str, Ops] = {
    "sum": lambda rows, x, emit: ops.add(rows, emit(ops.sum(rows, axis=[-1], keepdims=True))),
    "turned": lambda rows, x, emit: ops.reshape(emit(ops.permute_dims(rows, [0, 2, 1])), x.ty.shape),
    "by channel": lambda rows, x, emit: ops.dequantize(
        emit(ops.quantize(rows, relax.const(np.abs(slope)), relax.const(np.zeros(3, np.int8)), axis=1)),
        relax.const(np.abs(slope)),
        relax.const(np.zeros(3, np.int8)),
        axis=1,
    ),
}


@pytest.mark.parametrize("step", KEPT.values(), ids=KEPT.keys())
def test_who_needs_rows_gets_rows(step: Ops) -> None:
    module = behind(step)
    moved = sink_squeeze(module)
    assert "squeeze" in names(moved)
    np.testing.assert_array_equal(tvm_alone(moved)(x)[0], tvm_alone(module)(x)[0])


def test_nothing_to_do_is_the_same_module() -> None:
    assert sink_squeeze(Expected) is Expected


def test_what_one_op_makes_and_another_squeezes_stays() -> None:
    def entry(name: str, layer: str) -> tuple[str, TensorEntry]:
        shape = (1, 3, 9)
        return name, TensorEntry(
            id=TensorId(name), source_name=name, kind="activation", op=layer, layer=layer, shape=shape, dtype="float32"
        )

    apart = dict([entry("a", "Conv"), entry("b", "Squeeze"), entry("f", "Other"), entry("g", "Squeeze")])
    assert with_images(Before, apart) == (Before, {})
    module, holders = with_images(Before, dict([entry("b", "Conv"), entry("f", "Conv"), entry("g", "Conv")]))
    assert holders == {"b": "b", "c": "c", "e": "c", "g": "f", "h": "h", "y": "y"}
    assert [binding.var.name for binding in DataflowView(module["main"]).bindings][:3] == ["b", "c", "f"]


def test_rows_that_are_not_named_stay_rows() -> None:
    module, holders = with_images(Before, only=("b", "c"))
    assert holders == {"b": "a", "c": "c", "e": "c"}
    assert names(module).count("squeeze") == 2
