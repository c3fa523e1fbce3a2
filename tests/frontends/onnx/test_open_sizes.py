"""ONNX graphs with open sizes: one module for all of them gives what ONNX Runtime gives at each, and its shapes say why."""

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.helper import make_node as node
from tvm import relax

from octavo.errors import ModelError, UnsupportedOpError
from octavo.frontends import load
from octavo.ir.graph.model import with_model
from reference_sessions import reference_session
from tvm_alone import tvm_alone

INT64_MAX = 2**63 - 1
CONSTANTS = {
    **{f"i{value}": np.asarray(value) for value in (0, 1, 2, 3, 8)},
    **{f"l{value}": np.asarray([value]) for value in (0, 1, 2, 3, 4, 8, 512)},
    "minus": np.asarray([-1]),
    "minus2": np.asarray([-2]),
    "end": np.asarray([INT64_MAX]),
    "least": np.asarray([-INT64_MAX]),
    "flat": np.asarray([0, -1]),
    "heads": np.asarray([0, 0, 2, -1]),
    "joined": np.asarray([-1, 8]),
    "twos": np.asarray([1, 2, 1]),
    "picks": np.asarray([0, -1]),
    "row": np.asarray([1, -1, 1]),
    "one": np.asarray([1.5], np.float32),
    "table": np.random.default_rng(1).normal(size=(512, 8)).astype(np.float32),
    "w8": np.random.default_rng(2).normal(size=(8, 4)).astype(np.float32),
    "s": np.asarray(0.5, np.float32),
}


def graph(nodes, inputs, outputs=("y",), constants=None, opset=18, dtypes=None):
    """A model of these nodes; constants are taken from CONSTANTS by name."""
    values = {**CONSTANTS, **(constants or {})}
    used = {name for step in nodes for name in step.input} - set(inputs)
    dtypes = dtypes or {}
    made = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info(name, dtypes.get(name, TensorProto.FLOAT), shape) for name, shape in inputs.items()],
        [helper.make_tensor_value_info(name, dtypes.get(name, TensorProto.FLOAT), None) for name in outputs],
        [numpy_helper.from_array(values[name], name) for name in sorted(used & values.keys())],
    )
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def check_form(model):
    """No shape is bound, every symbol is of an input, and each tensor has its entry's shape."""
    main = model.module["main"]
    assert [type(block) for block in main.body.blocks] == [relax.DataflowBlock]
    for binding in main.body.blocks[0].bindings:
        assert isinstance(binding, relax.VarBinding)
        assert isinstance(binding.var.ty, relax.TensorType | relax.TupleType), binding
    relax.analysis.well_formed(model.module)


def compare(proto, sizes, rng, *, model=None, low=0):
    """Run the one module at each size, beside ONNX Runtime; `sizes` are of the inputs' dimensions by name."""
    model = load(proto) if model is None else model
    check_form(model)
    run = tvm_alone(model.bound())
    session = reference_session(proto)
    for size in sizes:
        feeds = {}
        for value in proto.graph.input:
            tensor = value.type.tensor_type
            shape = [eval(dim.dim_param, {}, dict(size)) if dim.dim_param else dim.dim_value for dim in tensor.shape.dim]
            dtype = helper.tensor_dtype_to_np_dtype(tensor.elem_type)
            made = rng.normal(size=shape) if dtype.kind == "f" else rng.integers(low, 8, shape)
            feeds[value.name] = made.astype(dtype)
        wanted = session.run(None, feeds)
        given = run(*feeds.values())
        for expected, got in zip(wanted, given, strict=True):
            assert got.dtype == expected.dtype
            scale = np.abs(expected).max(initial=0)
            np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5 * scale, err_msg=str(size), strict=True)
    return model


def shape_text(model, name="y"):
    return model.tensors[model.tensors.find(name)].shape


