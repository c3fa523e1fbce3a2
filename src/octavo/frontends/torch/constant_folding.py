"""Nodes of a torch program that depend on no input and no float parameter: PyTorch itself computes them, once, while loading.

Positions, masks and indices of attention are such. They need no converter then, and whatever ops compute them are exact. What
depends on float or quantized parameters stays in the graph, where its tensors have names. Using this needs PyTorch.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

_FOLDED_DTYPES = ("torch.int64", "torch.bool", "torch.complex64", "torch.complex128")
"""Of parameters and buffers: positions, masks and rotations."""


def is_foldable(tensor: Any) -> bool:
    """Whether nodes that read this parameter or buffer, and nothing else that is unknown, are computed while loading."""
    return str(getattr(tensor, "dtype", "")) in _FOLDED_DTYPES


def computed(node: Any, known: Mapping[Any, Any]) -> Any:
    """Return the tensor that a node gives where it follows from what is known, else None.

    Parameters
    ----------
    known
        Node -> tensor or number.
    """
    target = node.target
    if node.op != "call_function" or not str(target).startswith("aten.") or not hasattr(target, "_schema"):
        return None
    if str(target) == "aten.detach_.default":  # it changes no value
        return known.get(node.args[0])
    torch: Any = importlib.import_module("torch")
    unsettled = target._schema.is_mutable or torch.Tag.nondeterministic_seeded in target.tags
    if unsettled or any(source not in known for source in node.all_input_nodes):
        return None
    args, keywords = (torch.fx.node.map_arg(given, lambda source: known[source]) for given in (node.args, node.kwargs))
    try:
        with torch.no_grad():
            result = target(*args, **keywords)
    except Exception:  # made for a device that isn't here, say: a converter may do
        return None
    return result if isinstance(result, torch.Tensor) else None
