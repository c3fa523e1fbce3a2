"""Float ops with constant weights run in float kernels of our own, and NCHW graphs stay NHWC between them."""

from typing import Any

import numpy as np
import pytest
from tvm import relax

from octavo.compiler.backends.cpu.lowering import Lowered
from octavo.ir.graph.dataflow import DataflowView, op_name
from octavo.target import CPU
from qdq_graph import graph, lower, run_float, run_lowered


def floats(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.normal(size=shape).astype(np.float32)


def const(rng: np.random.Generator, *shape: int) -> Any:
    return relax.const(floats(rng, *shape))


def lowered(module: Any) -> Lowered:
    return lower(module, CPU, ("generic",), 1)


def float_ops(module: Any) -> list[str]:
    """The ops that TVM is left with, in order."""
    names = [op_name(binding.value) for binding in DataflowView(lowered(module).module["main"]).bindings]
    return [name for name in names if not name.startswith("octavo_") and name not in ("tuple", "constant")]


def is_close(module: Any, *inputs: np.ndarray) -> bool:
    """Whether the kernels give TVM's own result, but for the rounding of sums."""
    got, expected = run_lowered(module, *inputs), run_float(module, *inputs)
    return got.shape == expected.shape and np.abs(got - expected).max() <= 5e-6 * np.abs(expected).max()


def nchw_network(rng: np.random.Generator, *, is_read_twice: bool = False) -> Any:
    def body(w: Any, x: dict[str, Any]) -> Any:
        a = w.emit("a", relax.op.nn.conv2d(x["x"], const(rng, 24, 3, 3, 3), strides=2, padding=1))
        a1 = w.emit("a1", relax.op.add(a, const(rng, 1, 24, 1, 1)))
        a2 = w.emit("a2", relax.op.clip(a1, 0, 6))
        b = w.emit("b", relax.op.nn.conv2d(a2, const(rng, 24, 1, 3, 3), padding=1, groups=24))
        b1 = w.emit("b1", relax.op.sigmoid(b))
        b2 = w.emit("b2", relax.op.multiply(b1, b))
        c = w.emit("c", relax.op.add(b2, a1 if is_read_twice else a2))
        d = w.emit("d", relax.op.concat([c, b2], axis=1))
        e = w.emit("e", relax.op.multiply(d, const(rng, 48, 1, 1)))
        f = w.emit("f", relax.op.nn.max_pool2d(e, pool_size=(3, 3), strides=(2, 2), padding=(1, 1)))
        f1 = w.emit("f1", relax.op.image.resize2d(f, (9, 10)))
        g = w.emit("g", relax.op.nn.avg_pool2d(f1, pool_size=(2, 2), ceil_mode=True))
        h = w.emit("h", relax.op.mean(g, axis=[2, 3]))
        i = w.emit("i", relax.op.matmul(h, const(rng, 48, 10)))
        return w.emit("y", relax.op.add(i, const(rng, 10)), is_output=True)

    return graph({"x": ((1, 3, 19, 17), "float32")}, body)


def test_a_network_is_close_to_tvm_and_keeps_its_layout(rng: np.random.Generator) -> None:
    module = nchw_network(rng)
    assert is_close(module, floats(rng, 1, 3, 19, 17))
    kernels = [kernel.name.split(" ")[0] for kernel in lowered(module).kernels.values()]
    assert kernels == ["transpose", "float.direct", "float.depthwise.3x3", "float.concat", "float.mean", "float.matmul"]
    assert set(float_ops(module)) == {"add", "multiply", "nn.max_pool2d", "image.resize2d", "nn.avg_pool2d"}


def test_a_value_that_others_read_is_not_fused_away(rng: np.random.Generator) -> None:
    module = nchw_network(rng, is_read_twice=True)
    assert is_close(module, floats(rng, 1, 3, 19, 17))
    assert "clip" in float_ops(module)


def residual_network(rng: np.random.Generator, *, is_read_twice: bool = False) -> Any:
    """Two blocks, one with a convolution in its shortcut, and a matmul whose result is added to its input."""

    def conv(w: Any, name: str, x: Any, channels: tuple[int, int], size: int = 3) -> Any:
        return w.emit(name, relax.op.nn.conv2d(x, const(rng, *channels, size, size), padding=size // 2))

    def body(w: Any, x: dict[str, Any]) -> Any:
        a = conv(w, "a", x["x"], (19, 6))
        b = conv(w, "b", a, (19, 19))
        b1 = w.emit("b1", relax.op.add(b, const(rng, 1, 19, 1, 1)))
        c = w.emit("c", relax.op.nn.relu(w.emit("sum", relax.op.add(a, b1))))
        d, e = conv(w, "d", c, (5, 19)), conv(w, "e", c, (5, 19), 1)
        f = w.emit("f", relax.op.clip(w.emit("second", relax.op.add(d, e)), -200, 300))
        rows = w.emit("rows", relax.op.reshape(f, (5, 72)))
        g = w.emit("g", relax.op.matmul(rows, const(rng, 72, 72)))
        h = w.emit("h", relax.op.add(w.emit("biased", relax.op.add(g, const(rng, 72))), rows))
        if is_read_twice:
            h = w.emit("h1", relax.op.add(h, w.emit("total", relax.op.sum(b1))))
        return w.emit("y", relax.op.add(h, const(rng, 5, 72)), is_output=True)

    return graph({"x": ((1, 6, 9, 8), "float32")}, body)


def test_another_activation_is_added_where_the_sums_are_stored(rng: np.random.Generator) -> None:
    module = residual_network(rng)
    assert is_close(module, floats(rng, 1, 6, 9, 8))
    assert len(lowered(module).kernels) == 7, "five products and two changes of layout"
    assert float_ops(module) == ["reshape", "add"], "the sum with a constant for each element is TVM's"


def test_a_sum_whose_terms_others_read_is_not_fused(rng: np.random.Generator) -> None:
    module = residual_network(rng, is_read_twice=True)
    assert is_close(module, floats(rng, 1, 6, 9, 8))
    assert float_ops(module) == ["add", "nn.relu", "reshape", "add", "add"]


def test_another_name_of_a_sum_with_a_bias_adds_nothing(rng: np.random.Generator) -> None:
    def body(w: Any, x: dict[str, Any]) -> Any:
        biased = w.emit("biased", relax.op.add(w.emit("product", relax.op.matmul(x["x"], const(rng, 7, 5))), const(rng, 5)))
        return w.emit("y", relax.op.sin(w.emit("renamed", biased)), is_output=True)

    module = graph({"x": ((4, 7), "float32")}, body)
    assert is_close(module, floats(rng, 4, 7))
    assert float_ops(module) == ["sin"]


def normalized(rng: np.random.Generator, *, layout: str = "NCHW", reads_mean: bool = False, training: bool = False) -> Any:
    """A convolution with a bias, a batch normalization and a clamp; its running mean may be read, too."""
    nchw = layout == "NCHW"

    def body(w: Any, x: dict[str, Any]) -> Any:
        weight = const(rng, 18, 5, 3, 3) if nchw else const(rng, 3, 3, 5, 18)
        kernel_layout = "OIHW" if nchw else "HWIO"
        a = relax.op.nn.conv2d(x["x"], weight, padding=1, data_layout=layout, kernel_layout=kernel_layout)
        b = w.emit("b", relax.op.add(w.emit("a", a), const(rng, 1, 18, 1, 1) if nchw else const(rng, 18)))
        variance = relax.const(rng.uniform(0.5, 2, 18).astype(np.float32))
        statistics = [const(rng, 18), const(rng, 18), const(rng, 18), variance]
        n = w.emit("n", relax.op.nn.batch_norm(b, *statistics, axis=1 if nchw else 3, epsilon=1e-3, training=training))
        first = w.emit("first", relax.TupleGetItem(n, 0))
        if reads_mean:
            mean = w.emit("mean", relax.TupleGetItem(n, 1))
            first = w.emit("sum", relax.op.add(first, w.emit("shaped", relax.op.reshape(mean, (1, 18, 1, 1)))))
        return w.emit("y", relax.op.clip(first, 0, 6), is_output=True)

    return graph({"x": ((1, 5, 9, 8) if nchw else (1, 9, 8, 5), "float32")}, body)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_a_batch_normalization_is_part_of_its_convolution(rng: np.random.Generator, layout: str) -> None:
    module = normalized(rng, layout=layout)
    assert is_close(module, floats(rng, 1, 5, 9, 8) if layout == "NCHW" else floats(rng, 1, 9, 8, 5))
    assert float_ops(module) == []


@pytest.mark.parametrize("how", ["reads_mean", "training"])
def test_a_batch_normalization_stays_where_its_statistics_are_read_or_the_batchs_own(rng: np.random.Generator, how: str) -> None:
    module = normalized(rng, **{how: True})
    assert is_close(module, floats(rng, 1, 5, 9, 8))
    assert "nn.batch_norm" in float_ops(module)


def test_records_are_float_with_a_kernel_and_the_reason(rng: np.random.Generator) -> None:
    records = {record.tensor: record for record in lowered(nchw_network(rng)).records}
    conv = records["a2"]
    assert (conv.op, conv.integer, conv.isa, conv.kernel) == ("nn.conv2d", False, "generic", "float.direct 4x1")
    assert conv.reason == "the model is float; this op can be integer once the model is profiled and quantized"
    assert conv.macs == 24 * 10 * 9 * 27
    assert records["y"].op == "matmul"


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_either_layout(rng: np.random.Generator, layout: str) -> None:
    shape, weight = ((2, 5, 9, 8), (6, 5, 3, 2)) if layout == "NCHW" else ((2, 9, 8, 5), (3, 2, 5, 6))
    kernel_layout = "OIHW" if layout == "NCHW" else "HWIO"

    def body(w: Any, x: dict[str, Any]) -> Any:
        call = relax.op.nn.conv2d(
            x["x"], const(rng, *weight), strides=(2, 1), padding=(1, 0, 2, 1), data_layout=layout, kernel_layout=kernel_layout
        )
        conv = w.emit("conv", call)
        return w.emit("y", relax.op.nn.relu(conv), is_output=True)

    module = graph({"x": (shape, "float32")}, body)
    assert is_close(module, floats(rng, *shape))
    assert "nn.relu" not in float_ops(module)


def test_clamps_that_exclude_each_other_keep_their_order(rng: np.random.Generator) -> None:
    def body(w: Any, x: dict[str, Any]) -> Any:
        a = w.emit("a", relax.op.matmul(x["x"], const(rng, 7, 5)))
        b = w.emit("b", relax.op.clip(a, -3, -1))
        return w.emit("y", relax.op.nn.relu(b), is_output=True)

    module = graph({"x": ((2, 3, 7), "float32")}, body)
    x = floats(rng, 2, 3, 7)
    assert np.array_equal(run_lowered(module, x), np.zeros((2, 3, 5), np.float32))


def test_a_dequantized_weight_is_a_constant_too(rng: np.random.Generator) -> None:
    def body(w: Any, x: dict[str, Any]) -> Any:
        scale, zero = relax.const(np.float32([0.1, 0.2, 0.3])), relax.const(np.int32([1, -2, 3]))
        integers = relax.const(rng.integers(-128, 128, (7, 3)).astype(np.int8))
        weight = w.emit("weight", relax.op.dequantize(integers, scale, zero, axis=1))
        return w.emit("y", relax.op.matmul(x["x"], weight), is_output=True)

    module = graph({"x": ((4, 7), "float32")}, body)
    assert is_close(module, floats(rng, 4, 7))
    assert [kernel.name for kernel in lowered(module).kernels.values()] == ["float.matmul 4x1"]


def test_constants_bound_to_variables_are_constants_too(rng: np.random.Generator) -> None:
    def body(w: Any, x: dict[str, Any]) -> Any:
        weight = w.emit("weight", relax.op.permute_dims(w.emit("weight_t", const(rng, 3, 7))))
        bias = w.emit("bias", const(rng, 3))
        return w.emit("y", relax.op.add(bias, w.emit("a", relax.op.matmul(x["x"], weight))), is_output=True)

    module = graph({"x": ((4, 7), "float32")}, body)
    assert is_close(module, floats(rng, 4, 7))
    assert len(lowered(module).kernels) == 1


def test_products_of_two_activations_have_a_kernel(rng: np.random.Generator) -> None:
    def body(w: Any, x: dict[str, Any]) -> Any:
        return w.emit("y", relax.op.matmul(x["x"], x["w"]), is_output=True)

    module = graph({"x": ((4, 7), "float32"), "w": ((7, 3), "float32")}, body)
    assert is_close(module, floats(rng, 4, 7), floats(rng, 7, 3))
    assert [kernel.name for kernel in lowered(module).kernels.values()] == ["float.batch_matmul"]


@pytest.mark.parametrize("is_read_twice", [False, True])
@pytest.mark.parametrize("mask", [(1, 1, 9, 9), (9,), (2, 1, 1)])
def test_softmax_takes_the_mask_before_it_and_the_quantize_behind_it(
    rng: np.random.Generator, mask: tuple[int, ...], is_read_twice: bool
) -> None:
    """A mask of one column is added by TVM, and a softmax that others read is quantized by itself."""

    def body(w: Any, x: dict[str, Any]) -> Any:
        s = w.emit("s", relax.op.multiply(x["x"], relax.const(np.float32(0.25))))
        p = w.emit("p", relax.op.nn.softmax(w.emit("t", relax.op.add(s, x["mask"])), axis=-1))
        q = w.emit("q", relax.op.quantize(p, relax.const(np.float32(1 / 255)), relax.const(0, "int32"), -1, "uint8"))
        y = w.emit("y", relax.op.dequantize(q, relax.const(np.float32(1 / 255)), relax.const(0, "int32"), -1))
        return w.emit("both", relax.op.add(y, w.emit("sine", relax.op.sin(p if is_read_twice else y))), is_output=True)

    module = graph({"x": ((1, 2, 9, 9), "float32"), "mask": (mask, "float32")}, body)
    inputs = floats(rng, 1, 2, 9, 9), floats(rng, *mask)
    assert np.abs(run_lowered(module, *inputs) - run_float(module, *inputs)).max() < 1.1 * 2 / 255  # a step, by the last bit
    names = [kernel.name for kernel in lowered(module).kernels.values()]
    assert ("quantize" in names) == is_read_twice
    assert ("multiply" in float_ops(module)) == (mask[-1] == 1)


@pytest.mark.parametrize("shape", [(1, 21, 5, 7), (2, 3, 40), (2, 33, 4, 1)])
@pytest.mark.parametrize("axis", [0, 1, -2])
def test_softmax_over_any_axis_has_a_kernel(rng: np.random.Generator, shape: tuple[int, ...], axis: int) -> None:
    """With the quantize behind it; where it is over channels of an image, in their layout."""

    def body(w: Any, x: dict[str, Any]) -> Any:
        p = w.emit("p", relax.op.nn.softmax(x["x"], axis=axis))
        q = w.emit("q", relax.op.quantize(p, relax.const(np.float32(1 / 255)), relax.const(0, "int32"), -1, "uint8"))
        return w.emit("y", relax.op.dequantize(q, relax.const(np.float32(1 / 255)), relax.const(0, "int32"), -1), is_output=True)

    module, x = graph({"x": (shape, "float32")}, body), floats(rng, *shape)
    assert np.abs(run_lowered(module, x) - run_float(module, x)).max() < 1.1 / 255
    names = [kernel.name for kernel in lowered(module).kernels.values()]
    assert "float.softmax" in names
    assert "quantize" not in names


def test_a_softmax_of_columns_is_no_attention_of_rows(rng: np.random.Generator) -> None:
    def body(w: Any, x: dict[str, Any]) -> Any:
        s = w.emit("s", relax.op.matmul(x["a"], x["b"]))
        return w.emit("y", relax.op.matmul(w.emit("p", relax.op.nn.softmax(s, axis=-2)), x["c"]), is_output=True)

    module = graph({"a": ((2, 9, 8), "float32"), "b": ((2, 8, 9), "float32"), "c": ((2, 9, 8), "float32")}, body)
    assert is_close(module, floats(rng, 2, 9, 8), floats(rng, 2, 8, 9), floats(rng, 2, 9, 8))


@pytest.mark.parametrize("axis", [1, -1])
def test_the_logarithm_of_a_softmax_has_a_kernel_and_is_no_attention(rng: np.random.Generator, axis: int) -> None:
    def body(w: Any, x: dict[str, Any]) -> Any:
        s = w.emit("s", relax.op.matmul(x["a"], x["b"]))
        return w.emit("y", relax.op.matmul(w.emit("p", relax.op.nn.log_softmax(s, axis=axis)), x["c"]), is_output=True)

    module = graph({"a": ((2, 9, 8), "float32"), "b": ((2, 8, 9), "float32"), "c": ((2, 9, 8), "float32")}, body)
    assert is_close(module, floats(rng, 2, 9, 8), floats(rng, 2, 8, 9), floats(rng, 2, 9, 8))
    names = [kernel.name for kernel in lowered(module).kernels.values()]
    assert "float.log_softmax" in names
    assert names.count("float.batch_matmul") == 2


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("axes", [(0, 2, 1, 3, 4), (0, 2, 1, 4, 3)])
def test_a_volume_is_made_of_its_slices_at_once(rng: np.random.Generator, batch: int, axes: tuple[int, ...]) -> None:
    """Other orders of axes go by the source's layout of images."""

    def body(w: Any, x: dict[str, Any]) -> Any:
        images = w.emit("images", relax.op.nn.conv2d(x["x"], const(rng, 17, 3, 1, 1)))
        volume = w.emit("volume", relax.op.reshape(images, (batch, 3, 17, 5, 6)))
        return w.emit("y", relax.op.permute_dims(volume, axes), is_output=True)

    module = graph({"x": ((3 * batch, 3, 5, 6), "float32")}, body)
    assert is_close(module, floats(rng, 3 * batch, 3, 5, 6))
    assert ("permute_dims" in float_ops(module)) == (axes[-1] == 3)


def attention(*, reads_queries: bool = False) -> Any:
    """Two heads over nine tokens; the scores are divided, the heads joined again."""

    def body(w: Any, x: dict[str, Any]) -> Any:
        split = [w.emit(name, relax.op.reshape(x["x"], (1, 9, 2, 20))) for name in ("q0", "k0", "v0")]
        q, k, v = (
            w.emit(name, relax.op.permute_dims(value, axes))
            for name, value, axes in zip("qkv", split, ((0, 2, 1, 3), (0, 2, 3, 1), (0, 2, 1, 3)), strict=True)
        )
        s = w.emit("s", relax.op.divide(w.emit("qk", relax.op.matmul(q, k)), relax.const(np.float32(3.7))))
        y = w.emit("pv", relax.op.matmul(w.emit("p", relax.op.nn.softmax(s, axis=-1)), v))
        y = w.emit("joined", relax.op.reshape(w.emit("back", relax.op.permute_dims(y, (0, 2, 1, 3))), (1, 9, 40)))
        if reads_queries:
            y = w.emit("more", relax.op.add(y, w.emit("sum", relax.op.sum(q))))
        return w.emit("y", relax.op.sin(y), is_output=True)

    return graph({"x": ((1, 9, 40), "float32")}, body)


@pytest.mark.parametrize("reads_queries", [False, True])
def test_attention_reads_and_writes_each_head_where_it_lies(rng: np.random.Generator, reads_queries: bool) -> None:
    module = attention(reads_queries=reads_queries)
    assert is_close(module, floats(rng, 1, 9, 40))
    kernels = [kernel.name for kernel in lowered(module).kernels.values()]
    assert kernels == ["float.attention", *(["float.sum"] if reads_queries else [])]
    assert float_ops(module).count("permute_dims") == reads_queries


@pytest.mark.parametrize("columns", [1, 5, 16, 40, 129])
def test_layer_normalization_over_the_last_axis_has_a_kernel(rng: np.random.Generator, columns: int) -> None:
    def body(w: Any, x: dict[str, Any]) -> Any:
        constants = const(rng, columns), const(rng, columns)
        return w.emit("y", relax.op.nn.layer_norm(x["x"], *constants, axes=[-1], epsilon=1e-3), is_output=True)

    module = graph({"x": ((2, 7, columns), "float32")}, body)
    assert is_close(module, floats(rng, 2, 7, columns) + 3)
    assert [kernel.name for kernel in lowered(module).kernels.values()] == ["float.layer_norm"]


def test_layer_normalization_over_other_axes_stays_with_tvm(rng: np.random.Generator) -> None:
    def body(w: Any, x: dict[str, Any]) -> Any:
        return w.emit("y", relax.op.nn.layer_norm(x["x"], const(rng, 7, 5), const(rng, 7, 5), axes=[-2, -1]), is_output=True)

    module = graph({"x": ((2, 7, 5), "float32")}, body)
    assert is_close(module, floats(rng, 2, 7, 5))
    assert float_ops(module) == ["nn.layer_norm"]
