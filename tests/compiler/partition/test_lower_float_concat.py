"""Float concatenations and normalizations without a convolution before them: one pass, with the clamps behind."""

from typing import Any

import numpy as np
import pytest
from tvm import relax

from octavo.target import CPU
from qdq_graph import graph, lower, run_float, run_lowered

op = relax.op


def floats(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.normal(size=shape).astype(np.float32)


def normalized(rng: np.random.Generator, w: Any, name: str, x: Any, axis: int) -> Any:
    channels = int(x.ty.shape[axis])
    values = [floats(rng, channels), floats(rng, channels), floats(rng, channels), np.abs(floats(rng, channels)) + 0.5]
    norm = w.emit(f"{name}_all", op.nn.batch_norm(x, *map(relax.const, values), axis=axis, training=False))
    return w.emit(name, relax.TupleGetItem(norm, 0))


def dense_block(rng: np.random.Generator, *, is_read_twice: bool = False) -> Any:
    def body(w: Any, inputs: dict[str, Any]) -> Any:
        x = inputs["x"]
        a = w.emit("a", op.nn.conv2d(x, relax.const(floats(rng, 20, 6, 3, 3)), padding=1))
        joined = w.emit("joined", op.concat([x, a], axis=1))
        n = w.emit("n1", op.nn.relu(normalized(rng, w, "n", joined, 1)))
        b = w.emit("b", op.nn.conv2d(n, relax.const(floats(rng, 4, 26, 1, 1))))
        if is_read_twice:
            b = w.emit("b2", op.add(b, w.emit("m", op.max(joined, axis=[1], keepdims=True))))
        p = w.emit("p", op.nn.max_pool2d(b, (2, 2), (2, 2)))
        return w.emit("y", op.nn.relu(normalized(rng, w, "q", p, 1)), is_output=True)

    return graph({"x": ((2, 6, 8, 10), "float32")}, body)


def kernel_names(module: Any) -> list[str]:
    return [kernel.name.split(" ")[0] for kernel in lower(module, CPU, ("generic",), 1).kernels.values()]


@pytest.mark.parametrize("is_read_twice", [False, True])
def test_a_dense_block(rng: np.random.Generator, is_read_twice: bool) -> None:
    module = dense_block(rng, is_read_twice=is_read_twice)
    convolutions = ["float.direct", "float.concat", *(["float.norm"] if is_read_twice else []), "float.pointwise", "float.norm"]
    assert [name for name in kernel_names(module) if name not in ("transpose", "float.max")] == convolutions
    x = floats(rng, 2, 6, 8, 10)
    got, expected = run_lowered(module, x), run_float(module, x)
    assert np.abs(got - expected).max() <= 5e-6 * np.abs(expected).max()


def test_axes_that_are_no_channels_and_equal_operands(rng: np.random.Generator) -> None:
    def body(w: Any, inputs: dict[str, Any]) -> Any:
        joined = w.emit("joined", op.concat([inputs["x"], inputs["y"], inputs["x"]], axis=-2))
        return w.emit("result", op.clip(joined, -0.5, 0.5), is_output=True)

    module = graph({"x": ((3, 2, 5), "float32"), "y": ((3, 4, 5), "float32")}, body)
    assert kernel_names(module) == ["float.concat"]
    x, y = floats(rng, 3, 2, 5), floats(rng, 3, 4, 5)
    assert np.array_equal(run_lowered(module, x, y), np.clip(np.concatenate([x, y, x], axis=1), -0.5, 0.5))


def test_a_normalization_whose_statistics_are_read_is_left_to_tvm(rng: np.random.Generator) -> None:
    def body(w: Any, inputs: dict[str, Any]) -> Any:
        constants = [relax.const(np.abs(floats(rng, 4)) + 0.5) for _ in range(4)]
        norm = w.emit("all", op.nn.batch_norm(inputs["x"], *constants, axis=1, training=False))
        parts = [w.emit(f"r{index}", relax.TupleGetItem(norm, index)) for index in (0, 1)]
        return relax.Tuple([w.emit(f"s{index}", op.negative(part), is_output=True) for index, part in enumerate(parts)])

    assert kernel_names(graph({"x": ((2, 4, 3, 3), "float32")}, body)) == []


def test_a_normalization_along_rows_of_what_is_kept_channels_last(rng: np.random.Generator) -> None:
    def body(w: Any, inputs: dict[str, Any]) -> Any:
        c = w.emit("c", op.nn.conv2d(inputs["x"], relax.const(floats(rng, 4, 3, 3, 3)), padding=1))
        joined = w.emit("joined", op.concat([c, c], axis=3))
        return w.emit("y", op.nn.relu(normalized(rng, w, "n", joined, 3)), is_output=True)

    module = graph({"x": ((1, 3, 5, 6), "float32")}, body)
    assert "float.concat" in kernel_names(module)
    x = floats(rng, 1, 3, 5, 6)
    got, expected = run_lowered(module, x), run_float(module, x)
    assert np.abs(got - expected).max() <= 5e-6 * np.abs(expected).max()