SIZE_OPS = {
    "Gather": ([node("Gather", ["shape", "i1"], ["v"]), node("Unsqueeze", ["v", "l0"], ["d"])], "s"),
    "Slice": ([node("Slice", ["shape", "l1", "l2"], ["d"])], "s"),
    "Slice backwards": ([node("Slice", ["shape", "minus2", "least", "l0", "minus2"], ["d"])], "s"),
    "Add": ([node("Slice", ["shape", "l1", "l2"], ["v"]), node("Add", ["v", "l2"], ["d"])], "s + 2"),
    "Sub": ([node("Slice", ["shape", "l1", "l2"], ["v"]), node("Add", ["v", "l2"], ["a"]), node("Sub", ["a", "v"], ["d"])], 2),
    "Mul": ([node("ReduceProd", ["shape"], ["v"], keepdims=0), node("Reshape", ["v", "minus"], ["d"])], "b * s * 8"),
    "Div": (
        [node("Slice", ["shape", "l1", "l2"], ["v"]), node("Add", ["v", "l1"], ["a"]), node("Div", ["a", "l2"], ["d"])],
        "(s + 1) // 2",
    ),
    "ceil": (
        [
            node("Slice", ["shape", "l1", "l2"], ["v"]),
            node("Neg", ["v"], ["n"]),
            node("Div", ["n", "l1"], ["q"]),
            node("Neg", ["q"], ["d"]),
        ],
        "s",
    ),
    "Mod": (
        [node("Slice", ["shape", "l1", "l2"], ["v"]), node("Mod", ["v", "l3"], ["m"]), node("Add", ["m", "l1"], ["d"])],
        "s % 3 + 1",
    ),
    "Max": ([node("Slice", ["shape", "l1", "l2"], ["v"]), node("Max", ["v", "l1"], ["d"])], "s"),
    "Min": ([node("Slice", ["shape", "l1", "l2"], ["v"]), node("Min", ["v", "l3"], ["d"])], "min(s, 3)"),
    "Abs": ([node("Slice", ["shape", "l1", "l2"], ["v"]), node("Neg", ["v"], ["n"]), node("Abs", ["n"], ["d"])], "s"),
    "Where": (
        [
            node("Equal", ["shape", "minus"], ["e"]),
            node("ConstantOfShape", ["l3"], ["ones"], value=numpy_helper.from_array(np.asarray([1]), "v")),
            node("Where", ["e", "ones", "shape"], ["w"]),
            node("Slice", ["w", "l1", "l2"], ["d"]),
        ],
        "s",
    ),
    "Greater": (
        [
            node("Slice", ["shape", "l1", "l2"], ["v"]),
            node("Greater", ["v", "l0"], ["g"]),
            node("Not", ["g"], ["n"]),
            node("Where", ["n", "l8", "v"], ["d"]),
        ],
        "s",
    ),
    "Cast": (
        [
            node("Slice", ["shape", "l1", "l2"], ["v"]),
            node("Cast", ["v"], ["c"], to=TensorProto.INT32),
            node("Cast", ["c"], ["d"], to=TensorProto.INT64),
        ],
        "s",
    ),
    "Concat": (
        [
            node("Slice", ["shape", "l1", "l2"], ["v"]),
            node("Concat", ["v", "l2"], ["c"], axis=0),
            node("ReduceSum", ["c"], ["d"]),
        ],
        "s + 2",
    ),
    "Squeeze": (
        [
            node("Slice", ["shape", "l1", "l2"], ["v"]),
            node("Squeeze", ["v", "l0"], ["q"]),
            node("Unsqueeze", ["q", "l0"], ["u"]),
            node("Expand", ["u", "l1"], ["d"]),
        ],
        "s",
    ),
    "Size": ([node("Size", ["x"], ["v"]), node("Div", ["v", "i8"], ["q"]), node("Unsqueeze", ["q", "l0"], ["d"])], "b * s"),
    "float": (
        [
            node("Slice", ["shape", "l1", "l2"], ["v"]),
            node("Cast", ["v"], ["c"], to=TensorProto.FLOAT),
            node("Mul", ["c", "s"], ["h"]),
            node("Ceil", ["h"], ["f"]),
            node("Cast", ["f"], ["d"], to=TensorProto.INT64),
        ],
        "(s + 1) // 2",
    ),
}


