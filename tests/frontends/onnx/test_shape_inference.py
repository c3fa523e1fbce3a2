import onnx
import pytest
from onnx import TensorProto, helper

from child_python import run_python

READERS = {
    "Add": ([1], {}),
    "Cast": (None, {"to": TensorProto.INT64}),
    "Concat": ([1], {"axis": 0}),
    "Gather": ([0], {}),
    "Slice": ([0], {}),
    "Unsqueeze": ([0], {}),
}
LOADED = """
import resource, octavo
resource.setrlimit(resource.RLIMIT_AS, (6 << 30, 6 << 30))
print(octavo.load(sys.argv[1]).module["main"].ret_ty)
"""


@pytest.mark.parametrize("op", READERS)
def test_shapes_behind_a_vector_of_a_hundred_million_take_no_memory(op, tmp_path):
    numbers, attributes = READERS[op]
    constants = [] if numbers is None else [helper.make_tensor("c", TensorProto.INT64, [len(numbers)], numbers)]
    names = ["x", *(each.name for each in constants)] + (["c"] if op == "Slice" else [])
    graph = helper.make_graph(
        [helper.make_node(op, names, ["y"], **attributes)],
        "vector",
        [helper.make_tensor_value_info("x", TensorProto.INT64, [2**27])],
        [helper.make_tensor_value_info("y", TensorProto.INT64, None)],
        constants,
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), tmp_path / "m.onnx")
    done = run_python(LOADED, tmp_path / "m.onnx")
    assert done.returncode == 0, done.stderr
    assert "Tensor" in done.stdout


def test_shapes_behind_a_vector_are_computed_of_its_numbers():
    from octavo.frontends.onnx.shape_inference import with_inferred_shapes

    nodes = [
        helper.make_node("Shape", ["x"], ["s"], start=1),
        helper.make_node("Concat", ["c", "s"], ["d"], axis=0),
        helper.make_node("Expand", ["x", "d"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "open",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, "n"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [helper.make_tensor("c", TensorProto.INT64, [1], [3])],
    )
    found = with_inferred_shapes(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9))
    assert [dim.dim_value or dim.dim_param for dim in found.graph.output[0].type.tensor_type.shape.dim] == [3, "n"]
