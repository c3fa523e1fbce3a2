"""Ops of a torch program that write in place become those that return: on a copy of the graph, ids unchanged.

PyTorch's own way traces the whole program anew, which takes many times as long as all the rest of loading it, and names the nodes
differently. It is used where a value that is mutated may alias another one. Using this needs PyTorch.
"""

from __future__ import annotations

import copy
import importlib
from collections.abc import Collection
from dataclasses import replace
from typing import Any

from .source import TorchProgram

_NEVER_ALIASED = frozenset(
    f"aten.{name}"
    for name in (
        "batch_norm.default",
        "conv1d.default",
        "conv2d.default",
        "conv2d.padding",
        "conv3d.default",
        "conv3d.padding",
        "conv_transpose1d.default",
        "conv_transpose2d.input",
        "conv_transpose3d.input",
        "group_norm.default",
        "instance_norm.default",
        "layer_norm.default",
        "linear.default",
        "matmul.default",
    )
)
"""Ops that PyTorch composes of others, and that never return what they were given; of others one can't tell."""


def is_mutating(node: Any) -> bool:
    """Whether a node calls an op that changes an argument."""
    schema = getattr(node.target, "_schema", None)
    return node.op == "call_function" and schema is not None and bool(schema.is_mutable)


def functionalized(source: TorchProgram) -> TorchProgram | None:
    """Return the program with each op in place replaced by its twin, None where one can't be.

    Before::

        conv2d = aten.conv2d(x, w); relu_ = aten.relu_(conv2d); add = aten.add(conv2d, x)

    After::

        conv2d = aten.conv2d(x, w); relu_ = aten.relu(conv2d); add = aten.add(relu_, x)
    """
    aten: Any = importlib.import_module("torch").ops.aten
    # PyTorch's name of the table of ops that it composes of others.
    composed: Any = importlib.import_module("torch._C").DispatchKey.CompositeImplicitAutograd
    graph: Any = copy.deepcopy(source.graph)
    for copied, node in zip(graph.nodes, source.nodes, strict=True):
        copied.name = node.name  # a copy avoids Python's own words, such as "input"
    inputs = frozenset(source.inputs)
    position = {node: index for index, node in enumerate(graph.nodes)}
    for node in list(graph.nodes):
        if not is_mutating(node):
            continue
        twin = _functional_variant(node, aten)
        target: Any = node.args[0] if node.args else None
        if twin is None or not hasattr(target, "users") or not _has_no_alias(target, node, position, inputs, composed):
            return None
        node.target = twin
        target.replace_all_uses_with(node, delete_user_cb=lambda user, at=position[node]: position[user] > at)
    return replace(source, graph=graph)


def _functional_variant(node: Any, aten: Any) -> Any:
    """Return the op that returns what `node` would write into its first argument, None if there is none with its arguments."""
    schema, (name, _, overload) = node.target._schema, str(node.target).removeprefix("aten.").partition(".")
    writes = [bool(argument.is_write) for argument in schema.arguments]
    if not str(node.target).startswith("aten.") or not name.endswith("_") or writes[:1] != [True] or any(writes[1:]):
        return None
    twin = getattr(getattr(aten, name[:-1], None), overload, None)
    if twin is None or [arg.name for arg in twin._schema.arguments[1:]] != [arg.name for arg in schema.arguments[1:]]:
        return None
    # Written in place, a result keeps its dtype; returned, it may be promoted by another operand.
    dtypes = {str(value.dtype) for read in node.all_input_nodes if hasattr(value := read.meta.get("val"), "dtype")}
    return twin if len(dtypes) == 1 else None


def _has_no_alias(target: Any, writer: Any, position: dict[Any, int], inputs: Collection[str], composed: Any) -> bool:
    """Whether no other value can lie in the memory of `target` when `writer` changes it."""
    made = target.name in inputs if target.op == "placeholder" else _owns_memory(target, composed)
    earlier = [user for user in target.users if position[user] < position[writer]]
    return made and all(_owns_memory(user, composed) for user in earlier)


def _owns_memory(node: Any, composed: Any) -> bool:
    """Whether the result of a node lies in memory of its own."""
    schema = getattr(node.target, "_schema", None)
    if node.op != "call_function" or schema is None or any(result.alias_info is not None for result in schema.returns):
        return False
    return str(node.target) in _NEVER_ALIASED or not node.target.has_kernel_for_dispatch_key(composed)
