"""What a description says of memory, in a back end's code: layout of activations, alignment of constants, size of scratch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tvm import relax

import octavo
from octavo.compiler.backends import Code, CodeGenerator, CSource
from octavo.errors import CompileError
from octavo.target import OpSupport, TargetDescription
from qdq_graph import Qdq, graph

SCALE = (0.25, 0)


def pooled(layout: str) -> Any:
    """A max pooling of 1x1 of stride 1, which changes nothing, and the sum of its result with itself."""

    def body(writer, params):
        qdq = Qdq(writer, "int8")
        x = qdq.dequantize("x", params["x"], SCALE)
        pool = writer.emit("pool", relax.op.nn.max_pool2d(x, pool_size=(1, 1), layout=layout))
        pool_q = qdq.quantize("pool", pool, SCALE)
        a, b = qdq.dequantize("a", pool_q, SCALE), qdq.dequantize("b", pool_q, SCALE)
        return qdq.quantize("sum", writer.emit("sum", relax.op.add(a, b)), SCALE, is_output=True)

    return octavo.load(graph({"x": ((1, 3, 2, 5) if layout == "NCHW" else (1, 2, 5, 3), "int8")}, body))


class Numbering(CodeGenerator):
    """Whose code gives each value its place in memory; of constants, whether each lies as the description says."""

    def __init__(self, **fields: Any) -> None:
        ops = tuple(OpSupport(op=name, activations=("int8",)) for name in ("nn.max_pool2d", "add"))
        self.description = TargetDescription(name="npu", ops=ops, **fields)
        self.wanted: dict[str, Any] = {}

    def generate(self, composite: Any) -> Code:
        constants = tuple(np.arange(size, dtype=np.int8) for size in (1, 3, 65, 7))
        size, alignment = int(np.prod(composite.op.y.shape)), self.description.alignment
        inputs = "".join(f"const int8_t *x{i}, " for i in range(len(composite.inputs)))
        pointers = "".join(f"const int8_t *c{i}, " for i in range(len(constants)))
        lies = " && ".join(f"(uintptr_t)c{i} % {alignment} == 0 && c{i}[0] == 0" for i in range(len(constants)))
        scratch, aligned = ("uint8_t *scratch, ", "(uintptr_t)scratch % 64 == 0") if self.wanted.get("workspace") else ("", "1")
        value = "x0[i]" if composite.op_name == "add" else "i"
        text = f"""#include <stdint.h>
void {composite.name}({inputs}{pointers}{scratch}int8_t *y) {{
  for (int i = 0; i < {size}; i++) y[i] = {lies} && {aligned} ? {value} : -1;
}}"""
        return Code(source=CSource(text=text, symbol=composite.name), constants=constants, **self.wanted)


def numbers(layout: str, backend: Numbering) -> np.ndarray:
    model = pooled(layout)
    (x,) = model.input_ids
    executable = octavo.compile(model, target=backend)
    assert {op.taker for op in octavo.explain(executable).ops} == {"npu"}
    (y,) = executable(np.zeros(model.tensors[x].shape, np.int8)).values()
    return y


IN_ORDER = np.arange(30, dtype=np.int8)


@pytest.mark.parametrize(
    ("activation_layout", "wanted", "channels_last"),
    [("any", {}, False), ("NCHW", {}, False), ("NHWC", {}, True), ("NHWC", {"layout": "source"}, False)],
)
def test_code_gets_the_layout_that_its_description_says(activation_layout: str, wanted: dict, channels_last: bool) -> None:
    backend = Numbering(activation_layout=activation_layout)
    backend.wanted = wanted
    expected = IN_ORDER.reshape(1, 2, 5, 3).transpose(0, 3, 1, 2) if channels_last else IN_ORDER.reshape(1, 3, 2, 5)
    np.testing.assert_array_equal(numbers("NCHW", backend), expected)


def test_channels_last_of_the_source_stay() -> None:
    np.testing.assert_array_equal(numbers("NHWC", Numbering(activation_layout="NHWC")), IN_ORDER.reshape(1, 2, 5, 3))
    explained = octavo.explain(pooled("NHWC"), target=Numbering(activation_layout="NCHW"))
    declined = {op.op: op.declined for op in explained.ops}
    assert declined["pool2d"] == "npu: its layout is NHWC, expected NCHW (activation_layout), says target npu of nn.max_pool2d"
    assert declined["add"] == "", "works element by element"


@pytest.mark.parametrize("alignment", [1, 16, 64])
def test_constants_and_scratch_lie_as_the_description_says(alignment: int, tmp_path) -> None:
    backend = Numbering(alignment=alignment)
    backend.wanted = {"workspace": 100}
    assert (numbers("NCHW", backend).reshape(-1) == IN_ORDER).all()
    model = pooled("NCHW")
    octavo.compile(model, target=backend).save(tmp_path / "a.so")
    (y,) = octavo.load_executable(tmp_path / "a.so")(np.zeros((1, 3, 2, 5), np.int8)).values()
    assert (y.reshape(-1) == IN_ORDER).all()


def test_code_may_not_ask_for_more_scratch_than_there_is() -> None:
    backend = Numbering(scratch_bytes=100)
    backend.wanted = {"workspace": 100}
    numbers("NCHW", backend)
    backend.description = replace(backend.description, scratch_bytes=99)
    message = r"npu\.pool2d of pool.*: its code asks for a workspace of 100 bytes; target npu has scratch_bytes 99"
    with pytest.raises(CompileError, match=message):
        octavo.compile(pooled("NCHW"), target=backend)
    backend.wanted = {}
    numbers("NCHW", backend)
