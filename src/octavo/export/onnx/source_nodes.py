"""Nodes of an ONNX graph that stand for layers of its module. Changes nothing.

A layer is a chain of nodes, a tensor has more names behind Identity, and what the frontend writes in steps may be one node.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from ...ir.graph import Model
from ...ir.identity import TensorId
from ...quantizer.plan import IntegerLayer, QuantizationPlan
from .onnx_graph import PASS_THROUGH, Node, OnnxGraph

CONVOLUTIONS = ("Conv", "ConvTranspose")
_CLAMPS = ("Relu", "Clip")
_WEIGHTED = (*CONVOLUTIONS, "Gemm", "MatMul")
_NORMS = ("nn.layer_norm", "nn.group_norm")


@dataclass(kw_only=True, slots=True)
class SourceNodes:
    """Looks up the nodes of one graph by the ids of a model's tensors and by layers of its plan."""

    model: Model
    plan: QuantizationPlan
    graph: OnnxGraph
    layer_of: dict[TensorId, IntegerLayer] = field(init=False)
    """Layers by their outputs."""

    def __post_init__(self) -> None:
        """Index the plan's layers."""
        self.layer_of = {layer.output: layer for layer in self.plan.layers}

    def names(self, tensor: TensorId) -> list[str]:
        """Return all names that the graph has for a tensor."""
        entry = self.model.tensors[tensor]
        return [entry.source_name, *entry.aliases]

    def first_name(self, tensor: TensorId) -> str:
        """Return the name under which the graph first makes a tensor, before any Identity."""
        names = self.names(tensor)
        for name in names:
            node = self.graph.producer(name)
            if node is None or node.op_type not in PASS_THROUGH or node.input[0] not in names:
                return name
        raise AssertionError(f"{tensor}: a cycle of Identity nodes")

    def node(self, tensor: TensorId) -> Node:
        """Return the node that makes a tensor."""
        node = self.graph.producer(self.first_name(tensor))
        assert node is not None, f"{tensor} is made by no node of the ONNX graph"
        return node

    def before(self, node: Node) -> Node:
        """Return the node that makes the data of one with a single data operand."""
        for name in node.input:
            producer = self.graph.producer(name)
            while producer is not None and producer.op_type in PASS_THROUGH:
                producer = self.graph.producer(producer.input[0])
            if producer is not None and self.graph.constant(name) is None:
                return producer
        raise AssertionError(f"{node.op_type} {node.output[0]} reads no computed tensor")

    def has_node(self, layer: IntegerLayer) -> bool:
        """Return whether a node of the source stands for a layer: not where it moves data in one, or is a step of a larger op.

        Such an op, which is many layers of ours, `written_steps` writes.
        """
        if layer.output in self.model.tensors:
            return True
        if layer.weight is None or layer.source is None:
            return False
        node = self.node(layer.source)  # of rows that an image holds, with the clamp in its kernel
        return (self.before(node) if node.op_type in _CLAMPS else node).op_type in _WEIGHTED

    def is_step(self, layer: IntegerLayer) -> bool:
        """Return whether a product by a weight is a step of a node that is none, before which it reads what that does."""
        if layer.weight is None or layer.op != "matmul":
            return False
        if layer.source is None or not self.has_node(layer):
            return True
        node, read = self.node(layer.source), self.origin(layer.inputs[0])
        ends = () if read is None else self.names(read)
        while node.op_type not in _WEIGHTED:
            if any(name in ends for name in node.input):
                return True
            node = self.before(node)
        return False

    def chain(self, layer: IntegerLayer) -> Iterator[Node]:
        """Yield the nodes of a layer from its last back to the op itself."""
        assert layer.source is not None, "the caller asks for layers that have a node"
        node = self.node(layer.source)
        yield node
        if layer.weight is not None:
            while node.op_type not in _WEIGHTED:
                node = self.before(node)
                yield node
        else:
            for _ in layer.fused:
                node = self.before(node)
                yield node

    def steps(self, last: Node) -> list[Node]:
        """Return the nodes before the last of a normalization that the file writes in steps: several may read its data."""
        tensors = [fold.gone for fold in self.plan.folds if fold.op in _NORMS and self.node(fold.tensor) is last]
        return [self.node(tensor) for tensor in tensors if tensor in self.model.tensors]

    def origin(self, tensor: TensorId) -> TensorId | None:
        """Return the source tensor behind a variable that only the frontend knows: it moves data within one source op.

        None where a float op within that source op made it, or where it is rows of a constant.
        """
        while tensor not in self.model.tensors:
            layer = self.layer_of.get(tensor)
            if layer is None or not layer.inputs:
                return None
            # Rows are read by the image of them.
            tensor = layer.source if layer.weight is not None and layer.source is not None else layer.inputs[0]
        return tensor
