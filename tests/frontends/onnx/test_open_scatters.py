"""Writing at places, and the greatest of scores, at open sizes: what routers of experts do. Values are ONNX Runtime's."""

import numpy as np
import pytest
from onnx import TensorProto
from onnx.helper import make_node as node
from test_open_sizes import graph

import octavo
from octavo.errors import UnsupportedOpError
from octavo.frontends import load
from reference_sessions import reference_session

ALONG = [(1, ("n", 6), ("n", 3)), (0, (6, "n"), (3, "n")), (1, ("n", 6, 4), ("n", 3, 4))]
"""An axis, and the shapes of the data and of what is written."""


@pytest.mark.parametrize("reduction", ["none", "add", "mul", "max", "min"])
@pytest.mark.parametrize(("axis", "data", "named"), ALONG)
def test_single_elements_are_put_along_a_known_axis(reduction, axis, data, named, rng):
    """All other sizes may be open; negative indices count from the end."""
    step = node("ScatterElements", ["x", "i", "u"], ["y"], axis=axis, reduction=reduction)
    proto = graph([step], {"x": data, "i": named, "u": named}, dtypes={"i": TensorProto.INT64})
    executable, session = octavo.compile(load(proto)), reference_session(proto)
    for n in (1, 4):
        sizes, count = ([n if size == "n" else size for size in shape] for shape in (data, named))
        rows = np.broadcast_to(np.arange(6), (*np.delete(count, axis), 6))
        places = np.moveaxis(rng.permuted(rows, axis=-1)[..., :3], -1, axis)
        # Without a reduction no order of equal places is promised.
        places = places - 6 * rng.integers(0, 2, places.shape) if reduction == "none" else rng.integers(-6, 6, count)
        given = {"x": rng.normal(size=sizes).astype(np.float32), "u": rng.normal(size=count).astype(np.float32)}
        given["i"] = places.astype(np.int64)
        np.testing.assert_allclose(executable(given)["y"], session.run(None, given)[0], rtol=1e-5, atol=1e-6)


def test_slices_of_open_sizes_are_put_at_known_places(rng):
    steps = [node("ScatterND", ["x", "places", "u"], ["y"]), node("ScatterND", ["x", "places", "u"], ["z"], reduction="add")]
    proto = graph(steps, {"x": (5, "n", 3), "u": (2, "n", 3)}, ("y", "z"), {"places": np.array([[2], [-1]])})
    executable, session = octavo.compile(load(proto)), reference_session(proto)
    for n in (1, 4):
        given = {"x": rng.normal(size=(5, n, 3)).astype(np.float32), "u": rng.normal(size=(2, n, 3)).astype(np.float32)}
        for found, wanted in zip(executable(given).values(), session.run(None, given), strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-6)


@pytest.mark.parametrize(
    ("step", "shapes"),
    [
        (node("ScatterElements", ["x", "i", "u"], ["y"], axis=0), {"x": ("n", 4), "i": ("n", 4), "u": ("n", 4)}),
        (node("ScatterND", ["x", "i", "u"], ["y"]), {"x": ("n", 4), "i": (2, 1), "u": (2, 4)}),
    ],
)
def test_places_along_an_open_axis_are_refused_in_one_line(step, shapes):
    with pytest.raises(UnsupportedOpError, match=r"open.*; fix n:"):
        load(graph([step], shapes, dtypes={"i": TensorProto.INT64}))


def test_the_greatest_in_any_order_among_minus_infinity(rng):
    """TopK that need not sort, of scores of which some are filled with minus infinity."""
    constants = {"low": np.asarray(-np.inf, np.float32), "k": np.asarray([2]), "last": np.asarray([-1])}
    steps = [
        node("Shape", ["x"], ["size"]),
        node("Expand", ["low", "size"], ["none"]),
        node("Where", ["mask", "x", "none"], ["among"]),
        node("TopK", ["among", "k"], ["values", "indices"], sorted=0),
        node("ReduceSum", ["values", "last"], ["y"]),
    ]
    proto = graph(steps, {"x": ("n", 5), "mask": ("n", 5)}, ("y",), constants, dtypes={"mask": TensorProto.BOOL})
    executable, session = octavo.compile(load(proto)), reference_session(proto)
    for n in (1, 3):
        given = {"x": rng.normal(size=(n, 5)).astype(np.float32), "mask": np.tile([True, True, False, True, False], (n, 1))}
        np.testing.assert_allclose(executable(given)["y"], session.run(None, given)[0], rtol=1e-6)