@pytest.mark.parametrize("name", SIZE_OPS)
def test_arithmetic_of_sizes(rng, name):
    """The size that it gives is how many ones there are."""
    nodes, wanted = SIZE_OPS[name]
    one = numpy_helper.from_array(np.asarray([1], np.float32), "v")
    steps = [node("Shape", ["x"], ["shape"]), *nodes, node("ConstantOfShape", ["d"], ["y"], value=one)]
    proto = graph([*steps, node("ReduceSum", ["x"], ["z"])], {"x": ("b", "s", 8)}, ("y", "z"))
    model = compare(proto, [{"b": b, "s": s} for b, s in ((1, 1), (2, 5), (3, 4))], rng)
    assert shape_text(model) == (wanted,)


def of_shape(*target):
    """Nodes that put a shape "t" together from the sizes of x: an int is an axis, a name a constant."""
    nodes = [node("Shape", ["x"], ["shape"])]
    parts = []
    for place, part in enumerate(target):
        if isinstance(part, int):
            nodes.append(node("Slice", ["shape", f"l{part}", f"l{part + 1}"], [f"p{place}"]))
            parts.append(f"p{place}")
        else:
            parts.append(part)
    return [*nodes, node("Concat", parts, ["t"], axis=0)]


OPS = {
    "Reshape -1": ([node("Reshape", ["x", "joined"], ["y"])], ("b * s", 8)),
    "Reshape 0": ([node("Reshape", ["x", "heads"], ["y"])], ("b", "s", 2, 4)),
    "Reshape there and back": (
        [node("Reshape", ["x", "joined"], ["f"]), *of_shape(0, 1, "minus"), node("Reshape", ["f", "t"], ["y"])],
        ("b", "s", 8),
    ),
    "Flatten": ([node("Flatten", ["x"], ["y"], axis=2)], ("b * s", 8)),
    "Expand": ([*of_shape("l2", 0, 1, "l8"), node("Expand", ["x", "t"], ["y"])], (2, "b", "s", 8)),
    "Expand a row": ([*of_shape(0, 1, 1), node("Expand", ["one", "t"], ["y"])], ("b", "s", "s")),
    "Tile": ([*of_shape("l1", 1, "l2"), node("Tile", ["x", "t"], ["y"])], ("b", "s * s", 16)),
    "Tile by constants": ([node("Tile", ["x", "twos"], ["y"])], ("b", "s * 2", 8)),
    "Slice the last": ([node("Slice", ["x", "minus", "end", "l1"], ["y"])], ("b", 1, 8)),
    "Slice off the last": ([node("Slice", ["x", "l0", "minus", "l1"], ["y"])], ("b", "s - 1", 8)),
    "Slice every second": ([node("Slice", ["x", "l0", "end", "l1", "l2"], ["y"])], ("b", "(s + 1) // 2", 8)),
    "Slice backwards": ([node("Slice", ["x", "minus", "least", "l1", "minus"], ["y"])], ("b", "s", 8)),
    "Slice backwards in part": ([node("Slice", ["x", "minus2", "least", "l1", "minus"], ["y"])], ("b", "s - 1", 8)),
    "Slice a table": ([*of_shape(1), node("Slice", ["table", "l0", "t"], ["c"]), node("Add", ["x", "c"], ["y"])], ("b", "s", 8)),
    "Gather the last": ([node("Gather", ["x", "minus"], ["y"], axis=1)], ("b", 1, 8)),
    "Gather first and last": ([node("Gather", ["x", "picks"], ["y"], axis=1)], ("b", 2, 8)),
    "Gather positions": (
        [
            *of_shape(1),
            node("Squeeze", ["t"], ["q"]),
            node("Range", ["i0", "q", "i1"], ["r"]),
            node("Gather", ["table", "r"], ["y"]),
        ],
        ("s", 8),
    ),
    "ConstantOfShape": ([*of_shape(0, 1), node("ConstantOfShape", ["t"], ["y"])], ("b", "s")),
    "causal mask": (
        [
            *of_shape(1, 1),
            node("ConstantOfShape", ["t"], ["m"], value=numpy_helper.from_array(np.asarray([1], np.float32), "v")),
            node("Trilu", ["m", "i1"], ["y"], upper=1),
        ],
        ("s", "s"),
    ),
    "lower": ([node("Trilu", ["x"], ["y"], upper=0)], ("b", "s", 8)),
    "Pad": ([*of_shape("l0", 1, "l0", "l1", "l2", "l0"), node("Pad", ["x", "t", "s"], ["y"])], ("b + 1", "s * 2 + 2", 8)),
    "Split in two": (
        [node("Split", ["x"], ["y", "z"], axis=1, num_outputs=2), node("Relu", ["z"], ["w"])],
        ("b", "(s + 1) // 2", 8),
    ),
    "Split off one": (
        [
            *of_shape(1),
            node("Sub", ["t", "l1"], ["rest"]),
            node("Concat", ["l1", "rest"], ["parts"], axis=0),
            node("Split", ["x", "parts"], ["z", "y"], axis=1),
        ],
        ("b", "s - 1", 8),
    ),
    "CumSum": ([node("CumSum", ["x", "i1"], ["y"])], ("b", "s", 8)),
    "CumSum of what follows": ([node("CumSum", ["x", "i1"], ["y"], reverse=1, exclusive=1)], ("b", "s", 8)),
    "a size as a value": (
        [*of_shape(1), node("Cast", ["t"], ["c"], to=TensorProto.FLOAT), node("Div", ["x", "c"], ["y"])],
        ("b", "s", 8),
    ),
    "MatMul of activations": (
        [node("Transpose", ["x"], ["xt"], perm=[0, 2, 1]), node("MatMul", ["x", "xt"], ["p"]), node("Softmax", ["p"], ["y"])],
        ("b", "s", "s"),
    ),
    "MatMul": ([node("MatMul", ["x", "w8"], ["y"])], ("b", "s", 4)),
    "Resize": (
        [
            node("Unsqueeze", ["x", "l1"], ["u"]),
            node(
                "Resize",
                ["u", "", "scales"],
                ["y"],
                mode="nearest",
                coordinate_transformation_mode="asymmetric",
                nearest_mode="floor",
            ),
        ],
        ("b", 1, "s * 2", 24),
    ),
    "Resize to sizes": (
        [
            *of_shape(0, "l1", 1, 1),
            node("Unsqueeze", ["x", "l1"], ["u"]),
            node("Resize", ["u", "", "", "t"], ["y"], mode="linear", coordinate_transformation_mode="half_pixel"),
        ],
        ("b", 1, "s", "s"),
    ),
}


