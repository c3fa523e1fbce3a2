"""TFLite files whose graph is written for one sample, at an open batch: samples keep their places, or the file is refused."""

from pathlib import Path

import numpy as np
import pytest
from tflite import Padding

import octavo
from octavo.errors import UnsupportedOpError
from tflite_writer import Op, Tensor, write

INT8 = {"dtype": "int8", "scale": (0.05,), "zero_point": (3,)}
OUT8 = {"dtype": "int8", "scale": (0.11,), "zero_point": (-7,)}


def constant(name, value, **fields):
    value = np.asarray(value)
    return Tensor(name=name, shape=value.shape, dtype=str(value.dtype), value=value, **fields)


def bias(rng, count, dtype, scale):
    if dtype == "float32":
        return constant(f"b{count}", rng.standard_normal(count).astype(np.float32))
    return constant(f"b{count}", rng.integers(-900, 900, count).astype(np.int32), scale=(scale,), zero_point=(0,))


def network(rng, *, reshape=(1, 64), dtype="int8"):
    """A convolution with padding SAME at stride 2, a pool, a reshape that is written for a batch of 1 and a dense layer."""
    is_int = dtype == "int8"
    x, y, z = (INT8, OUT8, OUT8) if is_int else ({}, {}, {})
    w = rng.integers(-127, 128, (16, 3, 3, 4)).astype(np.int8)
    v = rng.integers(-127, 128, (6, reshape[-1])).astype(np.int8)
    scales = [{"scale": (0.004,), "zero_point": (0,)} if is_int else {} for _ in range(2)]
    if not is_int:
        w, v = w.astype(np.float32) / 100, v.astype(np.float32) / 100
    tensors = [
        Tensor(name="x", shape=(1, 8, 8, 4), signature=(-1, 8, 8, 4), **x),
        constant("w", w, **scales[0]),
        Tensor(name="c", shape=(1, 4, 4, 16), **y),
        Tensor(name="p", shape=(1, 2, 2, 16), **y),
        constant("s", np.int32(reshape)),
        Tensor(name="f", shape=reshape, **y),
        constant("v", v, **scales[1]),
        Tensor(name="y", shape=(reshape[0], 6), **z),
        bias(rng, 16, dtype, 0.05 * 0.004),
        bias(rng, 6, dtype, 0.11 * 0.004),
    ]
    conv = {"Padding": Padding.SAME, "StrideW": 2, "StrideH": 2, "DilationWFactor": 1, "DilationHFactor": 1}
    window = {"FilterHeight": 2, "FilterWidth": 2, "StrideH": 2, "StrideW": 2, "Padding": Padding.VALID}
    ops = [
        Op(name="CONV_2D", inputs=(0, 1, 8), outputs=(2,), options_class="Conv2DOptions", options=conv),
        Op(name="MAX_POOL_2D", inputs=(2,), outputs=(3,), options_class="Pool2DOptions", options=window),
        Op(name="RESHAPE", inputs=(3, 4), outputs=(5,), options_class="ReshapeOptions"),
        Op(name="FULLY_CONNECTED", inputs=(5, 6, 9), outputs=(7,), options_class="FullyConnectedOptions"),
    ]
    return write(tensors, ops, (0,), (7,))


def saved(tmp_path: Path, data: bytes) -> Path:
    path = tmp_path / "m.tflite"
    path.write_bytes(data)
    return path


def values(rng, shape, dtype):
    if dtype == "int8":
        return rng.integers(-128, 128, shape).astype(np.int8)
    return rng.standard_normal(shape).astype(np.float32)


def run(path, data, **options):
    executable = octavo.compile(octavo.load(path, **options))
    return next(iter(executable({"x": data}).values()))


@pytest.mark.parametrize("dtype", ["int8", "float32"])
@pytest.mark.parametrize("options", [{"sizes": {"batch": (1, 8)}}, {"shapes": {"x": ("N", 8, 8, 4)}}])
def test_open_batch(tmp_path, rng, dtype, options):
    path = saved(tmp_path, network(rng, dtype=dtype))
    model = octavo.load(path, **options)
    assert list(model.sizes.values()) == ([(1, 8)] if "sizes" in options else [(1, None)])
    executable = octavo.compile(model)
    for batch in (1, 3, 8):
        data = values(rng, (batch, 8, 8, 4), dtype)
        result = executable({"x": data})["y"]
        assert result.tobytes() == run(path, data, sizes={"batch": batch}).tobytes()
        singles = [run(path, sample[None]) for sample in data]
        np.testing.assert_allclose(result, np.concatenate(singles), rtol=0, atol=0 if dtype == "int8" else 1e-4)


def test_a_batch_that_would_move_is_refused(tmp_path, rng):
    path = saved(tmp_path, network(rng, reshape=(64, 1)))
    with pytest.raises(UnsupportedOpError, match=r'RESHAPE.*where the open sizes.*sizes=\{"batch": N\}.*--size batch=N'):
        octavo.load(path, sizes={"batch": (1, None)})
    with pytest.raises(UnsupportedOpError, match=r"RESHAPE.*\[4, 2, 2, 16\].*leave out shapes and sizes"):
        octavo.load(path, sizes={"batch": 4})
