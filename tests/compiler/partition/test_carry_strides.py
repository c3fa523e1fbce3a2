"""The stride of a 1x1 convolution moves up to where its pixels come from; results stay what they were, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R

import octavo
from nets import model_of
from octavo.compiler.backends.cpu.kernels import isas_of
from octavo.compiler.partition import pipeline
from octavo.compiler.partition.carry_strides import carry_strides
from octavo.compiler.partition.context import PartitionContext
from octavo.ir.graph.dataflow import BodyWriter, DataflowView, call_to, op_name, static_shape
from octavo.runtime.llvm_host import host_target
from octavo.target import CPU
from qdq_graph import Qdq, graph, lower, run_lowered

ACTIVATION = (0.05, -7)


class Net:
    """Writes quantized convolutions and additions in one layout; `tensors` are (integers, dequantized) by name."""

    def __init__(self, writer: BodyWriter, layout: str) -> None:
        self.q = Qdq(writer, "int8")
        self.writer = writer
        self.layout = layout
        self.rng = np.random.default_rng(0)

    def conv(self, name: str, x: Any, outputs: int, kernel: int = 1, stride: Any = 1, *, is_output: bool = False) -> Any:
        inputs = int(x.ty.shape[self.layout.index("C")])
        shape = (outputs, inputs, kernel, kernel) if self.layout == "NCHW" else (kernel, kernel, inputs, outputs)
        values = self.rng.integers(-60, 60, shape).astype(np.int8)
        w = self.q.weight(f"{name}_w", values, np.float32(0.01))
        pad = [kernel // 2] * 4
        kernel_layout = "OIHW" if self.layout == "NCHW" else "HWIO"
        call = relax.op.nn.conv2d(x, w, stride, pad, data_layout=self.layout, kernel_layout=kernel_layout)
        return self.finish(name, self.writer.emit(name, call), is_output=is_output)

    def add(self, name: str, a: Any, b: Any) -> Any:
        return self.finish(name, self.writer.emit(name, relax.op.add(a, b)))

    def finish(self, name: str, value: Any, *, is_output: bool = False) -> Any:
        relu = self.writer.emit(f"{name}_relu", relax.op.nn.relu(value))
        integers = self.q.quantize(name, relu, ACTIVATION, is_output=is_output)
        return integers if is_output else self.q.dequantize(name, integers, ACTIVATION)


Body = Callable[[Net, Any], tuple[Any, ...]]


def block(net: Net, x: Any, strides: tuple[Any, Any] = (2, 2), kernels: tuple[int, int] = (1, 1)) -> tuple[Any, ...]:
    """A residual block whose result two strided convolutions read."""
    start = net.conv("start", x, 6)
    b = net.conv("third", net.conv("second", net.conv("first", start, 5), 7, 3), 6)
    joined = net.add("joined", b, start)
    return (
        net.conv("left", joined, 4, kernels[0], strides[0], is_output=True),
        net.conv("right", joined, 8, kernels[1], strides[1], is_output=True),
    )


def module_of(body: Body, layout: str = "NHWC", size: tuple[int, int] = (7, 6)) -> tvm.IRModule:
    def write(writer: BodyWriter, inputs: dict[str, Any]) -> Any:
        net = Net(writer, layout)
        return relax.Tuple(body(net, net.q.dequantize("x", inputs["x"], ACTIVATION)))

    return graph({"x": (shape_of(layout, size), "int8")}, write)


def shape_of(layout: str, size: tuple[int, int]) -> tuple[int, ...]:
    return (2, 3, *size) if layout == "NCHW" else (2, *size, 3)


def strides_of(module: tvm.IRModule) -> dict[str, tuple[int, ...]]:
    calls = {binding.var.name: call_to(binding.value, "nn.conv2d") for binding in DataflowView(module["main"]).bindings}
    return {name: tuple(int(s) for s in call.attrs.strides) for name, call in calls.items() if call is not None}


def carried_in(module: tvm.IRModule) -> tvm.IRModule:
    return carry_strides(module, PartitionContext(target=CPU))


@pytest.mark.parametrize(
    ("stride", "size", "layout"),
    [
        (2, (7, 6), "NHWC"),
        (3, (8, 5), "NCHW"),
        ((1, 2), (2, 1), "NHWC"),
        ((1, 2), (7, 6), "NCHW"),
        (2, (8, 5), "NCHW"),
    ],
)
def test_a_block_computes_only_the_pixels_that_are_read(
    layout: str, size: tuple[int, int], stride: Any, monkeypatch: pytest.MonkeyPatch
):
    module = module_of(lambda net, x: block(net, x, (stride, stride)), layout, size)
    carried = carried_in(module)
    pair = (stride, stride) if isinstance(stride, int) else stride
    unit = (1, 1)
    expected = {"start": unit, "first": unit, "second_strided": pair, "third_strided": unit, "left": unit, "right": unit}
    assert strides_of(carried) == expected
    relax.analysis.well_formed(carried)
    x = np.random.default_rng(1).integers(-128, 128, shape_of(layout, size)).astype(np.int8)
    results = run_lowered(module, x)
    monkeypatch.setattr(pipeline, "PASSES", tuple(each for each in pipeline.PASSES if each.name != "carry_strides"))
    for got, wanted in zip(results, run_lowered(module, x), strict=True):
        np.testing.assert_array_equal(got, wanted)


def test_the_other_side_of_an_addition_is_cut_as_integers():
    context = PartitionContext(target=CPU)
    carried = carry_strides(module_of(block), context)
    values = {binding.var.name: binding.value for binding in DataflowView(carried["main"]).bindings}
    assert op_name(values["start_q_strided"]) == "strided_slice"
    assert values["start_dq_strided"].args[0].name == "start_q_strided"
    assert static_shape(values["joined_strided"]) == (2, 4, 3, 6)
    assert context.cuts == {"start_q_strided", "start_dq_strided"}
    assert context.sources["third_q_strided"] == "third_q"


UNMOVED: dict[str, Body] = {
    "two strides": lambda net, x: block(net, x, (2, 3)),
    "a reader of all pixels": lambda net, x: block(net, x, (2, 1)),
    "a larger kernel": lambda net, x: block(net, x, kernels=(1, 3)),
    "nothing to save": lambda net, x: (net.conv("y", x, 4, 1, 2, is_output=True),),
}


@pytest.mark.parametrize("body", UNMOVED.values(), ids=UNMOVED)
def test_what_somebody_reads_stays_whole(body: Body):
    module = module_of(body)
    assert carried_in(module).same_as(module)


def test_a_returned_tensor_stays_whole():
    def body(net: Net, x: Any) -> tuple[Any, ...]:
        a = net.conv("a", x, 4)
        whole = net.writer.emit("whole", relax.op.add(a, a), is_output=True)
        integers = net.q.quantize("whole", whole, ACTIVATION)
        return net.conv("y", net.q.dequantize("whole", integers, ACTIVATION), 4, 1, 2, is_output=True), whole

    module = module_of(body)
    assert carried_in(module).same_as(module)


def test_operands_that_differ_from_pixel_to_pixel_stop_it_and_others_do_not():
    def body(constant: tuple[int, ...]) -> Body:
        def write(net: Net, x: Any) -> tuple[Any, ...]:
            values = np.arange(np.prod(constant), dtype=np.float32).reshape(constant) / 8
            shifted = net.writer.emit("shifted", relax.op.add(net.conv("a", x, 4), relax.const(values)))
            return (net.conv("y", net.finish("shifted", shifted), 4, 1, 2, is_output=True),)

        return write

    assert strides_of(carried_in(module_of(body((4,))))) == {"a_strided": (2, 2), "y": (1, 1)}
    module = module_of(body((7, 6, 4)))
    assert carried_in(module).same_as(module)


def test_records_name_the_source_tensors_and_count_what_is_computed():
    module = module_of(block)
    ids = ("x", "second", "second_relu", "joined_relu", "left_relu")
    lowered = lower(module, CPU, isas_of(host_target()), 1, ids)
    records = {record.tensor: record for record in lowered.records}
    assert len(records) == len(lowered.records), "a cut is no op of the source"
    assert records["second_relu"].shape == (2, 4, 3, 7)
    assert records["second_relu"].macs == 2 * 4 * 3 * 7 * 9 * 5
    attrs = [placed.func.attrs for placed in lowered.kernels.values() if "quantize_info" in placed.func.attrs]
    fused = {str(each["quantize_info"]["output"]["id"]): list(each.get("tensor_ids", ())) for each in attrs}
    assert fused["second_relu"] == ["second", "second_relu"]


def test_lineage_does_not_claim_that_the_whole_tensor_is_held():
    def body(writer: BodyWriter, x: Any, w: Any, v: Any) -> Any:
        a = writer.emit("a", relax.op.nn.conv2d(x, w, padding=[1, 1, 1, 1]))
        r = writer.emit("r", relax.op.nn.relu(a))
        return writer.emit("y", relax.op.nn.conv2d(r, v, strides=2), is_output=True)

    rng = np.random.default_rng(2)
    params = {"w": rng.standard_normal((8, 3, 3, 3)), "v": rng.standard_normal((4, 8, 1, 1))}
    model = model_of({"x": ((1, 3, 6, 6), "float32")}, {name: p.astype(np.float32) for name, p in params.items()}, body, ("y",))
    x = rng.standard_normal((1, 3, 6, 6)).astype(np.float32)
    quantized = octavo.quantize(model, octavo.profile(model, [x]))
    for subject in (model, quantized):
        target = host_target()
        lineage = octavo.Lineage(subject, target=target)
        with target, tvm.transform.PassContext(opt_level=3, instruments=[lineage]):
            lowered = octavo.relax_pipeline(ids=subject.tensors)(subject.bound())
        assert lineage["r"].kind == "inside"
        assert all(check.is_right for check in octavo.verify_lineage(subject, lowered, x, lineage=lineage))
    assert [op.tensor for op in octavo.explain(quantized).ops if op.op == "conv2d"] == ["r", "y"]


@I.ir_module
class Before:
    @R.function
    def main(
        x: R.Tensor((1, 4, 6, 6), "float32"), w: R.Tensor((4, 4, 3, 3), "float32"), v: R.Tensor((2, 4, 1, 1), "float32")
    ) -> R.Tensor((1, 2, 3, 3), "float32"):
        with R.dataflow():
            a = R.nn.conv2d(x, w, padding=[1, 1, 1, 1])
            r = R.nn.relu(a)
            y = R.nn.conv2d(r, v, strides=[2, 2])
            R.output(y)
        return y


@I.ir_module
class Expected:
    @R.function
    def main(
        x: R.Tensor((1, 4, 6, 6), "float32"), w: R.Tensor((4, 4, 3, 3), "float32"), v: R.Tensor((2, 4, 1, 1), "float32")
    ) -> R.Tensor((1, 2, 3, 3), "float32"):
        with R.dataflow():
            a_strided = R.nn.conv2d(x, w, strides=[2, 2], padding=[1, 1, 1, 1])
            r_strided = R.nn.relu(a_strided)
            y = R.nn.conv2d(r_strided, v)
            R.output(y)
        return y


def test_the_stride_moves_up():
    context = PartitionContext(target=CPU)
    tvm.ir.assert_structural_equal(carry_strides(Before, context), Expected)
    assert context.sources == {"a_strided": "a", "r_strided": "r"}
    assert context.cuts == set()


def test_with_nothing_to_do_the_module_is_the_same():
    assert carried_in(Expected).same_as(Expected)
