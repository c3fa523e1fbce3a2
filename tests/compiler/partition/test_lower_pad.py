"""Padding before a convolution becomes the convolution's; anywhere else it is a kernel. Bits are those of padding first."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tvm import relax

from octavo.compiler.backends.cpu.kernels import isas_of
from octavo.runtime.llvm_host import host_target
from octavo.target import CPU
from qdq_graph import Qdq, graph, lower, run_lowered

op: Any = relax.op
ISAS = isas_of(host_target())
X, Y = (0.05, 3), (0.3, -9)
FORMS = ("qdq", "float", "integers")


def module_of(layout: str, form: str, *, amount: int = 1, padded_input: bool = True, also_read: bool = False, value: float = 0.0):
    """Without `padded_input` the graph has the padding in front; with it the input is padded already (the reference)."""
    rng = np.random.default_rng(0)
    is_nhwc = layout == "NHWC"
    height, width = (7 + 2 * amount, 6 + amount) if padded_input else (7, 6)
    shape = (1, height, width, 4) if is_nhwc else (1, 4, height, width)
    weight = rng.integers(-127, 128, (3, 3, 4, 8) if is_nhwc else (8, 4, 3, 3)).astype(np.int8)
    widths = [0, 0, amount, amount, 0, amount, 0, 0] if is_nhwc else [0, 0, 0, 0, amount, amount, 0, amount]

    def body(writer, params):
        qdq = Qdq(writer, "int8")
        q, results = params["x"], []
        if not padded_input:
            if form == "integers":
                q = writer.emit("pad", op.nn.pad(q, widths, pad_value=float(X[1])), is_output=also_read)
            else:
                padded = writer.emit("pad", op.nn.pad(qdq.dequantize("x", q, X), widths, pad_value=value))
                q = qdq.quantize("pad", padded, X, is_output=also_read) if form == "qdq" else None
            if also_read:
                results.append(q)
        x = padded if q is None else qdq.dequantize("p", q, X)
        kernel_layout = "HWIO" if is_nhwc else "OIHW"
        w = qdq.weight("w", weight, np.full(8, 0.01, np.float32), axis=3 if is_nhwc else 0)
        conv = writer.emit("conv", op.nn.conv2d(x, w, strides=2, padding=[0, 1], data_layout=layout, kernel_layout=kernel_layout))
        y = qdq.quantize("y", conv, Y, is_output=True)
        return relax.Tuple([y, *results]) if results else y

    return graph({"x": (shape, "int8")}, body), shape, widths


def run(module, x, isa):
    result = run_lowered(module, x, isa=isa)
    return result[0] if isinstance(result, list) else result


def kernels_of(module) -> list[str]:
    lowered = lower(module, CPU, ISAS, 1)
    assert all(record.integer for record in lowered.records), lowered.records
    return [record.op for record in lowered.records]


@pytest.mark.parametrize(
    ("layout", "form", "change", "ops"),
    [
        *(("NHWC", form, {}, ["conv2d"]) for form in FORMS),
        ("NCHW", "qdq", {}, ["conv2d"]),
        ("NHWC", "qdq", {"amount": 3}, ["gather", "conv2d"]),
        ("NCHW", "integers", {"amount": 3}, ["gather", "conv2d"]),
        ("NCHW", "qdq", {"also_read": True}, ["gather", "conv2d"]),
        ("NHWC", "integers", {"also_read": True}, ["gather", "conv2d"]),
    ],
)
def test_equals_padding_first(layout: str, form: str, change: dict[str, Any], ops: list[str]) -> None:
    module, shape, widths = module_of(layout, form, padded_input=False, **change)
    reference, _, _ = module_of(layout, form, amount=change.get("amount", 1))
    assert kernels_of(module) == ops
    x = np.random.default_rng(1).integers(-128, 128, shape).astype(np.int8)
    padded = np.pad(x, [tuple(widths[2 * i : 2 * i + 2]) for i in range(4)], constant_values=X[1])
    # Both layouts are lowered to one kernel.
    for isa in ISAS if layout == "NHWC" else ISAS[:1]:
        np.testing.assert_array_equal(run(module, x, isa), run(reference, padded, isa))


def test_another_value_than_zero_is_not_the_convolutions() -> None:
    module, _, _ = module_of("NHWC", "qdq", padded_input=False, value=0.1)
    assert kernels_of(module) == ["gather", "conv2d"]
