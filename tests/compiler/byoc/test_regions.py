"""Regions of vendors in TVM's own flow: several inputs and outputs, two vendors, weights as blobs, alignment."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

import octavo
from octavo.compiler.backends import Code, CodeGenerator, CSource
from octavo.target import OpSupport, TargetDescription
from qdq_graph import Qdq, graph
from vendors import Blob, Careless, Vendor, machine_of, network, samples_of, through_tvm


@pytest.fixture(name="quantized", scope="module")
def fixture_quantized():
    """A quantized network, samples, and what Octavo's kernels give for them."""
    model = network()
    batches = samples_of(model)
    quantized = octavo.quantize(model, octavo.profile(model, batches), target=Vendor("npu"))
    own = octavo.compile(quantized)
    return quantized, batches, [list(own(sample).values()) for sample in batches]


def external_calls(module: tvm.IRModule) -> dict[str, tuple[int, int]]:
    """How many tensors each region reads and gives, by its symbol."""
    found: dict[str, tuple[int, int]] = {}
    for block in module["main"].body.blocks:
        for binding in block.bindings:
            value: Any = binding.value
            if isinstance(value, relax.Call) and getattr(value.op, "name", "") == "relax.call_dps_packed":
                out = value.ty_args[0]
                count = len(out.fields) if isinstance(out, relax.TupleType) else 1
                found[str(value.args[0].global_symbol)] = len(value.args[1].fields), count
    return found


def check(machine: Any, batches: Any, wanted: Any) -> None:
    """Compare all outputs with those of Octavo's kernels."""
    for sample, values in zip(batches, wanted, strict=True):
        got = machine["main"](*(tvm.runtime.tensor(value) for value in sample.values()))
        for each, want in zip(got, values, strict=True):
            np.testing.assert_array_equal(each.numpy(), want)


@pytest.mark.parametrize(("vendor", "merged"), [(Careless, True), (Careless, False), (Blob, True)])
def test_a_region_reads_several_tensors_and_gives_several(quantized, vendor, merged, tmp_path) -> None:
    model, batches, wanted = quantized
    module = through_tvm(model.bound(), vendor("npu"), merged=merged)
    calls = external_calls(module)
    if merged:
        assert (2, 2) in calls.values(), "x and e come in; r is read outside, too"
    else:
        assert len(calls) > 8
    check(machine_of(module, tmp_path / "mixed.so", model.tensors), batches, wanted)


def test_two_vendors_each_take_what_the_first_leaves(quantized, tmp_path) -> None:
    model, batches, wanted = quantized
    first, second = Careless("npu", "nn.conv2d", "mean"), Careless("dsp", "nn.conv2d", "add", "matmul", "concat", "nn.max_pool2d")
    module = through_tvm(model.bound(), first, second)
    calls = external_calls(module)
    takers = [next(name for name in ("npu", "dsp") if name in symbol) for symbol in calls]
    assert set(takers) == {"npu", "dsp"}
    assert not any("conv2d" in symbol for symbol in calls if "dsp" in symbol), "the first has all convolutions"
    check(machine_of(module, tmp_path / "mixed.so", model.tensors), batches, wanted)


class Numbering(CodeGenerator):
    """Adds nothing: gives each value its place if constants and workspace lie as the description says, else -1."""

    description = TargetDescription(name="npu", ops=(OpSupport(op="add", activations=("int8",)),), alignment=64)

    def generate(self, composite: Any) -> Code:
        constants: Any = (np.arange(3, dtype=np.int8), b"", np.array([1.5, -0.5], np.float16), np.array([True]), b"\x00?\x85")
        size = int(np.prod(composite.op.y.shape))
        pointers = "".join(f"const void *c{i}, " for i in range(len(constants)))
        lies = " && ".join(f"(uintptr_t){each} % 64 == 0" for each in (*(f"c{i}" for i in range(len(constants))), "scratch"))
        equal = (
            'memcmp(c0, "\\0\\1\\2", 3) == 0 && *(uint16_t *)c2 == 0x3e00 && *(char *)c3 == 1 && memcmp(c4, "\\0?\\205", 3) == 0'
        )
        text = f"""#include <stdint.h>
#include <string.h>
void {composite.name}(const int8_t *a, const int8_t *b, {pointers}uint8_t *scratch, int8_t *y) {{
  for (int i = 0; i < {size}; i++) y[i] = {lies} && {equal} ? i : -1;
}}"""
        return Code(source=CSource(text=text, symbol=composite.name), constants=constants, workspace=100)


@pytest.mark.parametrize("flow", ["octavo", "tvm"])
def test_constants_of_any_dtype_and_length_lie_where_the_description_says(flow, tmp_path) -> None:
    params = (0.25, 0)

    def body(writer: Any, given: dict[str, Any]) -> Any:
        qdq = Qdq(writer, "int8")
        a, b = (qdq.dequantize(name, given[name], params) for name in "ab")
        first = qdq.quantize("s", writer.emit("s", relax.op.add(a, b)), params)
        c, d = qdq.dequantize("c", first, params), qdq.dequantize("d", given["b"], params)
        return qdq.quantize("t", writer.emit("t", relax.op.add(c, d)), params, is_output=True)

    module = graph({"a": ((2, 3, 5), "int8"), "b": ((2, 3, 5), "int8")}, body)
    zeros = np.zeros((2, 3, 5), np.int8)
    if flow == "octavo":
        (y,) = octavo.compile(octavo.load(module), target=Numbering())({"a": zeros, "b": zeros}).values()
    else:
        machine = machine_of(through_tvm(module, Numbering()), tmp_path / "mixed.so")
        y = machine["main"](tvm.runtime.tensor(zeros), tvm.runtime.tensor(zeros)).numpy()
    np.testing.assert_array_equal(y.reshape(-1), np.arange(30))
