"""MatMul and Gemm under edit: what a product reads, and other nodes in its place. Knows nothing of quantization."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import helper

from .onnx_graph import Node, OnnxGraph, attribute


class NewNodes:
    """Nodes in order, each with an output of its own."""

    def __init__(self, graph: OnnxGraph, stem: str) -> None:
        self._graph, self._stem = graph, stem
        self.made: list[Node] = []

    def add(self, op: str, *inputs: str, **attrs: Any) -> str:
        """Add a node; return the name of what it makes."""
        output = self._graph.fresh(self._stem)
        self.made.append(helper.make_node(op, inputs, [output], name=output, **attrs))
        return output


def operand(graph: OnnxGraph, product: Node, place: int) -> str:
    """Return what a product reads, transposed where a Gemm says so."""
    x = product.input[place]
    if product.op_type != "Gemm" or not attribute(product, ("transA", "transB")[place], 0):
        return x
    turned = NewNodes(graph, f"{x}_transposed")
    found = turned.add("Transpose", x, perm=[1, 0])
    graph.add_after(x, turned.made)
    return found


def put_in_place(graph: OnnxGraph, product: Node, nodes: NewNodes) -> None:
    """Put nodes, of which the last makes the product without a Gemm's C, in its place; C is added behind.

    A Gemm's `alpha` is taken to be in them.
    """
    output, real = product.output[0], nodes.made[-1].output[0]
    if product.op_type == "Gemm" and len(product.input) > 2 and product.input[2]:
        bias, share = product.input[2], np.asarray(attribute(product, "beta", 1.0), np.float32)
        if share != 1:
            bias = nodes.add("Mul", bias, graph.add_constant(f"{product.name or output}_beta", share))
        nodes.add("Add", real, bias)
    nodes.made[-1].output[0] = output
    graph.add_after(output, nodes.made)
    graph.remove(product)
