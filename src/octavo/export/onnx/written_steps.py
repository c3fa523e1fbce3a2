"""Nodes of an ONNX graph that are many ops of ours, integer products among them: in their place the module's own, with Q and DQ.

What else the graph holds is edited node by node. Where a tensor's node, or one before it that makes none of the module's tensors,
is recurrent, where a product is a step of what leads to it, a Resize of volumes, say, or where equalization changed what was
computed of constants alone in such a step, a ScatterND that adds, all ops that lead to the tensor from others of the source are
written instead. What these read, they read as the module does: as reals, or dequantized.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from onnx import helper
from tvm import relax
from tvm.relax import Var

from ...ir.graph.dataflow import DataflowView, call_to, op_name, operand_vars
from ...ir.graph.recurrence import GATES
from ...ir.identity import TensorId
from ...ir.identity.naming import NameSupply
from ...quantizer.plan import IntegerLayer
from .module_export import HANDLERS, ModuleWriter
from .onnx_graph import Node
from .source_nodes import SourceNodes


@dataclass(kw_only=True, slots=True)
class WrittenSteps:
    """Looks for them before anything is written.

    Parameters
    ----------
    results
        Tensors of the source that the module's ops are written for.
    members
        Other variables that these ops make.
    constants
        The module's constants that no other op reads.
    roundings
        By the integers of QuantizeLinears that were written how they are rounded, where files do not mean it unsaid.
    """

    nodes: SourceNodes
    view: DataflowView
    results: dict[TensorId, tuple[Node, int]] = field(default_factory=dict["TensorId", "tuple[Node, int]"])
    members: set[TensorId] = field(default_factory=set[TensorId])
    constants: set[TensorId] = field(default_factory=set[TensorId])
    roundings: dict[str, str] = field(default_factory=dict[str, str])
    _layers: dict[TensorId, IntegerLayer] = field(default_factory=dict["TensorId", "IntegerLayer"])
    """By their outputs those that read reals and quantize them when run, or not at all."""
    _steps: set[TensorId] = field(default_factory=set[TensorId])
    """The outputs of products that are steps of other nodes."""
    _changed: set[TensorId] = field(default_factory=set[TensorId])
    """What equalization divides or rotates."""

    def __post_init__(self) -> None:
        """Find the tensors, and what leads to them."""
        graph = self.nodes.graph
        self._steps = {layer.output for layer in self.nodes.plan.layers if self.nodes.is_step(layer)}
        equalization = self.nodes.plan.equalization
        self._changed = {*equalization.factors, *equalization.rotations}
        if not self._steps and not self._changed and not any(node.op_type in GATES for node in graph.nodes):
            return
        self._layers = {
            each.output: each
            for each in self.nodes.plan.layers
            if each.weight is not None and each.reads_reals and not each.is_recurrence
        }
        made = [binding.var for binding in self.view.bindings if TensorId(binding.var.name) in self.nodes.model.tensors]
        ends = {name for var in (*self.view.function.params, *made) if TensorId(var.name) in self.nodes.model.tensors
                for name in self.nodes.names(TensorId(var.name))}  # fmt: skip
        for var in made:
            name = self.nodes.first_name(TensorId(var.name))
            node = graph.producer(name)
            if node is None:
                continue
            inner = [*self._leading_to(var)[0], var]
            if self._is_recurrent(node, ends) or self._has_steps(inner) or self._has_equalized(inner):
                self.results[TensorId(var.name)] = node, list(node.output).index(name)
                self.members |= {TensorId(each.name) for each in inner[:-1]}
        own = {*self.members, *self.results}
        for param in self.view.function.params:
            users = self.view.users(param)
            users = [each for user in users for each in self._read_by(user)]
            if users and all(TensorId(user.name) in own for user in users):
                self.constants.add(TensorId(param.name))

    def write(self, dequantized: Callable[[TensorId], str]) -> list[tuple[IntegerLayer, Node]]:
        """Write the ops; return those layers that read reals, whose MatMuls read no weight yet.

        `dequantized` names a tensor of the source dequantized.
        """
        graph, layers = self.nodes.graph, dict[str, IntegerLayer]()
        writer = ModuleWriter(model=self.nodes.model, view=self.view, channels_last=False)
        for param, tensor in zip(self.view.function.params, self.nodes.model.input_ids, strict=False):
            writer.give(param, self.nodes.first_name(tensor))
        done: set[str] = set()
        for result, (node, place) in self.results.items():
            var = self.view.variables[result]
            inner, reals, rounded = self._leading_to(var)
            for each in reals:
                writer.give(each, self.nodes.first_name(TensorId(each.name)))
            for each, tensor in rounded:
                writer.give(each, dequantized(tensor))
            writer.names = NameSupply(graph.names())
            writer.nodes, before = [], len(writer.initializers)
            for each in sorted((each for each in [*inner, var] if each.name not in done), key=self.view.place_of):
                layer = self._layer_of(each)
                if layer is None:
                    writer.write(each, self.view.definition(each))
                else:
                    real = writer.read(self.view.variables[layer.inputs[0]])
                    name = writer.node("MatMul", [real, writer.names.fresh(f"{layer.weight}_real")], each)
                    writer.give(each, name)
                    layers[name] = layer
                done.add(each.name)
            name = node.output[place]
            graph.rename_output(node, name, writer.names.fresh(f"{name}_replaced"))
            graph.put_before(
                node, [*writer.nodes, helper.make_node("Identity", [writer.read(var)], [name])], writer.initializers[before:]
            )
        self.roundings = writer.roundings
        return [(layer, node) for name, layer in layers.items() if (node := graph.producer(name)) is not None]

    def _is_recurrent(self, node: Node, ends: set[str]) -> bool:
        """Return whether a node, or one before it that makes no tensor of the module, is recurrent."""
        waiting = [node]
        while waiting:
            each = waiting.pop()
            if each.op_type in GATES:
                return True
            before = (self.nodes.graph.producer(name) for name in each.input if name not in ends)
            waiting += [producer for producer in before if producer is not None]
        return False

    def _has_steps(self, variables: Sequence[Var]) -> bool:
        """Return whether a product is a step among the ops that make variables, all of which can be written."""
        return any(TensorId(each.name) in self._steps for each in variables) and self._has_handlers(variables)

    def _has_equalized(self, variables: Sequence[Var]) -> bool:
        """Return whether equalization changed a step's constant that no node of the file has, and all can be written."""
        tensors, params = self.nodes.model.tensors, self.nodes.model.params
        steps = [each for each in variables if TensorId(each.name) not in tensors and TensorId(each.name) in self._changed]
        read = [TensorId(var.name) for each in steps for var in operand_vars(self.view.definition(each))]
        return any(name in params and name not in tensors for name in read) and self._has_handlers(variables)

    def _has_handlers(self, variables: Sequence[Var]) -> bool:
        calls = [call for each in variables if isinstance(call := self.view.definition(each), relax.Call)]
        return all(op_name(call) in HANDLERS for call in calls)

    def _leading_to(self, var: Var) -> tuple[list[Var], list[Var], list[tuple[Var, TensorId]]]:
        """Return what leads to a variable from the source's tensors, and of these which are read as reals, and dequantized."""
        inner: dict[str, Var] = {}
        reals: dict[str, Var] = {}
        rounded: dict[str, tuple[Var, TensorId]] = {}
        waiting = self._reads(var)
        while waiting:
            each = waiting.pop()
            source = self._dequantized(each)
            if TensorId(each.name) in self.nodes.model.params or each.name in inner:
                continue
            if source is not None:
                rounded[each.name] = each, source
            elif TensorId(each.name) in self.nodes.model.tensors:
                reals[each.name] = each
            else:
                inner[each.name] = each
                waiting += self._reads(each)
        return list(inner.values()), list(reals.values()), list(rounded.values())

    def _reads(self, var: Var) -> list[Var]:
        """Return what an op reads; of one that quantizes rows when run, the reals."""
        layer = self._layer_of(var)
        return operand_vars(self.view.definition(var)) if layer is None else [self.view.variables[layer.inputs[0]]]

    def _read_by(self, user: Var) -> list[Var]:
        """Return who reads a constant, behind its dequantize."""
        return self.view.users(user) if call_to(self.view.definition(user), "dequantize") is not None else [user]

    def _layer_of(self, var: Var) -> IntegerLayer | None:
        """Return the layer of those that read reals whose product a variable is."""
        end = var if self._layers and call_to(self.view.definition(var), "matmul") is not None else None
        while end is not None and TensorId(end.name) not in self._layers:
            end = self.view.only_user(end)
            if end is not None and call_to(self.view.definition(end), "matmul", "quantize") is not None:
                end = None
        return None if end is None else self._layers[TensorId(end.name)]

    def _dequantized(self, var: Var) -> TensorId | None:
        """Return the tensor of the source that a variable holds dequantized."""
        call = call_to(self.view.definition(var), "dequantize")
        made = None if call is None else call_to(self.view.definition(call.args[0]), "quantize")
        if made is None or not isinstance(made.args[0], Var) or TensorId(made.args[0].name) not in self.nodes.model.tensors:
            return None
        return TensorId(made.args[0].name)
