"""Resolve If, Loop and Scan of an ONNX graph: the branch that is taken and the steps that are made become nodes of the graph.

What decides must be known without a run: a condition, a number of steps. Of an If that data decides, both branches are computed
and one result is chosen, where both have one shape.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx.helper
import onnx.numpy_helper

from ...errors import UnsupportedOpError
from ...ir.identity import NameSupply
from ..symbols import Size, size_text
from .fed_values import are_decided_by_small_inputs
from .graph import describe, opset_of, replace_nodes
from .prepare import Known, known_of

CONTROL_FLOW = frozenset({"If", "Loop", "Scan"})
"""Ops that hold graphs."""
_MAX_NODES = 2**16
"""Of what a loop is unrolled to: beyond that compiling takes hours."""
_START = "octavo_start"
"""Attribute of a Loop of which steps are made already: their number."""
_PARTS = "octavo_parts"
"""Attribute of such a Loop: names of what its steps gave."""


def resolve(model: onnx.ModelProto, shapes: Mapping[str, Sequence[Size]], origin: str) -> None:
    """Put nodes in place of control flow, of that inside of it too.

    Raises
    ------
    UnsupportedOpError
        For the first node of which it is not known before a run what is computed.
    """
    while any(node.op_type in CONTROL_FLOW for node in model.graph.node):
        known = known_of(model, shapes, origin)
        resolver = _Resolver(model, known, origin)
        nodes: list[onnx.NodeProto] = []
        is_changed = False
        for node in model.graph.node:
            made = resolver.resolved(node)
            nodes.extend([node] if made is None else made)
            is_changed = is_changed or made is not None
        if not is_changed:
            nodes = resolver.with_both_branches(shapes)
        if len(nodes) > _MAX_NODES:
            raise UnsupportedOpError(
                f"{origin}: its loops make more than {_MAX_NODES} nodes step by step; export the model for fewer steps, or "
                "one step as a model, and call that in a loop"
            )
        replace_nodes(model.graph, nodes)


class _Resolver:
    """What is known of a graph, names that are free in it, and the nodes that take the place of one.

    Parameters
    ----------
    model
        The model; constants of graphs inside of it become its own.
    known
        What is known of it.
    origin
        The file, for messages.
    """

    def __init__(self, model: onnx.ModelProto, known: Known, origin: str) -> None:
        self._graph, self._opset = model.graph, opset_of(model)
        self._known, self._origin = known, origin
        self._supply = NameSupply(_names_in(model.graph))

    def resolved(self, node: onnx.NodeProto) -> list[onnx.NodeProto] | None:
        """Return the nodes that take the place of a node; None where it stays, as what decides it is not known (yet)."""
        if node.op_type == "If" and node.input[0] in self._known.values:
            wanted = "then_branch" if self._is_true(node.input[0]) else "else_branch"
            return self._inlined(_attribute(node, wanted).g, list(node.output), {})
        if node.op_type == "Loop":
            return self._loop(node)
        return self._scan(node) if node.op_type == "Scan" else None

    def with_both_branches(self, shapes: Mapping[str, Sequence[Size]]) -> list[onnx.NodeProto]:
        """Return the nodes of the graph with both branches of the first If; raise where that does not do."""
        position, node = next((at, node) for at, node in enumerate(self._graph.node) if node.op_type in CONTROL_FLOW)
        if node.op_type != "If" or are_decided_by_small_inputs(self._graph, [node.input[0]], shapes):
            self._refuse(node, shapes)
        results: list[list[str]] = []
        nodes = list(self._graph.node)
        steps: list[onnx.NodeProto] = []
        for branch in ("then_branch", "else_branch"):
            results.append([self._supply.fresh(name) for name in node.output])
            steps.extend(self._inlined(_attribute(node, branch).g, results[-1], {}))
        for output, then, other in zip(node.output, *results, strict=True):
            steps.append(onnx.helper.make_node("Where", [node.input[0], then, other], [output]))
        self._check_results(node, [*nodes[:position], *steps], results, shapes)
        return [*nodes[:position], *steps, *nodes[position + 1 :]]

    def _check_results(
        self,
        node: onnx.NodeProto,
        steps: Iterable[onnx.NodeProto],
        results: Sequence[Sequence[str]],
        shapes: Mapping[str, Sequence[Size]],
    ) -> None:
        """Refuse branches whose results are not of one shape: one of both could not stand for either."""
        copy = onnx.ModelProto(ir_version=8, opset_import=[onnx.helper.make_opsetid("", self._opset)])
        copy.graph.CopyFrom(self._graph)
        del copy.graph.output[:]
        replace_nodes(copy.graph, (step for step in steps if step.op_type != "Where"))
        found = known_of(copy, shapes, self._origin).shapes
        for then, other in zip(*results, strict=True):
            if found.get(then) is None or found.get(then) != found.get(other):
                self._refuse(node, shapes)

    def _refuse(self, node: onnx.NodeProto, shapes: Mapping[str, Sequence[Size]]) -> None:
        open_sizes = {size_text(size) for shape in shapes.values() for size in shape if not isinstance(size, int)}
        fixing = f"fix open sizes ({', '.join(sorted(open_sizes))}) that it may depend on, or " if open_sizes else ""
        if node.op_type == "If":
            why = f"its condition {node.input[0]!r} depends on what is fed"
            what = "export the model with one branch, or each branch as a model"
        else:
            why, what = "how many steps it makes depends on what is fed", "export the model for a number of steps"
        raise UnsupportedOpError(f"{self._origin}: {describe(node)}: {why}; {fixing}{what}")

    def _is_true(self, name: str) -> bool:
        return bool(self._known.values[name].reshape(-1)[0])

    # ----------------------------------------------------------------------------------------------------------- loops

    def _loop(self, node: onnx.NodeProto) -> list[onnx.NodeProto] | None:
        """Return all steps of a Loop, or one step and the rest where each one says whether another follows."""
        limit, condition, *carried = list(node.input)
        values = self._known.values
        if (limit and limit not in values) or (condition and condition not in values):
            return None
        body, start = _attribute(node, "body").g, _integer(node, _START)
        most = int(values[limit].reshape(-1)[0]) if limit else None
        parts = self._parts_of(node)
        goes_on = not condition or self._is_true(condition)
        left = 0 if not goes_on else None if most is None else max(most - start, 0)
        if left == 0:
            return self._end(node, carried, parts)
        always = _goes_on(body, values)
        if always and left is None:
            raise UnsupportedOpError(f"{self._origin}: {describe(node)} never ends: nothing limits its steps")
        steps, results = list[onnx.NodeProto](), list[str]()
        for number in range(start, start + (left if always and left is not None else 1)):
            self._check_count(len(steps))
            results = [self._supply.fresh(value.name) for value in body.output]
            given = [self._constant(np.int64(number)), self._constant(np.array(True)), *carried]
            steps.extend(self._inlined(body, results, dict(zip((value.name for value in body.input), given, strict=True))))
            carried = results[1 : 1 + len(carried)]
            for place, name in enumerate(results[1 + len(carried) :]):
                parts[place].append(name)
        if always:
            return [*steps, *self._end(node, carried, parts)]
        rest = onnx.helper.make_node("Loop", [limit, results[0], *carried], list(node.output), name=node.name)
        rest.attribute.extend([_attribute(node, "body"), onnx.helper.make_attribute(_START, start + 1)])
        if parts:
            rest.attribute.append(onnx.helper.make_attribute(_PARTS, [name for part in parts for name in part]))
        return [*steps, rest]

    def _parts_of(self, node: onnx.NodeProto) -> list[list[str]]:
        """Return, for each result that is stacked, what the steps that are made already gave of it."""
        count = len(node.output) - (len(node.input) - 2)
        names = [name.decode() for attribute in node.attribute if attribute.name == _PARTS for name in attribute.strings]
        each = len(names) // count if count else 0
        return [names[place * each : (place + 1) * each] for place in range(count)]

    def _end(self, node: onnx.NodeProto, carried: Sequence[str], parts: Sequence[Sequence[str]]) -> list[onnx.NodeProto]:
        """Give what a loop carried and stacked the names of its results."""
        made = [
            onnx.helper.make_node("Identity", [value], [name]) for value, name in zip(carried, node.output, strict=False) if name
        ]
        for names, output in zip(parts, node.output[len(carried) :], strict=True):
            if not names:
                raise UnsupportedOpError(f"{self._origin}: {describe(node)} makes no step, and stacks what its steps give")
            if output:
                made.extend(self._stacked(names, output, 0))
        return made

    def _scan(self, node: onnx.NodeProto) -> list[onnx.NodeProto] | None:
        """Return all steps of a Scan: one for each place along an axis."""
        if self._opset < 9:
            raise UnsupportedOpError(f"{self._origin}: {describe(node)} is of opset 8; convert the model to a newer opset")
        count, body = _integer(node, "num_scan_inputs"), _attribute(node, "body").g
        carried, scanned = list(node.input[:-count]), list(node.input[-count:])
        stacked = len(node.output) - len(carried)
        shapes = [self._known.shapes.get(name) for name in scanned]
        if any(shape is None for shape in shapes):
            return None
        axes = [axis % len(shape or ()) for axis, shape in zip(_integers(node, "scan_input_axes", count), shapes, strict=True)]
        steps_of = {(shape or ())[axis] for shape, axis in zip(shapes, axes, strict=True)}
        length = steps_of.pop() if len(steps_of) == 1 else "?"
        if not isinstance(length, int):
            return None
        turned = _integers(node, "scan_input_directions", count)
        parts = [list[str]() for _ in range(stacked)]
        steps: list[onnx.NodeProto] = []
        for number in range(length):
            self._check_count(len(steps))
            given = list(carried)
            for name, axis, is_turned in zip(scanned, axes, turned, strict=True):
                given.append(self._supply.fresh(f"{name}_step"))
                place = self._constant(np.int64(length - 1 - number if is_turned else number))
                steps.append(onnx.helper.make_node("Gather", [name, place], [given[-1]], axis=axis))
            results = [self._supply.fresh(value.name) for value in body.output]
            steps.extend(self._inlined(body, results, dict(zip((value.name for value in body.input), given, strict=True))))
            carried = results[: len(carried)]
            for place, name in enumerate(results[len(carried) :]):
                parts[place].append(name)
        made = [onnx.helper.make_node("Identity", [a], [b]) for a, b in zip(carried, node.output, strict=False) if b]
        along, backwards = _integers(node, "scan_output_axes", stacked), _integers(node, "scan_output_directions", stacked)
        for names, output, axis, is_turned in zip(parts, node.output[len(carried) :], along, backwards, strict=True):
            if output:
                made.extend(self._stacked(names[::-1] if is_turned else names, output, axis))
        return [*steps, *made]

    def _check_count(self, count: int) -> None:
        if count > _MAX_NODES:
            raise UnsupportedOpError(
                f"{self._origin}: a loop makes more than {_MAX_NODES} nodes step by step; export the model for fewer steps, or "
                "one step as a model, and call that in a loop"
            )

    def _stacked(self, names: Sequence[str], output: str, axis: int) -> Iterable[onnx.NodeProto]:
        """Join values along a new axis."""
        wide = [self._supply.fresh(f"{output}_part") for _ in names]
        for name, to in zip(names, wide, strict=True):
            if self._opset < 13:
                yield onnx.helper.make_node("Unsqueeze", [name], [to], axes=[axis])
            else:
                yield onnx.helper.make_node("Unsqueeze", [name, self._constant(np.array([axis], np.int64))], [to])
        yield onnx.helper.make_node("Concat", wide, [output], axis=axis)

    # ------------------------------------------------------------------------------------------------------- inner graphs

    def _constant(self, value: Any) -> str:
        name = self._supply.fresh("constant")
        self._graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(value), name))
        return name

    def _inlined(self, inner: Any, outputs: list[str], given: Mapping[str, str]) -> list[onnx.NodeProto]:
        """Return the nodes of an inner graph with its results under these names; its constants go to the graph.

        `given` says what its inputs are.
        """
        made = {name for node in inner.node for name in node.output if name}
        constants = {tensor.name for tensor in inner.initializer}
        names = {name: self._supply.fresh(name) for name in sorted(made | constants)} | dict(given)
        passed: list[onnx.NodeProto] = []
        for value, output in zip(inner.output, outputs, strict=True):
            if value.name in made and names[value.name] not in outputs:
                names[value.name] = output
            else:  # a constant, an input, or a value that is returned twice
                result: str = value.name
                passed.append(onnx.helper.make_node("Identity", [names.get(result, result)], [output]))
        for tensor in inner.initializer:
            constant = self._graph.initializer.add()
            constant.CopyFrom(tensor)
            constant.name = names[tensor.name]
        nodes = [onnx.NodeProto.FromString(node.SerializeToString()) for node in inner.node]
        for node in nodes:
            rename(node, names)
        return [*nodes, *passed]


def _goes_on(body: Any, values: Mapping[str, Any]) -> bool:
    """Return whether each step of a Loop surely says that another one follows."""
    makers = {name: node for node in body.node for name in node.output}
    constants = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in body.initializer}
    name = body.output[0].name
    while name in makers and makers[name].op_type == "Identity":
        name = makers[name].input[0]
    if name == body.input[1].name:
        return True
    if name in makers and makers[name].op_type == "Constant":
        value = onnx.helper.get_attribute_value(makers[name].attribute[0])
        return isinstance(value, onnx.TensorProto) and bool(onnx.numpy_helper.to_array(value).all())
    known = constants.get(name, None if name in makers else values.get(name))
    return known is not None and bool(known.all())


def _attribute(node: onnx.NodeProto, name: str) -> onnx.AttributeProto:
    return next(attribute for attribute in node.attribute if attribute.name == name)


def _integer(node: onnx.NodeProto, name: str) -> int:
    return next((attribute.i for attribute in node.attribute if attribute.name == name), 0)


def _integers(node: onnx.NodeProto, name: str, count: int) -> list[int]:
    found = next((list(attribute.ints) for attribute in node.attribute if attribute.name == name), [])
    return found or [0] * count


def _names_in(graph: onnx.GraphProto) -> Iterable[str]:
    """Yield the names that a graph gives to values, without those inside of its branches."""
    yield from (value.name for value in graph.input)
    yield from (tensor.name for tensor in graph.initializer)
    for node in graph.node:
        yield from (name for name in node.output if name)


def rename(node: Any, names: Mapping[str, str]) -> None:
    """Rename what a node reads and makes, and what the graphs inside of it read."""
    for values in (node.input, node.output):
        for position, name in enumerate(values):
            values[position] = names.get(name, name)
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs):
            own = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
            own |= {name for inner in graph.node for name in inner.output}
            outside = {name: new for name, new in names.items() if name not in own}
            for inner in graph.node:
                rename(inner, outside)
            for value in graph.output:
                value.name = outside.get(value.name, value.name)