@pytest.mark.parametrize("name", OPS)
def test_ops_that_take_sizes(rng, name):
    nodes, wanted = OPS[name]
    scales = {"scales": np.float32([1, 1, 2, 3])}
    proto = graph([*nodes, node("ReduceSum", ["x"], ["total"])], {"x": ("b", "s", 8)}, ("y", "total"), scales)
    model = compare(proto, [{"b": b, "s": s} for b, s in ((1, 2), (2, 5), (3, 4), (1, 9))], rng)
    assert shape_text(model) == wanted


def conv_net(rng):
    """Convolutions, strides, pools and resizing; height and width are open."""
    weights = {
        "k1": rng.normal(size=(8, 3, 3, 3)).astype(np.float32),
        "k2": rng.normal(size=(8, 1, 3, 3)).astype(np.float32),
        "k3": rng.normal(size=(4, 8, 1, 1)).astype(np.float32),
        "k4": rng.normal(size=(4, 8, 3, 3)).astype(np.float32),
        "axes": np.asarray([2, 3]),
        "up": rng.normal(size=(4, 4, 2, 2)).astype(np.float32),
        "d": rng.normal(size=(4, 5)).astype(np.float32),
        "scales": np.float32([1, 1, 2, 2]),
        **{f"bn{part}": rng.uniform(0.5, 1.5, 8).astype(np.float32) for part in "sbmv"},
    }
    nodes = [
        node("Conv", ["x", "k1"], ["c1"], strides=[2, 2], pads=[1, 1, 1, 1]),
        node("BatchNormalization", ["c1", "bns", "bnb", "bnm", "bnv"], ["n1"]),
        node("Relu", ["n1"], ["r1"]),
        node("Conv", ["r1", "k2"], ["c2"], group=8, auto_pad="SAME_UPPER"),
        node("MaxPool", ["c2"], ["p1"], kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]),
        node("Conv", ["p1", "k4"], ["s1"], strides=[2, 2], auto_pad="SAME_LOWER"),
        node("MaxPool", ["s1"], ["s2"], kernel_shape=[3, 3], strides=[2, 2], auto_pad="SAME_UPPER"),
        node("ReduceMax", ["s2", "axes"], ["small"], keepdims=0),
        node("Conv", ["p1", "k3"], ["c3"]),
        node("AveragePool", ["c3"], ["p2"], kernel_shape=[2, 2], strides=[1, 1]),
        node(
            "Resize",
            ["c3", "", "scales"],
            ["big"],
            mode="nearest",
            coordinate_transformation_mode="asymmetric",
            nearest_mode="floor",
        ),
        node("ConvTranspose", ["c3", "up"], ["t"], strides=[2, 2]),
        node("Add", ["big", "t"], ["map"]),
        node("GlobalAveragePool", ["p2"], ["g"]),
        node("Flatten", ["g"], ["f"]),
        node("MatMul", ["f", "d"], ["y"]),
    ]
    return graph(nodes, {"x": ("N", 3, "H", "W")}, ("y", "map", "small"), weights)


