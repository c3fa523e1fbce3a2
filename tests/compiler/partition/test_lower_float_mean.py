"""Float means over pixels: the bits of sums in order, whatever the layout; means over the last axis are left to TVM."""

from typing import Any

import numpy as np
import pytest
from tvm import relax

from octavo.compiler.backends.cpu.kernels import isas_of
from octavo.numerics.floats.reduce import mean_in_order
from octavo.runtime.llvm_host import host_target
from octavo.target import CPU
from qdq_graph import graph, lower, run_lowered

op = relax.op


@pytest.mark.parametrize("channels", [5, 33, 300])
@pytest.mark.parametrize("form", ["mean", "keepdims", "pool", "rows"])
def test_sums_in_order(form: str, channels: int) -> None:
    x = np.random.default_rng(channels).normal(size=(2, channels, 3, 7)).astype(np.float32)
    expected = mean_in_order(x.reshape(2, channels, 21).transpose(0, 2, 1))
    if form == "rows":
        x = x.reshape(2, channels, 21).transpose(0, 2, 1).copy()

    def body(w: Any, inputs: dict[str, Any]) -> Any:
        value = inputs["x"]
        call = {
            "mean": lambda: op.mean(value, axis=[2, 3]),
            "keepdims": lambda: op.mean(value, axis=[-1, -2], keepdims=True),
            "pool": lambda: op.nn.adaptive_avg_pool2d(value, (1, 1)),
            "rows": lambda: op.mean(value, axis=[1]),
        }[form]()
        return w.emit("y", call, is_output=True)

    module = graph({"x": (x.shape, "float32")}, body)
    threads = 2 if channels == 300 else 1
    kernels = lower(module, CPU, isas_of(host_target()), threads).kernels.values()
    assert "float.mean" in {kernel.name for kernel in kernels}
    assert np.array_equal(run_lowered(module, x, threads=threads).reshape(2, channels), expected)


def test_the_last_axis_is_left_to_tvm() -> None:
    def body(w: Any, inputs: dict[str, Any]) -> Any:
        return w.emit("y", op.mean(inputs["x"], axis=[1, 2]), is_output=True)

    module = graph({"x": ((2, 30, 40), "float32")}, body)
    assert not lower(module, CPU, ("generic",), 1).kernels
