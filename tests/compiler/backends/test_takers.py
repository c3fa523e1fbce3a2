"""Several back ends at once: who takes an op, what `explain` says of those that did not, and what a vendor's rounding is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tvm import relax

import octavo
from nets import residual_net
from octavo.compiler.backends import Code, CodeGenerator, CSource
from octavo.errors import TargetError
from octavo.ir.composites.attributes import read_composites
from octavo.target import CPU, OpSupport, TargetDescription
from octavo.target.limits import Limit
from qdq_graph import Qdq, graph, round_as

ADD = """
#include <math.h>
#include <stdint.h>
void {symbol}(const int8_t *a, const int8_t *b, int8_t *y) {{
  for (int i = 0; i < {size}; i++) {{
    double q = nearbyint(((a[i] - ({za})) * {sa!r} + (b[i] - ({zb})) * {sb!r}) / {sy!r}) + {zy};
    y[i] = q < {qmin} ? {qmin} : q > {qmax} ? {qmax} : (int8_t)q;
  }}
}}
"""


class Adder(CodeGenerator):
    """Adds in C, under any name."""

    def __init__(self, name: str, **limits: Limit) -> None:
        support = OpSupport(op="add", activations=("int8",), limits=limits)
        self.description = TargetDescription(name=name, ops=(support,))

    def generate(self, composite: Any) -> Code:
        a, b, y = (composite.quantize_info[role] for role in ("input0", "input1", "output"))
        text = ADD.format(
            symbol=composite.name,
            size=int(np.prod(composite.op.y.shape)),
            **{f"z{name}": each["zero_point"] for name, each in zip("aby", (a, b, y), strict=True)},
            **{f"s{name}": float(np.float32(each["scale"])) for name, each in zip("aby", (a, b, y), strict=True)},
            qmin=y["qmin"],
            qmax=y["qmax"],
        )
        return Code(source=CSource(text=text, symbol=composite.name))


A, B, Y = (0.05, 3), (0.02, -4), (0.06, 1)


def sums() -> Any:
    """Two sums of two tensors: of 4 and of 8 values."""

    def body(writer, params):
        qdq = Qdq(writer, "int8")
        results = []
        for name in ("short", "long"):
            a, b = (qdq.dequantize(f"{name}_{each}", params[f"{name}_{each}"], given) for each, given in (("a", A), ("b", B)))
            results.append(qdq.quantize(name, writer.emit(name, relax.op.add(a, b)), Y, is_output=True))
        return relax.Tuple(results)

    shapes = {f"{name}_{each}": ((size,), "int8") for name, size in (("short", 4), ("long", 8)) for each in "ab"}
    return graph(shapes, body)


def ops_of(target: Any) -> dict[str, tuple[str, str]]:
    return {op.tensor: (op.taker, op.declined) for op in octavo.explain(octavo.load(sums()), target=target).ops}


def test_each_op_goes_to_the_first_that_takes_it_and_explain_says_why_others_did_not() -> None:
    npu, dsp = Adder("npu", elements=Limit(minimum=5)), Adder("dsp", elements=Limit(multiple_of=4))
    why = "npu: its elements is 4, expected at least 5, says target npu of add"
    assert ops_of(npu) == {"short_q": ("cpu", why), "long_q": ("npu", "")}
    assert ops_of([npu, dsp]) == {"short_q": ("dsp", why), "long_q": ("npu", "")}
    assert ops_of([dsp, npu]) == {"short_q": ("dsp", ""), "long_q": ("dsp", "")}
    few = Adder("few", elements=Limit(maximum=2))
    small = "few: its elements is {}, expected at most 2, says target few of add"
    assert ops_of([few, npu, "cpu"]) == {
        "short_q": ("cpu", f"{small.format(4)}; {why}"),
        "long_q": ("npu", small.format(8)),
    }
    assert ops_of([npu, TargetDescription(name="none", ops=())])["short_q"] == ("cpu", why), "the last may be any host"


def test_two_vendors_and_the_host_compute_one_module(rng) -> None:
    model = octavo.load(sums())
    targets = [Adder("npu", elements=Limit(minimum=5)), Adder("dsp")]
    module = octavo.partition(model, target=targets)
    kinds = {str(func.attrs["Composite"]) for _, func in module.functions_items() if "Composite" in (func.attrs or {})}
    assert kinds == {"npu.add", "dsp.add"}
    inputs = {name: rng.integers(-128, 128, model.tensors[name].shape, np.int8) for name in model.input_ids}
    want = octavo.compile(model)(inputs)
    executable = octavo.compile(model, target=[*targets, "cpu"])
    assert {op.taker for op in octavo.explain(executable).ops} == {"npu", "dsp"}
    for name, value in executable(inputs).items():
        np.testing.assert_array_equal(value, want[name])


def test_several_targets_are_quantized_for_by_the_first_that_lists_an_op(rng) -> None:
    model = residual_net()
    profile = octavo.profile(model, [rng.normal(size=model.tensors[model.input_ids[0]].shape).astype(np.float32)])
    host = replace(CPU, name="host", ops=tuple(replace(each, activations=("int8",)) for each in CPU.ops))
    explained = octavo.explain(model, target=[Adder("npu"), host], profile=profile)
    takers = {op.op: op.taker for op in explained.ops}
    assert takers["add"] == "npu"
    assert takers["conv2d"] == "cpu"


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        ([], "the list of targets is empty"),
        (
            ["cpu", Adder("npu")],
            r"targets\[0\]: expected a Backend, a TargetDescription or the path .* \(only the last may be the host\), got 'cpu'",
        ),
        ([Adder("npu"), Adder("npu")], "the targets' names must differ: 'npu' stands twice"),
    ],
)
def test_a_list_that_is_none_of_targets(targets: list[Any], message: str) -> None:
    with pytest.raises(TargetError, match=message):
        octavo.partition(octavo.load(sums()), target=targets)


@pytest.mark.parametrize(
    ("said", "support", "arithmetic"),
    [
        ("half_away", {"rounding": ("half_away",)}, ("float_multiplier", "half_away")),
        ("half_even", {"rounding": ("half_away", "half_even")}, ("float_multiplier", "half_even")),
        ("half_even", {"requantize": "fixed_point", "rounding": "twice_away"}, ("fixed_point", "twice_away")),
        ("half_up", {"requantize": "fixed_point", "rounding": ("once", "twice")}, ("fixed_point", "once")),
        ("fixed_point_twice", {"requantize": "fixed_point", "rounding": ("once", "twice")}, ("fixed_point", "twice")),
        ("half_even", {"requantize": "shift", "scales": "power_of_two"}, ("shift", "half_up")),
        ("half_up", {"rounding": "half_away"}, None),
    ],
)
def test_a_vendors_description_alone_decides_its_rounding(said: str, support: dict[str, Any], arithmetic: Any) -> None:
    """A convolution, which Octavo's own kernels round half to even."""

    def body(writer, params):
        qdq = Qdq(writer, "int8")
        weight = qdq.weight("w", np.ones((2, 3, 1, 1), np.int8), 0.5)
        conv = writer.emit("conv", relax.op.nn.conv2d(qdq.dequantize("x", params["x"], (0.25, 0)), weight))
        return qdq.quantize("y", conv, (1.0, 0), is_output=True)

    npu = Adder("npu")
    npu.description = TargetDescription(name="npu", ops=(OpSupport(op="nn.conv2d", weights=("int8",), **support),))
    module = octavo.partition(octavo.load(round_as(graph({"x": ((1, 3, 4, 4), "int8")}, body), said)), target=npu)
    found = [dict(func.attrs) for _, func in module.functions_items() if "Composite" in (func.attrs or {})]
    infos = [each["quantize_info"] for each in found if str(each["Composite"]) == "npu.conv2d"]
    expected = [] if arithmetic is None else [arithmetic]
    assert [(str(info["requantize"]), str(info["rounding"])) for info in infos] == expected


