"""Float max pools of channels last, which TVM writes: each tap for all channels, and a large window axis by axis."""

from typing import Any

import numpy as np
import pytest
import tvm_ffi
from tvm import relax
from tvm.s_tir import SBlockRealize
from tvm.tirx import For

from octavo.compiler.backends.cpu.legalize import legalizations
from qdq_graph import graph, run_float

WINDOWS = (
    ((2, 2), (2, 2), (0, 0, 0, 0), (1, 1), False, 1),
    ((3, 3), (2, 1), (1, 0, 0, 1), (1, 1), True, 1),
    ((5, 5), (1, 1), (2, 2, 2, 2), (1, 1), False, 2),
    ((9, 9), (2, 3), (4, 1, 3, 2), (1, 2), True, 2),
)


def pooled(channels: int, *window: Any) -> Any:
    size, strides, padding, dilation, ceil_mode = window

    def body(w: Any, x: dict[str, Any]) -> Any:
        made = relax.op.nn.max_pool2d(x["x"], size, strides, padding, dilation, ceil_mode, layout="NHWC")
        return w.emit("y", made, is_output=True)

    return graph({"x": ((2, 13, 14, channels), "float32")}, body)


@pytest.mark.parametrize(("size", "strides", "padding", "dilation", "ceil_mode", "passes"), WINDOWS)
@pytest.mark.parametrize("channels", [5, 24])
def test_the_greatest_is_that_of_tvm(
    size: Any, strides: Any, padding: Any, dilation: Any, ceil_mode: bool, passes: int, channels: int, rng: np.random.Generator
) -> None:
    module = pooled(channels, size, strides, padding, dilation, ceil_mode)
    x = rng.normal(size=(2, 13, 14, channels)).astype(np.float32)
    legalized = relax.transform.LegalizeOps(legalizations())(module)
    functions = [each for var, each in legalized.functions_items() if var.name_hint.startswith("max_pool2d")]
    assert len(functions) == passes
    for function in functions:
        found: list[Any] = []
        tvm_ffi.structural_walk(function.body, (For, found.append))
        assert {int(each.extent) for each in found if isinstance(each.body, SBlockRealize)} == {5 if channels == 5 else 8}, (
            "channels are innermost"
        )
    assert run_float(legalized, x).tobytes() == run_float(module, x).tobytes()
