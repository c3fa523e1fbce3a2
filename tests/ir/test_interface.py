"""Integers at a model's edges, and preprocessing as ops: the same results as of NumPy around the model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import octavo
from nets import residual_net
from octavo.cli.compile import preprocessing
from octavo.errors import ModelError
from octavo.export.c_library import export_c
from octavo.ir.graph import Model
from octavo.ir.graph.inputs import input_specs, random_inputs
from octavo.ir.interface import Preprocessing, with_interface
from octavo.ir.qdq.interface import input_params


def run(model: Model, x: np.ndarray) -> np.ndarray:
    (y,) = octavo.compile(model)(x).values()
    return y


@pytest.fixture(scope="module")
def model() -> Model:
    net = residual_net()
    return octavo.quantize(net, octavo.profile(net, [random_inputs(net)]))


def test_integers_enter_a_model_that_quantizes_its_input(model: Model, tmp_path: Path) -> None:
    (x,) = random_inputs(model).values()
    expected = run(model, x)
    for dtype, bounds in (("uint8", (0, 255)), ("int8", (-128, 127))):
        changed = with_interface(replace(model, starts={str(model.input_ids[0]): x}), inputs=dtype)
        (params,) = input_params(changed.module)
        assert params is not None
        integers = np.rint(x / np.float32(params.scale)) + int(params.zero_point)
        np.testing.assert_array_equal(input_specs(changed)[0].start, np.clip(integers, *bounds).astype(dtype))
        np.testing.assert_array_equal(run(changed, np.clip(integers, *bounds).astype(dtype)), expected)
        made = export_c(changed, tmp_path / dtype)
        text = (made.path / "model.h").read_text()
        assert f'#define MODEL_INPUT0_DTYPE "{dtype}"' in text
        assert f"#define MODEL_INPUT0_ZERO_POINT ({int(params.zero_point)})" in text


@pytest.fixture(scope="module")
def of_integers(shared: Path) -> tuple[Model, np.ndarray, np.ndarray]:
    """A model whose input and output are int8, an input, and what it gives for that."""
    net = octavo.load(shared / "models" / "tflite" / "autoencoder_ad01_int8.tflite")
    (x,) = random_inputs(net).values()
    return net, x, run(net, x)


@pytest.mark.parametrize("inputs", [None, "uint8", "float32"])
@pytest.mark.parametrize("outputs", [None, "uint8", "float32"])
def test_integer_edges_become_others(
    of_integers: tuple[Model, np.ndarray, np.ndarray], inputs: str | None, outputs: str | None
) -> None:
    net, x, y = of_integers
    (known,) = input_params(net.bound())
    assert known is not None
    scale, zero_point = np.float32(known.scale), int(known.zero_point)
    given = x.astype(np.int32)
    changed = with_interface(replace(net, starts={str(net.input_ids[0]): x}), inputs=inputs, outputs=outputs)
    if inputs == "uint8":
        given = (given + 128).astype(np.uint8)
    else:
        given = x if inputs is None else ((given - zero_point) * scale).astype(np.float32)
    np.testing.assert_array_equal(input_specs(changed)[0].start, given, strict=True)
    got = run(changed, given)
    if outputs == "uint8":
        np.testing.assert_array_equal(got, (y.astype(np.int32) + 128).astype(np.uint8))
    elif outputs is None:
        np.testing.assert_array_equal(got, y)
    else:
        assert got.dtype == np.float32
        assert np.unique(got).size == np.unique(y).size


def test_a_picture_is_preprocessed_within_the_model(model: Model) -> None:
    rng = np.random.default_rng(7)
    picture = rng.integers(0, 256, (1, 8, 8, 3), dtype=np.uint8)
    mean, std = np.float32([120, 110, 100]), np.float32([60, 50, 40])
    x = ((picture - mean) * (np.float32(1) / std)).transpose(0, 3, 1, 2)
    changed = with_interface(model, preprocessing=Preprocessing(mean=tuple(mean.tolist()), std=tuple(std.tolist())))
    np.testing.assert_array_equal(run(changed, picture), run(model, np.ascontiguousarray(x)))


def test_a_picture_of_another_size_is_resized(model: Model) -> None:
    flat = np.full((1, 16, 12, 3), 200, np.uint8)
    changed = with_interface(model, preprocessing=Preprocessing(std=(255.0,), size=(16, 12)))
    x = np.full((1, 3, 8, 8), np.float32(200) * (np.float32(1) / np.float32(255)), np.float32)
    np.testing.assert_array_equal(run(changed, flat), run(model, x))


def test_what_cannot_be_is_an_error(model: Model) -> None:
    net = residual_net()
    with pytest.raises(ModelError, match="no op quantizes it"):
        with_interface(net, inputs="uint8")
    with pytest.raises(ModelError, match="a float op computes it"):
        with_interface(net, outputs="int8")
    with pytest.raises(ModelError, match="can be float32, uint8, int8"):
        with_interface(model, inputs="int4")
    with pytest.raises(ModelError, match="mean has 2 numbers"):
        with_interface(model, preprocessing=Preprocessing(mean=(1.0, 2.0)))
    with pytest.raises(ModelError, match="other than 0"):
        with_interface(model, preprocessing=Preprocessing(std=(0.0,)))


def test_the_command_line_s_spelling() -> None:
    assert preprocessing("mean=1+2+3,std=4,size=48x64") == Preprocessing(mean=(1.0, 2.0, 3.0), std=(4.0,), size=(48, 64))
    assert preprocessing("std=255") == Preprocessing(std=(255.0,))
