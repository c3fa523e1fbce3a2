"""Edits of an ONNX graph: who asks next finds them, and rows of them don't look through the graph each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from onnx import TensorProto, helper

from octavo.export.onnx.onnx_graph import OnnxGraph

EDITS: dict[str, Callable[[OnnxGraph], Any]] = {
    "set_input": lambda graph: graph.set_input(graph.nodes[2], 0, "a"),
    "one more input": lambda graph: graph.set_input(graph.nodes[2], 2, "b"),
    "rename": lambda graph: graph.rename("b", "d"),
    "rename_output": lambda graph: graph.rename_output(graph.nodes[1], "b", "d"),
    "remove": lambda graph: graph.remove(graph.nodes[1]),
    "add_after": lambda graph: graph.add_after("a", [helper.make_node("Neg", ["a"], ["d"])]),
    "add_first": lambda graph: graph.add_first(helper.make_node("Neg", ["b"], ["d"])),
    "put_before": lambda graph: graph.put_before(graph.nodes[1], [helper.make_node("Neg", ["b"], ["d"])], []),
}


def graph_of_three() -> OnnxGraph:
    nodes = [helper.make_node(op, [read], [made]) for op, read, made in (("Neg", "x", "a"), ("Abs", "a", "b"), ("Neg", "b", "c"))]
    ends = [[helper.make_tensor_value_info(name, TensorProto.FLOAT, [1])] for name in "xc"]
    return OnnxGraph(helper.make_model(helper.make_graph(nodes, "net", *ends)))


@pytest.mark.parametrize("edit", EDITS)
def test_who_asks_after_an_edit_finds_it(edit: str) -> None:
    graph = graph_of_three()
    assert (graph.producer("b"), graph.readers("b")) == (graph.nodes[1], [graph.nodes[2]])
    EDITS[edit](graph)
    for name in "xabcd":
        made = [node for node in graph.nodes if name in node.output]
        assert graph.producer(name) is (made[0] if made else None)
        found, reads = graph.readers(name), [node for node in graph.nodes for each in node.input if each == name]
        assert len(found) == len(reads)
        assert all(one is other for one, other in zip(found, reads, strict=True))


def test_a_row_of_edits_does_not_look_through_the_graph_each_time() -> None:
    graph, looks = graph_of_three(), 0

    class Watched(list[Any]):
        def __iter__(self) -> Iterator[Any]:
            nonlocal looks
            looks += 1
            return super().__iter__()

    graph.nodes = Watched(graph.nodes)
    for number in range(100):
        graph.set_input(graph.nodes[2], 0, "ab"[number % 2])
        assert graph.producer("a") is graph.nodes[0]
    assert looks == 1
    assert graph.readers("b") == [graph.nodes[2]]
    assert looks == 2
