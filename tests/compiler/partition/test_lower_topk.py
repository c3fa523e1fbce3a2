"""The greatest and least elements along an axis, lowered: the oracle bit for bit, and why some stay float."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tvm import relax

from octavo import numerics
from octavo.compiler.backends.cpu.kernels import isas_of
from octavo.runtime.llvm_host import host_target
from octavo.target import CPU
from qdq_graph import Qdq, graph, lower, run_lowered

op: Any = relax.op
ISAS = isas_of(host_target())
PARAMS = (0.02, 7)


def records_of(module: Any) -> list[Any]:
    return [record for record in lower(module, CPU, ISAS, 1).records if record.op == "topk"]


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("axis", [-1, 1])
def test_values_and_places(dtype: str, axis: int) -> None:
    low, high = numerics.INTEGER_RANGE[dtype]
    x = np.random.default_rng(3).integers(low, high, (2, 6, 5, 4)).astype(dtype)

    def body(writer, inputs):
        qdq = Qdq(writer, dtype)
        source = qdq.dequantize("x", inputs["x"], PARAMS)
        results = []
        for largest in (True, False):
            found = writer.emit(f"values{largest}", op.topk(source, 3, axis, "values", largest))
            results.append(qdq.quantize(f"y{largest}", found, PARAMS, is_output=True))
            places = op.topk(source, 3, axis, "indices", largest, "int32")
            results.append(writer.emit(f"places{largest}", places, is_output=True))
        return relax.Tuple(results)

    module = graph({"x": (x.shape, dtype)}, body)
    assert [record.integer for record in records_of(module)] == [True] * 4
    results = iter(run_lowered(module, x))
    for largest in (True, False):
        places = numerics.top_k_indices(x, 3, axis=axis, largest=largest)
        np.testing.assert_array_equal(next(results), np.take_along_axis(x, places, axis=axis))
        np.testing.assert_array_equal(next(results), places)


def test_reasons() -> None:
    """Other parameters for the values, both results of one op with places that no kernel gives, and a float operand."""

    def body(writer, inputs):
        qdq = Qdq(writer, "int8")
        source = qdq.dequantize("x", inputs["x"], PARAMS)
        other = qdq.quantize("other", writer.emit("values", op.topk(source, 2, ret_type="values")), (0.03, 0), is_output=True)
        both = writer.emit("both", op.topk(source, 2, axis=0, dtype="int64"))
        first = writer.emit("first", both[0], is_output=True)
        real = writer.emit("real", op.topk(inputs["f"], 2, ret_type="indices", dtype="int32"), is_output=True)
        return relax.Tuple([other, first, real])

    module = graph({"x": ((2, 9), "int8"), "f": ((2, 9), "float32")}, body)
    assert [record.reason for record in records_of(module)] == [
        "it chooses values of x and changes their scale, zero point or bounds at once",
        "it gives values and places at once; ask for each by an op of its own",
        "input f is float; quantize and dequantize it (constant scale) before this op",
    ]
