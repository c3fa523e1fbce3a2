"""Indices that a graph computes of sizes: how far they go is known, and what goes beyond its table is refused."""

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.helper import make_node as node

import octavo
from octavo.errors import DataError, ModelError
from octavo.ir.graph.computed_indices import LastRow, last_rows
from octavo.runtime.size import Size
from reference_sessions import reference_session

CONSTANTS = {
    "zero": np.asarray(0),
    "one": np.asarray(1),
    "axis": np.asarray([-1]),
    "table": np.arange(24, dtype=np.float32).reshape(12, 2),
}


def made(nodes, inputs):
    values = [numpy_helper.from_array(value, name) for name, value in CONSTANTS.items()]
    shapes = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inputs.items()]
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "graph", shapes, [result], values)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def length(name, axis, to):
    return [node("Shape", [name], [f"{to}_1"], start=axis, end=axis + 1), node("Squeeze", [f"{to}_1"], [to])]


def positions():
    """Rows of a table for each of x, behind those of a past."""
    places = [node("Range", ["zero", "n", "one"], ["r"]), node("Add", ["r", "p"], ["i"])]
    picked = [node("Gather", ["table", "i"], ["t"]), node("Add", ["t", "x"], ["y"])]
    nodes = [*length("x", 1, "n"), *length("past", 1, "p"), *places, *picked]
    return made(nodes, {"x": ["batch", "sequence", 2], "past": ["batch", "past", 2]})


def mask():
    """mask[b, t] for each sample b and each t of x."""
    counted = [node("Range", ["zero", size, "one"], [f"r{size}"]) for size in "bn"]
    across = [node("Unsqueeze", ["rb", "axis"], ["rb1"]), node("Concat", ["b_1", "n_1"], ["both"], axis=0)]
    spread = [node("Expand", [name, "both"], [f"{name}_all"]) for name in ("rb1", "rn")]
    last = [node("Unsqueeze", [f"{name}_all", "axis"], [f"{name}_last"]) for name in ("rb1", "rn")]
    read = [node("Concat", ["rb1_last", "rn_last"], ["i"], axis=-1), node("GatherND", ["mask", "i"], ["m"])]
    nodes = [*length("x", 0, "b"), *length("x", 1, "n"), *counted, *across, *spread, *last, *read, node("Mul", ["m", "x"], ["y"])]
    return made(nodes, {"x": ["batch", "sequence"], "mask": ["batch", "total"]})


def test_places_behind_a_past_end_where_the_table_does():
    model = octavo.load(positions())
    assert last_rows(model.module) == (LastRow(last=Size.parse("past + sequence - 1"), rows=12),)
    executable = octavo.compile(model)
    x, past = np.ones((1, 5, 2), np.float32), np.ones((1, 7, 2), np.float32)
    session = reference_session(positions())
    np.testing.assert_array_equal(executable({"x": x, "past": past})["y"], session.run(None, {"x": x, "past": past})[0])
    said = r"past \+ sequence is 13 \(.*past has 8 along axis 1; .*x has 5 along axis 1\) and must be at most 12"
    with pytest.raises(DataError, match=said):
        executable({"x": x, "past": np.ones((1, 8, 2), np.float32)})


def test_a_mask_that_is_shorter_than_what_is_read_of_it():
    executable, session = octavo.compile(octavo.load(mask())), reference_session(mask())
    for rows in (5, 9):
        data = {"x": np.ones((3, 5), np.float32), "mask": np.arange(3 * rows, dtype=np.float32).reshape(3, rows)}
        np.testing.assert_array_equal(executable(data)["y"], session.run(None, data)[0])
    said = r"total is 4 \(.*x has 5 along axis 1; .*mask has 4 along axis 1\) and must be at least sequence, which is 5:"
    with pytest.raises(DataError, match=said):
        executable({"x": np.ones((3, 5), np.float32), "mask": np.ones((3, 4), np.float32)})


def test_a_table_bounds_the_dimension_that_picks_its_rows():
    nodes = [*length("x", 0, "n"), node("Range", ["zero", "n", "one"], ["i"]), node("Gather", ["table", "i"], ["t"])]
    proto = made([*nodes, node("Mul", ["t", "x"], ["y"])], {"x": ["rows", 2]})
    assert octavo.load(proto).sizes == {"rows": (1, 12)}
    assert octavo.load(proto, sizes={"rows": (2, 5)}).sizes == {"rows": (2, 5)}
    with pytest.raises(DataError, match="input x has 13 along axis 0, dimension rows takes 1 to 12"):
        octavo.compile(octavo.load(proto))(np.ones((13, 2), np.float32))
    with pytest.raises(ModelError, match="dimension rows takes 13 or more, and rows - 1 picks one of a table's 12 rows"):
        octavo.load(proto, sizes={"rows": (13, None)})


def test_what_counts_along_one_axis_twice_is_not_looked_at():
    """i + i goes as far as 2 (n - 1), i + (n - 1 - i) no further than n - 1: both are sums of what counts along one axis."""
    counted = [
        node("Range", ["zero", "n", "one"], ["r"]),
        node("Sub", ["n", "one"], ["last"]),
        node("Sub", ["last", "r"], ["back"]),
    ]
    nodes = [*length("x", 0, "n"), *counted, node("Add", ["r", "back"], ["i"]), node("Gather", ["table", "i"], ["t"])]
    model = octavo.load(made([*nodes, node("Mul", ["t", "x"], ["y"])], {"x": ["rows", 2]}))
    assert (last_rows(model.module), model.sizes) == ((), {"rows": (1, None)})
