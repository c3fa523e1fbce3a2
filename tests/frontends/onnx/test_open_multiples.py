"""Networks that take multiples alone: halved and doubled sizes meet, and what is left open is of what the size is a multiple."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import tvm

import octavo
from octavo.errors import DataError, UnsupportedOpError
from octavo.export.onnx.onnx_export import onnx_model
from octavo.ir.graph.fixed_sizes import at_sizes
from reference_sessions import reference_session

HEADER = '<ir_version: 8, opset_import: ["" : 18]> net (float[N,3,H,W] x) => (float[N,C,A,B] y) '
TWICE = "<float[4] twice = {1, 1, 2, 2}>"
NEAREST = 'mode = "nearest", coordinate_transformation_mode = "asymmetric", nearest_mode = "floor"'
FOCUS = f"""{TWICE} {{
    odd = Constant <value_ints = [1, 1]> () start = Constant <value_ints = [0, 0]> () two = Constant <value_ints = [2, 2]> ()
    axes = Constant <value_ints = [2, 3]> () end = Constant <value_ints = [99999999999, 99999999999]> ()
    a = Slice(x, start, end, axes, two) b = Slice(x, odd, end, axes, two) c = Concat <axis = 1> (a, b)
    d = MaxPool <kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1]> (c)
    e = MaxPool <kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1]> (d)
    f = Resize <{NEAREST}> (e, , twice) g = Concat <axis = 1> (f, d)
    h = Resize <{NEAREST}> (g, , twice) y = Concat <axis = 1> (h, c) }}"""
UNET = f"""{TWICE} {{
    a = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (x) b = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (a)
    c = Resize <mode = "linear"> (b, , twice) d = Concat <axis = 1> (c, a)
    e = Resize <{NEAREST}> (d, , twice) y = Concat <axis = 1> (e, x) }}"""
HALVES = f"""{TWICE} {{
    a = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (x)
    b = Resize <{NEAREST}> (a, , twice) y = Concat <axis = 1> (b, x) }}"""


def compare(model: octavo.Model, proto: Any, shapes: list[tuple[int, ...]], rng: np.random.Generator) -> None:
    """Beside ONNX Runtime, and with the bytes of what is compiled for the size alone."""
    executable, session = octavo.compile(model), reference_session(proto)
    for shape in shapes:
        x = rng.normal(size=shape).astype(np.float32)
        (given,), (wanted,) = executable(x).values(), session.run(None, {"x": x})
        np.testing.assert_allclose(given, wanted, rtol=1e-5, atol=1e-6, strict=True)
        (alone,) = octavo.compile(alone_at(model, shape))(x).values()
        assert alone.tobytes() == given.tobytes(), shape


def alone_at(model: octavo.Model, shape: tuple[int, ...]) -> octavo.Model:
    sizes: dict[str, int] = {}
    for size, name in zip((shape[0], *shape[2:]), model.sizes, strict=True):
        factor = int(name.partition("_")[2] or 1)
        sizes[name] = size // factor
    return replace(model, module=tvm.IRModule(at_sizes(dict(model.module.functions_items()), sizes)), sizes={})


@pytest.mark.parametrize(("text", "multiple"), [(FOCUS, 8), (UNET, 4)])
def test_multiples_are_found(text: str, multiple: int, rng: np.random.Generator) -> None:
    proto = onnx.parser.parse_model(HEADER + text)
    model = octavo.load(proto)
    assert model.sizes == {"N": (1, None), f"H_{multiple}": (1, None), f"W_{multiple}": (1, None)}
    compare(model, proto, [(1, 3, multiple, 2 * multiple), (2, 3, 3 * multiple, multiple)], rng)


def test_a_multiple_is_asked_for(rng: np.random.Generator) -> None:
    proto = onnx.parser.parse_model(HEADER + FOCUS)
    model = octavo.load(proto, shapes={"x": ("N", 3, "16*h", "w * 16")}, sizes={"w": (1, 3)})
    assert model.sizes == {"N": (1, None), "h": (1, None), "w": (1, 3)}
    assert str(octavo.compile(model).inputs[0]) == "x: float32 [N,3,16*h,16*w]"
    asked = octavo.load(proto, shapes={"x": ("N", 3, "4*h", "8*w")})
    assert asked.sizes == {"N": (1, None), "h_2": (1, None), "w": (1, None)}, "4*h leaves a remainder: h is even"


def test_bounds_become_those_of_the_multiple() -> None:
    model = octavo.load(onnx.parser.parse_model(HEADER + HALVES), sizes={"H": (5, 33), "W": 8})
    assert model.sizes == {"N": (1, None), "H_2": (3, 16)}


@pytest.mark.parametrize(
    ("size", "said"),
    [
        (100, "multiples of 8 only: 96 or 104"),
        (3, "multiples of 8 only: 8"),
        (0, "multiples of 8 from 8 to 128"),
        (136, "multiples of 8 from 8 to 128"),
        (133, "multiples of 8 only: 128"),
    ],
)
def test_other_sizes_are_refused(size: int, said: str, tmp_path: Path) -> None:
    model = octavo.load(onnx.parser.parse_model(HEADER + FOCUS), sizes={"H": (1, 128)})
    octavo.compile(model).save(tmp_path / "net.so")
    for executable in (octavo.compile(model), octavo.load_executable(tmp_path / "net.so")):
        for call in (executable, executable.bind):
            with pytest.raises(DataError, match=rf"^input: input x has {size} along axis 2, dimension 8\*H_8 takes {said}$"):
                call({"x": np.zeros((1, 3, size, 8), np.float32)})


@pytest.mark.parametrize("sizes", [{"H": 7}, {"H": (7, 7)}])
def test_sizes_of_which_none_fits_say_so(sizes: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedOpError, match=r"op Concat \(output tensor 'y'\): sizes .* meet, which are not equal; fix "):
        octavo.load(onnx.parser.parse_model(HEADER + HALVES), sizes=sizes)


def test_a_profile_and_integers_of_multiples(rng: np.random.Generator) -> None:
    weights = [onnx.numpy_helper.from_array(rng.normal(size=(4, 9, 3, 3)).astype(np.float32), "w")]
    proto = onnx.parser.parse_model(HEADER + UNET.replace("y = Concat", "z = Concat"))
    proto.graph.initializer.extend(weights)
    proto.graph.node.append(onnx.helper.make_node("Conv", ["z", "w"], ["y"], pads=[1, 1, 1, 1]))
    model = octavo.load(proto)
    samples = [{"x": rng.normal(size=(1, 3, *size)).astype(np.float32)} for size in ((8, 8), (12, 4), (4, 16))]
    quantized = octavo.quantize(model, octavo.profile(model, samples), preset="fast")
    executable = octavo.compile(quantized)
    for shape in ((1, 3, 4, 8), (3, 3, 20, 12)):
        x = rng.normal(size=shape).astype(np.float32)
        (given,) = executable(x).values()
        (alone,) = octavo.compile(alone_at(quantized, shape))(x).values()
        assert alone.tobytes() == given.tobytes(), shape
    with pytest.raises(DataError, match="takes multiples of 4 only: 8 or 12"):
        octavo.profile(model, [{"x": np.zeros((1, 3, 10, 8), np.float32)}])


def test_a_written_file_takes_the_same(rng: np.random.Generator) -> None:
    model = octavo.load(onnx.parser.parse_model(HEADER + FOCUS))
    profile = octavo.profile(model, [{"x": rng.normal(size=(1, 3, 8, 8)).astype(np.float32)}])
    assert octavo.load(onnx_model(octavo.quantize(model, profile))).sizes == model.sizes
