"""Float reductions: the bits of the oracle's order, whatever the layout, over any axes."""

from typing import Any

import numpy as np
import pytest
from tvm import relax

from octavo.compiler.backends.cpu.kernels import isas_of
from octavo.numerics.floats.reduce import float_reduce
from octavo.runtime.llvm_host import host_target
from octavo.target import CPU
from qdq_graph import graph, lower, run_lowered

op = relax.op


@pytest.mark.parametrize("channels", [5, 33, 300])
@pytest.mark.parametrize("form", ["mean", "keepdims", "pool", "rows"])
def test_sums_in_order(form: str, channels: int) -> None:
    x = np.random.default_rng(channels).normal(size=(2, channels, 3, 7)).astype(np.float32)
    expected = float_reduce(x.reshape(2, channels, 21).transpose(0, 2, 1), "mean")
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


ONE_AXIS = [((3, 7, 5), None), ((2, 21, 3, 8), [1]), ((4, 6, 7), [0])]
SEVERAL = [((2, 30, 40), [1, 2]), ((2, 5, 6, 9), [0, 3])]


@pytest.mark.parametrize(
    ("kind", "shape", "axis"),
    [(kind, *each) for kind in ("sum", "mean", "max", "min", "argmax", "argmin") for each in ONE_AXIS]
    + [(kind, *each) for kind in ("sum", "mean", "max", "min") for each in SEVERAL],
)
def test_any_axes(rng: np.random.Generator, kind: str, shape: tuple[int, ...], axis: list[int] | None) -> None:
    axes: Any = axis[0] if kind.startswith("arg") and axis is not None else axis

    def body(w: Any, inputs: dict[str, Any]) -> Any:
        found = w.emit("r", getattr(op, kind)(inputs["x"], axes, keepdims=True))
        return w.emit("y", op.astype(found, "float32") if kind.startswith("arg") else found, is_output=True)

    module = graph({"x": (shape, "float32")}, body)
    x = rng.normal(size=shape).astype(np.float32)
    reference: Any = getattr(np, kind)
    expected = reference(x, axis=tuple(axes) if isinstance(axes, list) else axes, keepdims=True)
    assert f"float.{kind}" in {kernel.name for kernel in lower(module, CPU, ("generic",), 1).kernels.values()}
    np.testing.assert_allclose(run_lowered(module, x), expected, rtol=0, atol=2e-5)


def test_channels_are_reduced_where_convolutions_leave_them(rng: np.random.Generator) -> None:
    """Nothing is transposed between the convolution and the reduction of what it makes."""

    def body(w: Any, inputs: dict[str, Any]) -> Any:
        conv = w.emit("c", op.nn.conv2d(inputs["x"], relax.const(rng.normal(size=(24, 3, 1, 1)).astype(np.float32))))
        return w.emit("y", op.max(conv, axis=[1]), is_output=True)

    module = graph({"x": ((1, 3, 6, 7), "float32")}, body)
    names = [kernel.name for kernel in lower(module, CPU, ("generic",), 1).kernels.values()]
    assert [name for name in names if not name.startswith("float.pointwise")] == ["transpose", "float.max"]


def test_few_neighbours_are_left_to_tvm() -> None:
    def body(w: Any, inputs: dict[str, Any]) -> Any:
        return w.emit("y", op.mean(inputs["x"], axis=[1]), is_output=True)

    module = graph({"x": ((2, 30, 3), "float32")}, body)
    assert not lower(module, CPU, ("generic",), 1).kernels
