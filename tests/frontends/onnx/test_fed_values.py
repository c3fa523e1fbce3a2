"""ONNX graphs of which values decide what is computed: shapes that are fed, branches, loops."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from onnx import TensorProto
from onnx.helper import make_graph, make_node, make_tensor_value_info
from onnx.reference import ReferenceEvaluator

import octavo
from octavo.compiler.on_call import OnCallExecutable
from octavo.errors import DataError, ExecutableError, ModelError, UnsupportedOpError
from octavo.ir.graph.unbound import UnboundModel
from reference_sessions import reference_session


def typed(model, **types):
    """Let inputs and outputs of a model be of other types than float32."""
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.elem_type = types.get(value.name, value.type.tensor_type.elem_type)
    return model


def inner(name, nodes, inputs, outputs):
    kinds = {"i": TensorProto.INT64, "more": TensorProto.BOOL, "going": TensorProto.BOOL}
    values = [
        [make_tensor_value_info(each, kinds.get(each, TensorProto.FLOAT), () if each in kinds else None) for each in names]
        for names in (inputs, outputs)
    ]
    return make_graph(nodes, name, *values)


@pytest.fixture
def reshaping(make_onnx):
    proto = make_onnx([make_node("Reshape", ["x", "shape"], ["y"])], {"x": (2, 3, 4), "shape": (2,)}, {"y": None})
    return typed(proto, shape=TensorProto.INT64)


def test_a_shape_that_is_fed(reshaping):
    model = octavo.load(reshaping)
    assert isinstance(model, UnboundModel)
    assert model.deciding == ("shape",)
    executable = octavo.compile(model)
    x = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    for shape in ((4, 6), (-1, 2), (4, 6)):
        y = executable({"x": x, "shape": np.int64(shape)})["y"]
        np.testing.assert_array_equal(y, x.reshape(shape))
    assert repr(executable).endswith("; 2 compiled)")
    with pytest.raises(DataError, match="'shape' is missing; expected x, shape"):
        executable({"x": x})
    with pytest.raises(DataError, match="there is no input 'z'"):
        executable({"x": x, "shape": np.int64([4, 6]), "z": x})
    with pytest.raises(DataError, match=r"the value of input shape must have shape \[2\], got \[3\]"):
        executable({"x": x, "shape": np.int64([2, 3, 4])})
    with pytest.raises(UnsupportedOpError, match="op Reshape"):
        executable({"x": x, "shape": np.int64([5, 5])})


def test_a_value_that_is_said(reshaping):
    """With the value there is a Model as any other."""
    model = octavo.load(reshaping, values={"shape": [6, 4]})
    assert [model.tensors[each].source_name for each in model.input_ids] == ["x"]
    x = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    np.testing.assert_array_equal(octavo.compile(model)(x)["y"], x.reshape(6, 4))
    for values, said in (
        ({"size": 1}, "there is no input 'size' to give a value"),
        ({"shape": [1.5, 2]}, "in which .* is another"),
    ):
        with pytest.raises(ModelError, match=said):
            octavo.load(reshaping, values=values)


def test_what_needs_the_value_says_so(reshaping, tmp_path):
    model = octavo.load(reshaping)
    advice = r"load it with values=\{\"shape\": ...\} in Python, --value shape=... on the command line"
    for verb in (octavo.explain, lambda model: octavo.profile(model, []), lambda model: model.module):
        with pytest.raises(ModelError, match=advice):
            verb(model)
    with pytest.raises(ExecutableError, match=advice):
        octavo.compile(model).save(tmp_path / "x")


def test_what_data_decides_is_no_shape(make_onnx):
    """Where a shape depends on the data itself, each call would be compiled anew."""
    nodes = [make_node("Cast", ["x"], ["n"], to=TensorProto.INT64), make_node("Expand", ["x", "n"], ["y"])]
    with pytest.raises(UnsupportedOpError, match="op Expand"):
        octavo.load(make_onnx(nodes, {"x": (100,)}, {"y": None}))


RATE = [
    make_node("Constant", [], ["k"], value_int=16000),
    make_node("Equal", ["sr", "k"], ["is_16k"]),
    make_node(
        "If",
        ["is_16k"],
        ["y"],
        then_branch=inner("a", [make_node("Abs", ["x"], ["u"])], [], ["u"]),
        else_branch=inner("b", [make_node("ReduceMax", ["x"], ["v"])], [], ["v"]),
    ),
]


def test_a_branch_that_a_number_decides(make_onnx):
    """As voice detectors ask for the rate; the sizes that the file leaves open stay so."""
    proto = typed(make_onnx(RATE, {"x": (1, "n"), "sr": ()}, {"y": None}), sr=TensorProto.INT64)
    executable = octavo.compile(octavo.load(proto))
    for x in (np.float32([[-2, 1]]), np.float32([[3, -4, 5]])):
        np.testing.assert_array_equal(executable({"x": x, "sr": np.int64(16000)})["y"], np.abs(x))
        np.testing.assert_array_equal(executable({"x": x, "sr": np.int64(8000)})["y"], x.max(keepdims=True))
    assert repr(executable).endswith("; 2 compiled)")


def test_a_call_waits_for_no_compilation_of_other_values(make_onnx):
    """While one thread compiles for 16 kHz, another compiles for 8 and runs; a third with 16 waits for the first."""
    model = octavo.load(typed(make_onnx(RATE, {"x": (1, 2), "sr": ()}, {"y": None}), sr=TensorProto.INT64))
    begun, goes, compiled = threading.Event(), threading.Event(), []

    def compile_slowly(bound):
        compiled.append(bound)
        if len(compiled) == 1:
            begun.set()
            assert goes.wait(60)
        return octavo.compile(bound)

    executable, x = OnCallExecutable(model, compile_slowly), np.float32([[-2, 1]])
    with ThreadPoolExecutor(2) as pool:
        first, same = (pool.submit(executable, {"x": x, "sr": np.int64(16000)}) for _ in range(2))
        assert begun.wait(60)
        assert executable({"x": x, "sr": np.int64(8000)})["y"] == 1
        assert not first.done()
        goes.set()
        np.testing.assert_array_equal(first.result()["y"], same.result()["y"])
    assert len(compiled) == 2


def test_a_branch_that_data_decides(make_onnx):
    """Both branches are computed where they give one shape; else the If is refused."""
    sums = [make_node("ReduceSum", ["x"], ["s"], keepdims=0), make_node("Greater", ["s", "zero"], ["sure"])]
    for other, result in (("Neg", (6, 7)), ("Transpose", None)):
        branches = [inner(op, [make_node(op, ["x"], [f"{op}_y"])], [], [f"{op}_y"]) for op in ("Abs", other)]
        nodes = [*sums, make_node("If", ["sure"], ["y"], then_branch=branches[0], else_branch=branches[1])]
        proto = make_onnx(nodes, {"x": (6, 7)}, {"y": None}, {"zero": np.float32(0)})
        if result is None:
            with pytest.raises(UnsupportedOpError, match=r"op If .*'sure' depends on what is fed"):
                octavo.load(proto)
            continue
        executable = octavo.compile(octavo.load(proto))
        x = np.random.default_rng(0).normal(size=result).astype(np.float32)
        for each in (np.abs(x) - 0.01, -np.abs(x)):
            np.testing.assert_array_equal(executable(each)["y"], np.abs(each) if each.sum() > 0 else -each)


COUNTED = inner(
    "body",
    [
        make_node("Identity", ["going"], ["more"]),
        make_node("Cast", ["i"], ["f"], to=TensorProto.FLOAT),
        make_node("Add", ["a", "f"], ["b"]),
        make_node("Mul", ["b", "x"], ["part"]),
    ],
    ["i", "going", "a"],
    ["more", "b", "part"],
)
WHILE = inner(
    "body",
    [
        make_node("Cast", ["i"], ["f"], to=TensorProto.FLOAT),
        make_node("Add", ["a", "f"], ["b"]),
        make_node("Constant", [], ["three"], value_int=3),
        make_node("Less", ["i", "three"], ["more"]),
        make_node("Mul", ["b", "x"], ["part"]),
    ],
    ["i", "going", "a"],
    ["more", "b", "part"],
)
STEPS = {
    "fixed": (COUNTED, {"n": np.int64(3), "yes": np.array(True)}, {}),
    "fed": (COUNTED, {"yes": np.array(True)}, {"n": np.array(4)}),
    "while": (WHILE, {"n": np.int64(9), "yes": np.array(True)}, {}),
    "of a shape": (COUNTED, {"yes": np.array(True)}, None),
}


@pytest.mark.parametrize("name", STEPS)
def test_loops(make_onnx, name):
    """Of a number of steps that is fixed, fed, computed of a shape, or that a condition ends."""
    body, constants, fed = STEPS[name]
    nodes = [make_node("Loop", ["n", "yes", "x"], ["last", "all"], body=body)]
    if fed is None:
        nodes.insert(0, make_node("Size", ["x"], ["n"]))
    inputs = {"x": (3,), **dict.fromkeys(fed or {}, ())}
    proto = typed(make_onnx(nodes, inputs, {"last": None, "all": None}, constants), n=TensorProto.INT64)
    feeds = {"x": np.float32([1, -2, 0.5]), **(fed or {})}
    wanted = reference_session(proto).run(None, feeds)
    for ours, theirs in zip(octavo.compile(octavo.load(proto))(feeds).values(), wanted, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_loops_without_an_end(make_onnx):
    body = inner(
        "body", [make_node("Identity", ["going"], ["more"]), make_node("Neg", ["a"], ["b"])], ["i", "going", "a"], ["more", "b"]
    )
    nodes = [make_node("Loop", ["", "yes", "x"], ["y"], body=body)]
    with pytest.raises(UnsupportedOpError, match=r"op Loop .* never ends"):
        octavo.load(make_onnx(nodes, {"x": (2,)}, {"y": None}, {"yes": np.array(True)}))
    nodes = [
        make_node("ReduceSum", ["x"], ["s"], keepdims=0),
        make_node("Cast", ["s"], ["n"], to=TensorProto.INT64),
        make_node("Loop", ["n", "yes", "x"], ["y"], body=body),
    ]
    with pytest.raises(UnsupportedOpError, match=r"op Loop .*how many steps it makes depends on what is fed"):
        octavo.load(make_onnx(nodes, {"x": (20, 2)}, {"y": None}, {"yes": np.array(True)}))


def test_scans(make_onnx):
    """Forwards and backwards, along any axis, with results stacked behind others."""
    nodes = [make_node("Add", ["a", "row"], ["b"]), make_node("Mul", ["b", "row"], ["part"])]
    body = inner("body", nodes, ["a", "row"], ["b", "part"])
    options = {"scan_input_axes": [1], "scan_input_directions": [1], "scan_output_axes": [1], "scan_output_directions": [1]}
    for each in ({}, options):
        size = 2 if each else 4
        scan = make_node("Scan", ["first", "x"], ["last", "all"], body=body, num_scan_inputs=1, **each)
        proto = make_onnx([scan], {"first": (size,), "x": (2, 4)}, {"last": None, "all": None})
        feeds = {"first": np.ones(size, np.float32), "x": np.arange(8, dtype=np.float32).reshape(2, 4)}
        wanted = reference_session(proto).run(None, feeds)
        for ours, theirs in zip(octavo.compile(octavo.load(proto))(feeds).values(), wanted, strict=True):
            np.testing.assert_array_equal(ours, theirs)


RESIZES = [
    ({"mode": "linear", "antialias": 1}, (1, 2, 7, 9), {"sizes": [1, 2, 3, 4]}),
    ({"mode": "cubic", "antialias": 1, "exclude_outside": 1}, (1, 2, 8, 9), {"scales": [1, 1, 0.6, 0.5]}),
    ({"mode": "cubic", "exclude_outside": 1}, (1, 1, 5, 6), {"scales": [1, 1, 0.8, 1.3]}),
    ({"mode": "linear", "coordinate_transformation_mode": "align_corners"}, (1, 1, 4, 4), {"scales": [1, 1, 0.6, 0.6]}),
    ({"mode": "linear", "coordinate_transformation_mode": "half_pixel_symmetric"}, (2, 5, 4), {"scales": [1, 0.7, 1.6]}),
    ({"mode": "nearest"}, (1, 1, 2, 2), {"sizes": [1, 1, 7, 8]}),
    ({"mode": "nearest", "nearest_mode": "ceil", "axes": [2, 0]}, (2, 3, 5), {"sizes": [7, 3]}),
    ({"mode": "linear", "axes": [1, 2], "keep_aspect_ratio_policy": "not_larger"}, (2, 4, 6), {"sizes": [9, 9]}),
    (
        {"mode": "linear", "coordinate_transformation_mode": "tf_crop_and_resize", "extrapolation_value": 9.0},
        (1, 1, 4, 4),
        {"sizes": [1, 1, 3, 3], "roi": [0, 0, 0.4, 0.6, 1, 1, 1.2, 0.9]},
    ),
]


@pytest.mark.parametrize("number", range(len(RESIZES)))
def test_resizes(make_onnx, number):
    """Forms that the one op for images does not do, against ONNX's own reference."""
    attributes, shape, given = RESIZES[number]
    constants = {name: np.array(value, np.int64 if name == "sizes" else np.float32) for name, value in given.items()}
    names = ["x", *(name if name in given else "" for name in ("roi", "scales", "sizes"))]
    proto = make_onnx([make_node("Resize", names, ["y"], **attributes)], {"x": shape}, {"y": None}, constants, opset=19)
    x = np.random.default_rng(5).normal(size=shape).astype(np.float32)
    [wanted] = ReferenceEvaluator(proto).run(None, {"x": x})
    np.testing.assert_allclose(octavo.compile(octavo.load(proto))(x)["y"], wanted, rtol=1e-6, atol=1e-6)


def test_bound_values_are_of_the_file(make_onnx):
    """A number may be given for [1]; another type only where nothing is lost."""
    proto = typed(
        make_onnx([make_node("TopK", ["x", "k"], ["y", "at"])], {"x": (5,), "k": (1,)}, {"y": None}), k=TensorProto.INT64
    )
    model = octavo.load(proto, values={"k": 2})
    np.testing.assert_array_equal(octavo.compile(model)(np.float32([3, 1, 5, 4, 2]))["y"], [5, 4])
