"""The nodes of an ONNX graph as a list that is written anew: what every rewriting of a graph ends with. Knows no op."""

from __future__ import annotations

from collections.abc import Iterable

import onnx


def replace_nodes(graph: onnx.GraphProto, nodes: Iterable[onnx.NodeProto]) -> None:
    """Let a graph hold copies of these nodes, which may be its own, and no others."""
    kept = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del graph.node[:]
    graph.node.extend(kept)
