"""What nothing reads any more leaves a file's tables: ops, tensors, buffers, operator codes. The rest is numbered anew."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from .flatbuffer import Table


def prune(model: Table) -> None:
    """Take out of a model of one subgraph what its outputs do not depend on; inputs and named tensors stay."""
    [graph] = model["Subgraphs"]
    _drop_dead_ops(graph)
    signatures = [entry for each in model["SignatureDefs"] or [] for entry in [*(each["Inputs"] or []), *(each["Outputs"] or [])]]
    lists = [(op, name) for op in graph["Operators"] for name in ("Inputs", "Outputs", "Intermediates")]
    lists += [(graph, "Inputs"), (graph, "Outputs")]
    used = {int(index) for table, name in lists for index in _list(table, name)}
    used |= {entry.number("TensorIndex") for entry in signatures}
    places = _kept(graph, "Tensors", used)
    for table, name in lists:
        if table[name] is not None:
            table[name] = np.array([places[int(index)] for index in table[name]], np.int32)
    for entry in signatures:
        entry["TensorIndex"] = places[entry.number("TensorIndex")]
    _prune_buffers(model, graph)
    codes = _kept(model, "OperatorCodes", {op.number("OpcodeIndex") for op in graph["Operators"]})
    for op in graph["Operators"]:
        op["OpcodeIndex"] = codes[op.number("OpcodeIndex")]


def _list(table: Table, name: str) -> Any:
    return () if table[name] is None else table[name]


def _drop_dead_ops(graph: Table) -> None:
    live = {int(index) for index in graph["Outputs"]}
    kept: list[Table] = []
    for op in reversed(graph["Operators"]):
        if live.intersection(int(index) for index in op["Outputs"]):
            live.update(int(index) for index in _list(op, "Inputs"))
            kept.append(op)
    graph["Operators"] = kept[::-1]


def _prune_buffers(model: Table, graph: Table) -> None:
    """Keep the buffers of tensors and of metadata, and the first, which is empty."""
    metadata = model["Metadata"] or []
    numbers = [int(index) for index in _list(model, "MetadataBuffer")]
    used = {0, *numbers, *(each.number("Buffer") for each in (*graph["Tensors"], *metadata))}
    places = _kept(model, "Buffers", used)
    for each in (*graph["Tensors"], *metadata):
        each["Buffer"] = places[each.number("Buffer")]
    if numbers:
        model["MetadataBuffer"] = np.array([places[number] for number in numbers], np.int32)


def _kept(table: Table, name: str, used: Iterable[int]) -> dict[int, int]:
    """Keep the entries of a list that are used; return their new places by the old ones, and -1 for what is absent."""
    chosen = sorted(index for index in used if index >= 0)
    table[name] = [table[name][index] for index in chosen]
    return {-1: -1, **{old: new for new, old in enumerate(chosen)}}