def test_an_op_that_quantizing_left_float_says_why_not_what_partition_finds_of_that(rng) -> None:
    """The kernel of a convolution computes the bias and the relu behind it: its own reason counts, not the relu's."""
    model = residual_net()
    profile = octavo.profile(model, [rng.normal(size=model.tensors[model.input_ids[0]].shape).astype(np.float32)])
    npu = Adder("npu")
    conv = OpSupport(op="nn.conv2d", activations=("int8",), weights=("int8",), limits={"kernel": Limit(maximum=1)})
    npu.description = TargetDescription(name="npu", ops=(conv,))
    ops = {op.tensor: op for op in octavo.explain(model, target=npu, profile=profile).ops}
    assert (ops["r1"].taker, ops["r1"].declined) == ("cpu", "")
    assert ops["r1"].reason == "its kernel is 3, expected at most 1, says target npu of nn.conv2d"


def test_a_description_chooses_before_the_cpu_without_code_of_its_own(rng) -> None:
    """What it takes is computed as it says, what it leaves as the CPU does; the vendor's code, once written, gives the same."""
    model = residual_net()
    batches = [rng.normal(size=model.tensors[model.input_ids[0]].shape).astype(np.float32) for _ in range(4)]
    described = TargetDescription(
        name="dsp", ops=(OpSupport(op="add", activations=("int8",), requantize="fixed_point", rounding=("twice_away",)),)
    )
    quantized = octavo.quantize(model, octavo.profile(model, batches), target=[described, "cpu"])
    explained = octavo.explain(quantized, target=[described, "cpu"])
    takers = {op.op: op.taker for op in explained.ops if op.integer}
    assert takers["add"] == "dsp"
    assert takers["conv2d"] == "cpu"
    assert "dsp: target dsp has no integer nn.conv2d" in {op.declined for op in explained.ops}
    kinds = {each.kind for each in read_composites(octavo.partition(quantized, target=[described, "cpu"])).values()}
    assert {"dsp.add", "octavo.conv2d"} <= kinds
    simulated, host = (octavo.compile(quantized, target=target) for target in ([described, "cpu"], None))
    for batch in batches:
        np.testing.assert_array_equal(*(next(iter(run(batch).values())) for run in (simulated, host)))


def test_what_no_kernel_computes_as_a_description_says_goes_on_to_the_cpu() -> None:
    described = TargetDescription(
        name="dsp", ops=(OpSupport(op="nn.softmax", activations=("int8",), requantize="fixed_point", rounding=("once",)),)
    )

    def body(writer: Any, params: Any) -> Any:
        qdq = Qdq(writer, "int8")
        x = qdq.dequantize("x", params["x"], (0.25, 3))
        return qdq.quantize("y", writer.emit("core", relax.op.nn.softmax(x, axis=-1)), (1 / 256, -128), is_output=True)

    model = octavo.load(graph({"x": ((1, 8), "int8")}, body))
    (op,) = [each for each in octavo.explain(model, target=[described, "cpu"]).ops if each.op == "softmax"]
    assert (op.taker, op.integer) == ("cpu", True)
    assert op.declined.startswith("dsp: ")