def test_open_height_and_width(rng):
    sizes = [{"N": n, "H": h, "W": w} for n, h, w in ((1, 32, 32), (3, 17, 40), (2, 35, 23), (1, 8, 9))]
    model = compare(conv_net(rng), sizes, rng)
    assert model.sizes == {"N": (1, None), "H": (5, None), "W": (5, None)}  # with less a pool leaves nothing
    assert shape_text(model, "c1") == ("N", 8, "(H - 1) // 2 + 1", "(W - 1) // 2 + 1")
    assert shape_text(model) == ("N", 5)


def past_net(mask=("b", "total")):
    """Keys and values of a past of tokens, extended by those of a sequence, and a mask of all of them."""
    nodes = [
        node("Concat", ["past", "x"], ["keys"], axis=1),
        node("Transpose", ["keys"], ["kt"], perm=[0, 2, 1]),
        node("MatMul", ["x", "kt"], ["scores"]),
        node("Unsqueeze", ["mask", "l1"], ["m"]),
        node("Add", ["scores", "m"], ["masked"]),
        node("Softmax", ["masked"], ["p"]),
        node("MatMul", ["p", "keys"], ["y"]),
    ]
    return graph(nodes, {"x": ("b", "sequence", 8), "mask": mask, "past": ("b", "past", 8)}, ("y", "keys"))


def of_past(*triples):
    return [{"b": b, "sequence": s, "past": p, "total": p + s} for b, s, p in triples]


def test_a_dimension_that_must_equal_a_sum_is_that_sum(rng):
    model = compare(past_net(), of_past((1, 1, 5), (3, 4, 0), (2, 7, 3)), rng)
    assert model.sizes == {"b": (1, None), "sequence": (1, None), "past": (0, None)}
    assert shape_text(model, "mask") == ("b", "past + sequence")
    assert shape_text(model, "keys") == ("b", "past + sequence", 8)


def test_a_name_that_is_a_sum_is_that_sum(rng):
    compare(past_net(("b", "past + sequence")), of_past((1, 2, 3), (2, 1, 0)), rng)
    assert list(load(past_net(("b", "sequence-total"))).sizes) == ["b", "sequence", "past"], "no sum of what inputs have"


def test_a_fixed_sum_fixes_what_it_is_of(rng):
    model = load(past_net(), sizes={"total": 6, "sequence": (2, 4)})
    assert shape_text(model, "past") == ("b", "6 - sequence", 8)
    assert model.sizes == {"b": (1, None), "sequence": (2, 4)}


