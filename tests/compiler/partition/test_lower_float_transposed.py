"""Float transposed convolutions become kernels of our own, with what follows them; what has no kernel is left to TVM."""

from typing import Any

import numpy as np
import pytest
from tvm import relax

from octavo.target import CPU
from qdq_graph import graph, lower, run_float, run_lowered


def floats(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.normal(size=shape).astype(np.float32)


def network(rng: np.random.Generator, kernel: int, *, groups: int = 1, **attributes: Any) -> Any:
    """A transposed convolution with bias and relu, the sum with another value, and a convolution."""
    channels = 8 // groups
    weight = floats(rng, 6, channels, kernel, kernel)
    bias = floats(rng, 1, 8, 1, 1)

    def body(w: Any, x: dict[str, Any]) -> Any:
        def up(name: str) -> Any:
            call = relax.op.nn.conv2d_transpose(x["x"], relax.const(weight), groups=groups, **attributes)
            return w.emit(name, relax.op.add(w.emit(f"{name}_sums", call), relax.const(bias)))

        a = w.emit("a1", relax.op.nn.relu(up("a")))
        b = w.emit("b1", relax.op.nn.relu(w.emit("b2", relax.op.add(up("b"), a))))
        return w.emit("y", relax.op.nn.conv2d(b, relax.const(floats(rng, 4, 8, 1, 1))), is_output=True)

    return graph({"x": ((2, 6, 5, 7), "float32")}, body), floats(rng, 2, 6, 5, 7)


@pytest.mark.parametrize(
    "attributes",
    [
        {"kernel": 2, "strides": (2, 2)},
        {"kernel": 3, "strides": (2, 2), "padding": (1, 1, 1, 1), "output_padding": (1, 1), "groups": 2},
        {"kernel": 4, "strides": (3, 2), "padding": (1, 2, 0, 1)},
    ],
    ids=lambda attributes: f"{attributes['kernel']}",
)
def test_it_is_close_to_tvm(rng: np.random.Generator, attributes: dict[str, Any]) -> None:
    module, x = network(rng, **attributes)
    kernels = [kernel.name.split(" ")[0] for kernel in lower(module, CPU, ("generic",), 1).kernels.values()]
    assert [name for name in kernels if name != "transpose"] == ["float.transposed", "float.transposed", "float.pointwise"]
    got, expected = run_lowered(module, x), run_float(module, x)
    assert np.abs(got - expected).max() <= 5e-6 * np.abs(expected).max()


def test_outputs_that_no_tap_reaches_are_left_to_tvm(rng: np.random.Generator) -> None:
    module, x = network(rng, 1, strides=(2, 2))
    lowered = lower(module, CPU, ("generic",), 1)
    assert {record.kernel for record in lowered.records if record.op == "nn.conv2d_transpose"} == {""}
    got, expected = run_lowered(module, x), run_float(module, x)
    assert np.abs(got - expected).max() <= 5e-6 * np.abs(expected).max()
