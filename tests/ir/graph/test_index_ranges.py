"""Inputs that pick rows of a table say which integers they may hold, and a call refuses others in one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import octavo
from octavo.errors import DataError
from octavo.ir.graph.inputs import input_specs
from reference_sessions import reference_session

TABLES = {"words": 20, "kinds": 12}


def model_of(nodes: list[Any], inputs: dict[str, int], outputs: list[str]) -> octavo.Model:
    """Return a model that picks rows of two tables of 20 and 12 rows."""
    rng = np.random.default_rng(0)
    tables = [numpy_helper.from_array(rng.standard_normal((rows, 8)).astype(np.float32), name) for name, rows in TABLES.items()]
    graph = helper.make_graph(
        nodes,
        "tables",
        [helper.make_tensor_value_info(name, dtype, ["batch", "length"]) for name, dtype in inputs.items()],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
        tables,
    )
    return octavo.load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))


def words_and_kinds() -> octavo.Model:
    """Return a model of two inputs, of which the second one picks from both tables."""
    nodes = [
        helper.make_node("Gather", ["words", "ids"], ["word"]),
        helper.make_node("Gather", ["words", "both"], ["other"]),
        helper.make_node("Gather", ["kinds", "both"], ["kind"]),
        helper.make_node("Add", ["word", "kind"], ["sum"]),
        helper.make_node("Add", ["sum", "other"], ["y"]),
    ]
    return model_of(nodes, {"ids": TensorProto.INT64, "both": TensorProto.INT32}, ["y"])


def test_negative_indices_count_from_the_end_and_two_tables_allow_what_both_have() -> None:
    specs = {spec.source_name: spec.indices for spec in input_specs(words_and_kinds())}
    assert specs == {"ids": (-20, 19), "both": (-12, 11)}


def test_indices_that_the_graph_computes_are_not_the_callers() -> None:
    clipped = [
        helper.make_node("Constant", [], ["five"], value=numpy_helper.from_array(np.array(5, np.int64))),
        helper.make_node("Min", ["ids", "five"], ["small"]),
        helper.make_node("Gather", ["words", "small"], ["y"]),
    ]
    model = model_of(clipped, {"ids": TensorProto.INT64}, ["y"])
    assert [spec.indices for spec in input_specs(model)] == [None]
    executable = octavo.compile(model)
    large, five = np.full((1, 3), 10**9, np.int64), np.full((1, 3), 5, np.int64)
    assert (executable({"ids": large})["y"] == executable({"ids": five})["y"]).all()


@pytest.mark.parametrize("word", [20, 10**9, -21, -(10**12)])
def test_a_call_refuses_ids_outside_the_table_and_runs_the_next_one(word: int, tmp_path: Path) -> None:
    model = words_and_kinds()
    octavo.compile(model).save(tmp_path / "tables.so")
    executable = octavo.load_executable(tmp_path / "tables.so")
    ids, both = np.array([[0, 19, -20]], np.int64), np.array([[0, 11, -12]], np.int32)
    expected = executable({"ids": ids, "both": both})["y"]
    wrong = ids.copy()
    wrong[0, 1] = word
    with pytest.raises(DataError, match=rf"ids holds {word} at index \[0, 1\]; .*whose indices are -20 to 19"):
        executable({"ids": wrong, "both": both})
    assert (executable({"ids": ids, "both": both})["y"] == expected).all()
    with pytest.raises(DataError, match="batch 0: input ids holds"):
        octavo.profile(model, [{"ids": wrong, "both": both}])


def test_the_rows_are_onnx_runtimes() -> None:
    model = words_and_kinds()
    session = reference_session(model.source.complete())
    data = {"ids": np.array([[-20, 7, 19]], np.int64), "both": np.array([[-12, 11, 3]], np.int32)}
    assert (octavo.compile(model)(data)["y"] == session.run(None, data)[0]).all()
