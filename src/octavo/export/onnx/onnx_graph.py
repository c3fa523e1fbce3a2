"""A thin editor over an ONNX graph: who produces and reads a tensor, and edits that keep the nodes in order.

It knows ONNX and nothing of quantization.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper

from ...frontends.onnx.graph import STANDARD_DOMAINS

# onnx's protobuf classes carry no usable types.
Node = Any

PASS_THROUGH = ("Identity", "Dropout")
"""Ops whose first output is their first input."""


class OnnxGraph:
    """One graph under edit.

    Parameters
    ----------
    proto
        The model; edited in place by `finish`.
    """

    def __init__(self, proto: Any) -> None:
        self._proto = proto
        self._graph = proto.graph
        self.nodes: list[Node] = list(proto.graph.node)
        self._initializers: dict[str, Any] = {item.name: item for item in proto.graph.initializer}
        self._shared: dict[tuple[Any, ...], str] = {}
        self._names = {name for node in self.nodes for name in (*node.input, *node.output)}
        self._names.update(self._initializers, (item.name for item in proto.graph.input))
        self._names.update(item.name for item in proto.graph.output)

    @cached_property
    def _producers(self) -> dict[str, Node]:
        return {name: node for node in self.nodes for name in node.output if name}

    @cached_property
    def _readers(self) -> dict[str, list[Node]]:
        readers: dict[str, list[Node]] = {}
        for node in self.nodes:
            for name in node.input:
                readers.setdefault(name, []).append(node)
        return readers

    @cached_property
    def has_fixed_inputs(self) -> bool:
        """Whether the graph takes inputs of one size alone, so that no shape in it depends on them."""
        types = (item.type.tensor_type for item in self._graph.input if item.name not in self._initializers)
        return all(each.HasField("shape") and all(dim.HasField("dim_value") for dim in each.shape.dim) for each in types)

    def _forget(self, *indices: str) -> None:
        """Index anew when asked next: edits come in rows, and to index after each takes as long as the graph is, each time."""
        for index in indices:
            self.__dict__.pop(index, None)

    def producer(self, name: str) -> Node | None:
        """Return the node that makes a tensor, None for inputs and initializers."""
        return self._producers.get(name)

    def readers(self, name: str) -> list[Node]:
        """Return the nodes that read a tensor, once for each reading."""
        return self._readers.get(name, [])

    def fresh(self, wish: str) -> str:
        """Return an unused tensor name near `wish`, and mark it used."""
        name, number = wish, 1
        while name in self._names:
            number += 1
            name = f"{wish}_{number}"
        self._names.add(name)
        return name

    def constant(self, name: str) -> npt.NDArray[Any] | None:
        """Return the value of an initializer or Constant node, through Identity; None if it is computed."""
        node = self.producer(name)
        while node is not None and node.op_type in PASS_THROUGH:
            name = node.input[0]
            node = self.producer(name)
        if node is None:
            item = self._initializers.get(name)
            return None if item is None else numpy_helper.to_array(item)
        value = next((attr for attr in node.attribute if node.op_type == "Constant" and attr.name == "value"), None)
        return None if value is None else numpy_helper.to_array(value.t)

    def add_constant(self, wish: str, value: npt.NDArray[Any]) -> str:
        """Add an initializer under an unused name near `wish`, and return the name."""
        name = self.fresh(wish)
        self._initializers[name] = numpy_helper.from_array(np.asarray(value, order="C"), name)
        return name

    def shared_constant(self, wish: str, value: npt.NDArray[Any]) -> str:
        """Return the name of an initializer of a value, one for all calls with an equal one, of equal dtype and shape."""
        content = np.asarray(value, order="C")
        key = content.dtype, content.shape, content.tobytes()
        if key not in self._shared:
            self._shared[key] = self.add_constant(wish, content)
        return self._shared[key]

    def add_int4(self, wish: str, value: npt.NDArray[Any]) -> str:
        """Add an initializer of 4-bit integers, two to a byte, as `add_constant` does others."""
        name = self.fresh(wish)
        self._initializers[name] = helper.make_tensor(name, onnx.TensorProto.INT4, value.shape, value.reshape(-1))
        return name

    def add_first(self, node: Node) -> None:
        """Put a node, of constants alone, before all others."""
        self.nodes.insert(0, node)
        self._forget("_producers", "_readers")

    def add_after(self, name: str, nodes: list[Node]) -> None:
        """Put nodes behind the producer of a tensor, or before all others for an input."""
        producer = self.producer(name)
        at = next((index + 1 for index, node in enumerate(self.nodes) if node is producer), 0)
        self.nodes[at:at] = nodes
        self._forget("_producers", "_readers")

    def put_before(self, node: Node, nodes: list[Node], initializers: list[Any]) -> None:
        """Put nodes that were made elsewhere before another one, with their constants; their names must be free (`names`)."""
        at = next(index for index, other in enumerate(self.nodes) if other is node)
        self.nodes[at:at] = nodes
        self._initializers |= {each.name: each for each in initializers}
        self._names.update((each.name for each in initializers), (name for each in nodes for name in each.output))
        self._forget("_producers", "_readers")

    def names(self) -> frozenset[str]:
        """Return the names that are taken."""
        return frozenset(self._names)

    def remove(self, node: Node) -> None:
        """Take a node out; its readers must have been given other inputs."""
        self.nodes = [other for other in self.nodes if other is not node]
        self._forget("_producers", "_readers")

    def rename_output(self, node: Node, old: str, new: str) -> None:
        """Let a node make `new` where it made `old`; whoever reads `old` is left as it is."""
        for index, name in enumerate(node.output):
            if name == old:
                node.output[index] = new
        self._forget("_producers")

    def rename(self, old: str, new: str) -> None:
        """Let whoever makes or reads `old` make or read `new`."""
        for node in self.nodes:
            for names in (node.input, node.output):
                names[:] = [new if name == old else name for name in names]
        self._forget("_producers", "_readers")

    def set_input(self, node: Node, index: int, name: str) -> None:
        """Let a node read `name` as its input `index`, added where the node had fewer."""
        while len(node.input) <= index:
            node.input.append("")
        node.input[index] = name
        self._forget("_readers")

    def finish(self) -> None:
        """Write the edits back, each node behind those whose results it reads; what no output depends on is dropped."""
        wanted = {item.name for item in self._graph.output}
        kept: list[Node] = []
        for node in reversed(self._in_order()):
            if any(name in wanted for name in node.output):
                kept.append(node)
                wanted.update(node.input)
                wanted.update(outer_names(node))
        del self._graph.node[:]
        self._graph.node.extend(reversed(kept))
        name_once(self._graph.node)
        for domain in {node.domain for node in kept} - {each.domain for each in self._proto.opset_import} - STANDARD_DOMAINS:
            self._proto.opset_import.append(helper.make_opsetid(domain, 1))
        before = {item.name for item in self._graph.initializer}
        del self._graph.initializer[:]
        self._graph.initializer.extend(item for name, item in self._initializers.items() if name in wanted)
        # Files of IR version 3 list initializers among the inputs.
        gone = before - wanted
        inputs = [item for item in self._graph.input if item.name not in gone]
        del self._graph.input[:]
        self._graph.input.extend(inputs)
        made = {name for node in kept for name in node.output}
        infos = [item for item in self._graph.value_info if item.name in made]
        del self._graph.value_info[:]
        self._graph.value_info.extend(infos)

    def _in_order(self) -> list[Node]:
        """Return the nodes, of which one that reads what a later one makes now stands behind that."""
        makers = {name: node for node in self.nodes for name in node.output if name}
        reads = {id(node): sorted({*node.input, *outer_names(node)}) for node in self.nodes}
        most, ordered = sum(map(len, reads.values())) + 1, dict[int, Node]()
        for node in self.nodes:
            waiting = [node]
            while waiting:
                last = waiting[-1]
                before = [makers[name] for name in reads[id(last)] if name in makers and id(makers[name]) not in ordered]
                waiting.extend(before)
                assert len(waiting) <= most, "a node reads what depends on it"
                if not before:
                    ordered.setdefault(id(last), waiting.pop())
        return list(ordered.values())


def name_once(nodes: Iterable[Node]) -> None:
    """Number nodes whose name an earlier one has: steps of one node of the source have its name, which runtimes refuse."""
    nodes = list(nodes)
    taken, seen = {node.name for node in nodes}, {""}
    for node in nodes:
        name, number = node.name, 1
        while node.name in seen and name:
            number += 1
            numbered = f"{name}_{number}"
            node.name = node.name if numbered in taken else numbered
        seen.add(node.name)


def outer_names(node: Node) -> set[str]:
    """Return the tensors that the node's subgraphs read."""
    names: set[str] = set()
    for attr in node.attribute:
        for graph in (*attr.graphs, *([attr.g] if attr.type == onnx.AttributeProto.GRAPH else [])):
            for inner in graph.node:
                names.update(inner.input)
                names.update(outer_names(inner))
    return names


def attribute(node: Node, name: str, default: Any) -> Any:
    """Return an attribute's value, or `default` where the node has none."""
    found = next((attr for attr in node.attribute if attr.name == name), None)
    return default if found is None else helper.get_attribute_value(found)


def set_attribute(node: Node, name: str, value: Any) -> None:
    """Set an attribute, replacing the one the node has."""
    kept = [attr for attr in node.attribute if attr.name != name]
    del node.attribute[:]
    node.attribute.extend([*kept, helper.make_attribute(name, value)])
