"""Group normalization as one op: in the forms that files have it, channels first and last, with what follows in the same pass."""

from typing import Any

import numpy as np
import pytest
from tvm import relax

from octavo.compiler.backends.cpu.kernels import isas_of
from octavo.runtime.llvm_host import host_target
from octavo.target import CPU
from qdq_graph import graph, lower, run_float, run_lowered

op = relax.op


def floats(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.normal(size=shape).astype(np.float32)


def normalized(w: Any, x: Any, groups: int, axis: int, gamma: np.ndarray, beta: np.ndarray) -> Any:
    axes = [other for other in range(1, len(x.ty.shape)) if other != axis]
    constants = [relax.const(gamma), relax.const(beta)]
    return w.emit("n", op.nn.group_norm(x, *constants, num_groups=groups, channel_axis=axis, axes=axes, epsilon=0.01))


def written_out(w: Any, x: Any, groups: int, gamma: np.ndarray, beta: np.ndarray) -> Any:
    """As PyTorch's exporter to ONNX has it."""
    shape = [int(extent) for extent in x.ty.shape]
    rows = w.emit("rows", op.reshape(x, (shape[0], groups, -1)))
    two, half = np.full(groups, 2, np.float32), np.full(groups, 0.5, np.float32)
    back = w.emit("back", op.reshape(normalized(w, rows, groups, 1, two, half), shape))
    scaled = w.emit("scaled", op.multiply(back, relax.const(gamma.reshape(-1, 1, 1) / 2)))
    return w.emit("shifted", op.add(relax.const((beta - gamma / 4).reshape(1, -1, 1, 1)), scaled))


def expected_of(x: np.ndarray, z: np.ndarray, groups: int, gamma: np.ndarray, beta: np.ndarray) -> np.ndarray:
    """In float64, channels last; SiLU where there are more than two groups, else relu."""
    n, height, width, _ = x.shape
    rows = x.astype(np.float64).reshape(n, height, width, groups, -1)
    distance = rows - rows.mean((1, 2, 4), keepdims=True)
    normal = distance / np.sqrt((distance**2).mean((1, 2, 4), keepdims=True) + 0.01)
    total = normal.reshape(x.shape) * gamma + beta + z
    return total / (1 + np.exp(-total)) if groups > 2 else np.maximum(total, 0)


def kernel_names(module: Any, threads: int) -> list[str]:
    return [kernel.name for kernel in lower(module, CPU, isas_of(host_target()), threads).kernels.values()]


@pytest.mark.parametrize(("channels", "groups"), [(6, 2), (7, 7), (35, 5), (40, 1), (64, 32), (320, 20)])
def test_forms_layouts_and_threads(rng: np.random.Generator, channels: int, groups: int) -> None:
    is_last, are_rows = channels == 40, channels == 35
    gamma, beta = floats(rng, channels), floats(rng, channels)

    def body(w: Any, inputs: dict[str, Any]) -> Any:
        x, z = inputs["x"], inputs["z"]
        is_written_out = channels % 3 == 0
        write = written_out if is_written_out else lambda *args: normalized(*args[:3], 3 if is_last else 1, *args[3:])
        s = w.emit("s", op.add(write(w, x, groups, gamma, beta), z))
        return w.emit("y", op.nn.silu(s) if groups > 2 else op.nn.relu(s), is_output=True)

    x, z = 10 + floats(rng, 2, 5, 9, channels), floats(rng, 2, 5, 9, channels)
    given = [values if is_last else np.ascontiguousarray(values.transpose(0, 3, 1, 2)) for values in (x, z)]
    given = [values.reshape(2, channels, 45) if are_rows else values for values in given]
    module = graph(dict.fromkeys(("x", "z"), (given[0].shape, "float32")), body)
    assert [name for name in kernel_names(module, 2) if name != "transpose"] == ["float.group_norm"]
    got = run_lowered(module, *given, threads=1)
    expected = expected_of(x, z, groups, gamma, beta)
    ours = got if is_last else got.reshape(2, channels, 5, 9).transpose(0, 2, 3, 1)
    assert np.abs(ours - expected).max() <= 3e-6 * np.abs(expected).max()
    assert np.array_equal(run_lowered(module, *given, threads=2), got)


@pytest.mark.parametrize("form", ["variable", "read between"])
def test_what_is_not_constant_or_read_by_others_stays_outside(rng: np.random.Generator, form: str) -> None:
    def body(w: Any, inputs: dict[str, Any]) -> Any:
        x = inputs["x"]
        if form == "variable":
            weight = w.emit("weight", op.mean(x, axis=[0, 2]))
            value = op.nn.group_norm(x, weight, weight, num_groups=2, channel_axis=1, axes=[2])
            return w.emit("y", value, is_output=True)
        rows = w.emit("rows", op.reshape(x, (2, 3, -1)))
        back = w.emit("back", op.reshape(normalized(w, rows, 3, 1, floats(rng, 3), floats(rng, 3)), (2, 6, 20)))
        return w.emit("y", op.add(back, w.emit("m", op.max(rows, axis=[1, 2], keepdims=True))), is_output=True)

    module = graph({"x": ((2, 6, 20), "float32")}, body)
    assert ("float.group_norm" in kernel_names(module, 1)) == (form == "read between")
    x = floats(rng, 2, 6, 20)
    assert np.abs(run_lowered(module, x) - run_float(module, x)).max() < 1e-5