def test_one_name_is_one_symbol_and_no_name_is_one_of_its_own(rng):
    proto = graph([node("Flatten", ["x"], ["y"])], {"x": ("n", 2, None, "n"), "z": ("n",)}, ("y", "z"))
    model = load(proto)
    assert model.tensors["x"].shape == ("n", 2, "x_dim2", "n")
    assert model.sizes == {"n": (1, None), "x_dim2": (1, None)}
    [symbol] = {dim.name for dim in (model.module["main"].params[0].ty.shape[0], model.module["main"].params[1].ty.shape[0])}
    assert symbol == "n"


def test_sizes_fix_and_bound_dimensions(rng):
    proto = graph([node("Softmax", ["x"], ["y"], axis=0)], {"x": ("b", "s", "t")})
    model = load(proto, sizes={"b": 2, "s": (2, 512), "t": (None, 9)})
    assert model.tensors["y"].shape == (2, "s", "t")
    assert model.sizes == {"s": (2, 512), "t": (1, 9)}
    attrs = model.module["main"].attrs
    assert ({str(k): int(v) for k, v in attrs["tir_var_lower_bound"].items()}) == {"s": 2, "t": 1}
    assert ({str(k): int(v) for k, v in attrs["tir_var_upper_bound"].items()}) == {"s": 512, "t": 9}


def test_shapes_name_and_fix_dimensions():
    proto = graph([node("Softmax", ["x"], ["y"], axis=0)], {"x": ("b", "s"), "z": ("b", "s")}, ("y", "z"))
    model = load(proto, shapes={"x": ("batch", 128)}, sizes={"batch": (1, 4)})
    assert [model.tensors[name].shape for name in ("x", "z")] == [("batch", 128)] * 2
    assert model.sizes == {"batch": (1, 4)}
    fixed = graph([node("Softmax", ["x"], ["y"], axis=0)], {"x": (2, 8)})
    assert load(fixed, shapes={"x": ("rows", 8)}).tensors["y"].shape == ("rows", 8)


def test_a_batch_of_samples_apart_keeps_its_bounds():
    proto = graph([node("Relu", ["x"], ["y"])], {"x": ("b", 8)})
    model = load(proto, sizes={"b": (1, 8)})
    assert (model.any_batch, model.batch_range, model.sizes) == (True, (1, 8), {})
    assert load(proto, sizes={"b": 4}).tensors["y"].shape == (4, 8)
    assert load(proto, shapes={"x": ("b", 8)}).sizes == {"b": (1, None)}


def test_a_table_bounds_what_is_cut_off_it():
    nodes, _ = OPS["Slice a table"]
    proto = graph(nodes, {"x": ("b", "s", 8)})
    assert load(proto).sizes["s"] == (1, 512)
    assert load(proto, sizes={"s": (2, 100)}).sizes["s"] == (2, 100)


def test_a_far_end_is_the_end_of_an_axis_that_it_bounds(rng):
    far, near = {"far": np.asarray([9999999])}, {"far": np.asarray([70000])}
    halves = [node("Slice", ["x", "l0", "end", "l1", "l2"], ["h"]), node("Slice", ["h", "l1", "far", "l1"], ["y"])]
    proto = graph(halves, {"x": ("b", "s", 8)}, constants=far)
    compare(proto, [{"b": 1, "s": 4}, {"b": 2, "s": 7}], rng)
    assert load(proto).sizes == {"b": (1, None), "s": (1, 19999998)}
    assert "min" not in str(load(proto).module["main"].ret_ty)
    assert load(graph(halves, {"x": ("b", "s", 8)}, constants=near)).sizes["s"] == (1, None)


