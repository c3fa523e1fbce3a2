"""What each node of an ONNX graph reads dequantized, by the module of the quantized model. Writes nothing but copies of nodes.

A node stands for all ops of the module from the tensors before it to its result: an op written in steps reads what its steps
read. A node with several results, of which the module reads for one what is dequantized and for another the reals, becomes one
for each of them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

from tvm.relax import Var

from ...ir.graph.dataflow import DataflowView, call_to, operand_vars
from ...ir.identity import TensorId
from .onnx_graph import Node
from .source_nodes import SourceNodes


@dataclass(frozen=True, kw_only=True, slots=True)
class DequantizedReads:
    """Looks up reads before anything is written.

    Parameters
    ----------
    others
        Tensors whose nodes are not looked at: what makes them, the module writes.
    by_result
        By a tensor of the source what the module reads dequantized to make it, in order.
    """

    nodes: SourceNodes
    view: DataflowView
    others: Collection[TensorId] = ()
    by_result: dict[TensorId, list[TensorId]] = field(default_factory=dict["TensorId", "list[TensorId]"])

    def __post_init__(self) -> None:
        """Collect the reads of all ops."""
        for binding in self.view.bindings:
            if call_to(binding.value, "quantize", "dequantize") is not None:
                continue
            result = self._result(binding.var)
            for var in operand_vars(binding.value) if result not in self.others else ():
                tensor = self._dequantized(var)
                if result is not None and tensor is not None:
                    self.by_result.setdefault(result, []).append(tensor)

    def separate(self) -> None:
        """Give each result of a node a node of its own where they read differently."""
        made: dict[int, list[TensorId]] = {}
        known = {id(node): node for node in self.nodes.graph.nodes}
        for result in self._results():
            made.setdefault(id(self.nodes.node(result)), []).append(result)
        for identity, results in made.items():
            kinds = {tuple(sorted(set(self.by_result.get(result, ())))) for result in results}
            for result in results[1:] if len(kinds) > 1 else ():
                self._copy(known[identity], self.nodes.first_name(result))

    def places(self) -> Iterator[tuple[Node, int, TensorId]]:
        """Yield the inputs of nodes that read what is dequantized, and of which tensor."""
        ends = {name for var in self._variables() for name in self.nodes.names(var)}
        for result, tensors in self.by_result.items():
            aliases = {name: tensor for tensor in tensors for name in self.nodes.names(tensor)}
            waiting, own = [self.nodes.node(result)], self.nodes.names(result)
            while waiting:
                node = waiting.pop()
                for place, name in enumerate(node.input):
                    if name in aliases:
                        yield node, place, aliases[name]
                    # Of an op that leaves a tensor as it is, a resize to the size that it has, the module knows the tensor alone.
                    elif (name not in ends or name in own) and (before := self.nodes.graph.producer(name)) is not None:
                        waiting.append(before)

    def _variables(self) -> Iterator[TensorId]:
        """Yield the tensors of the source that the module has."""
        variables = (*self.view.function.params, *(binding.var for binding in self.view.bindings))
        return (TensorId(var.name) for var in variables if TensorId(var.name) in self.nodes.model.tensors)

    def _results(self) -> Iterator[TensorId]:
        """Yield those of them that a node makes."""
        return (tensor for tensor in self._variables() if self.nodes.graph.producer(self.nodes.first_name(tensor)) is not None)

    def _result(self, var: Var) -> TensorId | None:
        """Return the tensor of the source of which an op makes a part; None of what leads to none."""
        seen, waiting = {var.name}, [var]
        while waiting:
            each = waiting.pop(0)
            if TensorId(each.name) in self.nodes.model.tensors:
                return TensorId(each.name)
            waiting += [user for user in self.view.users(each) if user.name not in seen]
            seen |= {user.name for user in waiting}
        return None

    def _dequantized(self, var: Var) -> TensorId | None:
        """Return the tensor whose dequantized integers a variable holds; None of any other, weights among them."""
        integers = call_to(self.view.definition(var), "dequantize")
        made = None if integers is None else call_to(self.view.definition(integers.args[0]), "quantize")
        if made is None or not isinstance(made.args[0], Var):
            return None
        return self.nodes.origin(TensorId(made.args[0].name))

    def _copy(self, node: Node, name: str) -> None:
        """Let a copy of a node make one of its results."""
        graph = self.nodes.graph
        copy = type(node)()
        copy.CopyFrom(node)
        copy.name = graph.fresh(f"{name}_node") if node.name else ""
        graph.rename_output(node, name, graph.fresh(f"{name}_unread"))
        copy.output[:] = [each if each == name else graph.fresh(f"{name}_unread") for each in copy.output]
        graph.add_after(next(each for each in node.output if each), [copy])
