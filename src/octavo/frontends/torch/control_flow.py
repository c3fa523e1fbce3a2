"""Branches, loops and regions of a torch program become plain nodes of its graph. Imports PyTorch only where a program has such.

Before::

    cond = cond(pred, true_graph, false_graph, (x, w)); getitem = cond[0]

After::

    cond_true_relu = aten.relu(x); cond_false_mul = aten.mul(x, w); getitem = aten.where(pred, cond_true_relu, cond_false_mul)

Both branches of `cond` are computed, for neither has an effect, and one is chosen; of a predicate that is known the one alone. A
`while_loop` is written out as often as it runs, where its condition follows from numbers that the program holds, as a counter's.
So is what stands within `torch.no_grad()` or a `torch.autocast` that is off.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ...errors import UnsupportedOpError
from .constant_folding import computed, is_foldable
from .sizes import ORIGIN

_MAX_STEPS = 1000
"""Of a loop that is written out."""
_MAX_NODES = 20000
_OF_CASTS = 4
"""Where a region of automatic casts has its graph: behind device, type, whether it casts, and whether it keeps what it cast."""


def describe(node: Any) -> str:
    """Return "node 'conv2d' (aten.conv2d.default)"."""
    return f"node {node.name!r} ({node.target})"


def without_control_flow(program: Any, constants: Mapping[str, tuple[str, Any]]) -> Any:
    """Return a program's graph with branches and loops written out: the very graph where there are none.

    Parameters
    ----------
    constants
        FX name -> (qualified name, tensor) of what the program holds.

    Raises
    ------
    UnsupportedOpError
        If what decides is known at run time only, and is no branch between results of one shape.
    """
    if not any(_kind(node) for node in program.graph.nodes):
        return program.graph
    torch: Any = importlib.import_module("torch")
    known = {name: tensor for name, (_, tensor) in constants.items() if is_foldable(tensor)}
    writer = _Writer(graph=torch.fx.Graph(), aten=torch.ops.aten, constants=known)
    [output] = [node for node in program.graph.nodes if node.op == "output"]
    results = writer.write(program.graph, program.graph_module, {}, "")
    writer.graph.node_copy(output, lambda node: results[node])
    return writer.graph


def _kind(node: Any) -> Callable[[_Writer, Any, Any, dict[Any, Any], str], list[Any]] | None:
    """Return what writes a node out, None for one that is plain."""
    known = {
        "cond": _Writer.branch,
        "while_loop": _Writer.loop,
        "wrap_with_autocast": _Writer.region,
        "wrap_with_set_grad_enabled": _Writer.region,
    }
    return known.get(str(node.target)) if node.op == "call_function" else None


@dataclass(kw_only=True)
class _Writer:
    """Writes nodes into one graph, and keeps the values of those that are known."""

    graph: Any
    aten: Any
    constants: Mapping[str, Any]
    known: dict[Any, Any] = field(default_factory=dict[Any, Any])

    def write(self, graph: Any, owner: Any, found: dict[Any, Any], prefix: str) -> dict[Any, Any]:
        """Write the nodes of a graph but its output; `found` has those that are there, its placeholders' values for one.

        Return the new node of each; of a branch or a loop the list of its results.
        """
        for node in graph.nodes:
            if node in found or node.op == "output" or (node.op == "get_attr" and _is_graph(owner, node)):
                continue
            write = _kind(node)
            if write is not None:
                found[node] = write(self, node, owner, found, f"{prefix}{node.name}")
                continue
            source = node.args[0] if node.op == "call_function" and node.args else None
            if node.op == "call_function" and isinstance(found.get(source), list):  # a result of what was written out
                found[node] = self._add(self.aten.alias.default, (found[source][node.args[1]],), node, f"{prefix}{node.name}")
                continue
            made = self.graph.node_copy(node, found.__getitem__)
            made.name = self._name(f"{prefix}{node.name}") if prefix else node.name
            self._fold(made)
            found[node] = made
        return found

    def branch(self, node: Any, owner: Any, found: dict[Any, Any], name: str) -> list[Any]:
        """Write both branches and a choice, or the one that is taken."""
        chosen, yes, no = node.args[:3]
        operands = [found[each] for each in node.args[3]] if len(node.args) > 3 else []
        if not hasattr(chosen, "meta") or not hasattr(chosen.meta.get("val"), "dtype"):
            raise self._refusal(node, "it branches by a size; fix that: sizes={NAME: N}")
        chosen = found[chosen]
        sides = {True: (yes, f"{name}_true"), False: (no, f"{name}_false")}
        if chosen in self.known:
            graph, prefix = sides[bool(self.known[chosen])]
            return self._inline(node, getattr(owner, graph.target), operands, prefix)
        left, right = (self._inline(node, getattr(owner, graph.target), operands, prefix) for graph, prefix in sides.values())
        if chosen.meta["val"].ndim:
            chosen = self._add(self.aten.reshape.default, (chosen, []), chosen, f"{name}_predicate")
        return [
            self._add(self.aten.where.self, (chosen, *pair), pair[0], f"{name}_{place}")
            for place, pair in enumerate(zip(left, right, strict=True))
        ]

    def loop(self, node: Any, owner: Any, found: dict[Any, Any], name: str) -> list[Any]:
        """Write the body as often as it runs."""
        condition, body = (getattr(owner, each.target) for each in node.args[:2])
        carried, others = ([found.get(each, each) for each in given] for given in node.args[2:4])
        for step in range(_MAX_STEPS):
            before = list(self.graph.nodes)
            [goes_on] = self._inline(node, condition, [*carried, *others], f"{name}_{step}_while")
            verdict = self.known.get(goes_on)
            if verdict is None:
                raise self._refusal(node, "how often it runs is known at run time only; write a loop of a fixed number of steps")
            for each in reversed(list(self.graph.nodes)[len(before) :]):
                self.known.pop(each, None)
                self.graph.erase_node(each)
            if not bool(verdict):
                return carried
            carried = self._inline(node, body, [*carried, *others], f"{name}_{step}")
            if len(before) > _MAX_NODES:
                break
        raise self._refusal(node, "it runs too often to be written out")

    def region(self, node: Any, owner: Any, found: dict[Any, Any], name: str) -> list[Any]:
        """Write what stands within a region that computes as all around it: without gradients, or without automatic casts."""
        place = next(place for place, each in enumerate(node.args) if getattr(each, "op", "") == "get_attr")
        if place == _OF_CASTS and node.args[0] == "cpu" and node.args[2]:
            raise self._refusal(node, f"it casts to {node.args[1]} what it computes; export the program without autocast")
        operands = [found.get(each, each) for each in node.args[place + 1 :]]
        return self._inline(node, getattr(owner, node.args[place].target), operands, name)

    def _inline(self, node: Any, module: Any, operands: list[Any], prefix: str) -> list[Any]:
        placeholders = [each for each in module.graph.nodes if each.op == "placeholder"]
        found = self.write(module.graph, module, dict(zip(placeholders, operands, strict=True)), f"{prefix}_")
        [output] = [each for each in module.graph.nodes if each.op == "output"]
        results: Any = output.args[0]
        results = results if isinstance(results, tuple | list) else (results,)
        if not all(each in found for each in results):
            raise self._refusal(node, "one of its results is no tensor")
        return [found[each] for each in results]

    def _add(self, target: Any, args: tuple[Any, ...], like: Any, name: str) -> Any:
        made = self.graph.call_function(target, args)
        made.meta, made.name = dict(like.meta), self._name(name)
        self._fold(made)
        return made

    def _fold(self, node: Any) -> None:
        """Keep the value of a node that is known. What writes in place may change any that is."""
        schema = getattr(node.target, "_schema", None)
        if schema is not None and schema.is_mutable and str(node.target) != "aten.detach_.default":
            self.known.clear()
        value = self.constants.get(str(node.name)) if node.op == "placeholder" else computed(node, self.known)
        if value is not None:
            self.known[node] = value

    def _name(self, wanted: str) -> str:
        taken = {str(node.name) for node in self.graph.nodes}
        return next(name for name in (wanted, *(f"{wanted}_{count}" for count in range(1, len(taken) + 2))) if name not in taken)

    def _refusal(self, node: Any, why: str) -> UnsupportedOpError:
        return UnsupportedOpError(f"{ORIGIN}: {describe(node)}: {why}")


def _is_graph(owner: Any, node: Any) -> bool:
    return hasattr(getattr(owner, str(node.target), None), "graph")