def test_a_tensor_bounds_what_its_size_is_made_of(rng):
    """A convolution leaves s - 3, what cuts the last of s - 2 off max(s - 3, 0): they are one from 3 on; 4 leave a pixel."""
    weights = {f"w{taps}": rng.normal(size=(2, 1, 1, taps)).astype(np.float32) for taps in (3, 4)}
    nodes = [
        node("Conv", ["x", "w4"], ["a"]),
        node("Conv", ["x", "w3"], ["b"]),
        node("Slice", ["b", "l0", "minus", "l3"], ["c"]),
        node("Add", ["a", "c"], ["y"]),
    ]
    proto = graph(nodes, {"x": ("n", 1, 1, "s")}, constants=weights)
    compare(proto, [{"n": 1, "s": 4}, {"n": 2, "s": 9}], rng)
    assert load(proto).sizes["s"] == (4, None)
    with pytest.raises(ModelError, match="dimension s may be 3 at most, for which s - 3 is less than 1"):
        load(proto, sizes={"s": (1, 3)})
    too_few, least = "its windows leave 1 x 0 pixels of 1 x 3; larger inputs are needed", "is 3 and must be at least 4"
    with pytest.raises(UnsupportedOpError, match=rf"Conv.*: {too_few}; dimension s {least}$"):
        load(proto, sizes={"s": 3})
    with pytest.raises(UnsupportedOpError, match=rf"Conv.*: {too_few}; .*; dimension s {least}$"):
        load(proto, shapes={"x": (1, 1, 1, 3)})


def test_a_global_pool_needs_a_pixel(rng):
    nodes = [node("Slice", ["x", "l2", "end", "l3"], ["a"]), node("GlobalMaxPool", ["a"], ["y"])]
    proto = graph(nodes, {"x": ("n", 2, 3, "s")}, constants={"end": np.array([2**40])})
    compare(proto, [{"n": 1, "s": 3}, {"n": 2, "s": 9}], rng)
    assert load(proto).sizes["s"] == (3, None)


def test_a_size_of_nothing_is_named_where_an_op_fails_for_it():
    nodes = [node("Reshape", ["x", "form"], ["y"])]
    proto = graph(nodes, {"x": ("b", "s", 8)}, constants={"form": np.array([0, 0, -1, 4])})
    with pytest.raises(UnsupportedOpError, match=r"Reshape .*; dimension s is 0 and must be at least 1$"):
        load(proto, sizes={"b": 1, "s": 0})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sizes": {"q": 3}}, "there is no dimension 'q' to give a size; the open ones are b, s"),
        ({"sizes": {"s": (5, 2)}}, "bounds 5..2 of dimension 's' hold no size"),
        ({"sizes": {"s": (1, 2, 3)}}, "expected bounds"),
        ({"sizes": {"s": "long"}}, "expected a size, or a pair of bounds, of dimension 's', got str 'long'"),
        ({"sizes": {"s": -1}}, "must not be negative"),
        ({"sizes": {"s": 2**70}}, "dimension 's' is above 2147483647"),
        ({"sizes": {"s": (1, 2**63)}}, "dimension 's' is above 2147483647"),
        ({"sizes": {"s": (600, None)}}, "dimension s must be 512 here, which its bounds 600.. exclude"),
        (
            {"shapes": {"x": ("b", 1.5, 8)}},
            "expected a tuple of whole numbers and names as the shape of input 'x', got float 1.5",
        ),
    ],
)
def test_options_that_do_not_fit(options, message):
    nodes, _ = OPS["Slice a table"]
    with pytest.raises(ModelError) as error:
        load(graph(nodes, {"x": ("b", "s", 8)}), **options)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ([node("NonZero", ["x"], ["y"])], "the shape of its result depends on values"),
        ([node("Cast", ["z"], ["t"], to=TensorProto.INT64), node("Reshape", ["x", "t"], ["y"])], "its shape depends on values"),
        ([node("Add", ["x", "table"], ["y"])], "sizes 7 and 8 meet, which are not equal"),
    ],
)
def test_what_cannot_be_open_says_why(nodes, message):
    with pytest.raises(UnsupportedOpError) as error:
        load(graph(nodes, {"x": ("b", "s", 7), "z": (20,)}))
    assert message in str(error.value)
    assert "output tensor 'y'" in str(error.value)


def test_a_loaded_module_keeps_its_bounds():
    proto = graph([node("Softmax", ["x"], ["y"], axis=0)], {"x": ("b", "s")})
    model = load(proto, sizes={"s": (2, None)})
    again = load(with_model(model.module, model))
    assert again.sizes == model.sizes == {"b": (1, None), "s": (2, None)}
