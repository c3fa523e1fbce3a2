"""How exact the activations beside weights in blocks are to be: what source, recipe and caller say of it.

It is an attribute of "main": by the name of a product's result, or of a tensor made of it alone; under "" for all others.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from ...errors import CompileError
from ...numerics.quantized.block_matmul import BLOCK_ACTIVATIONS, BlockActivations
from ..graph.dataflow import DataflowView, attrs_of
from ..graph.model import BLOCK_ATTR, Model


def with_block_activations(model: Model, wanted: str) -> Model:
    """Return a model whose products with weights in blocks read activations so, where nothing else says how.

    Raises
    ------
    CompileError
        It is none of BLOCK_ACTIVATIONS.
    """
    found = _known(wanted)
    if found is None:
        raise CompileError(f"unknown block_activations {wanted!r}: choose from {', '.join(BLOCK_ACTIVATIONS)}")
    if found == "float32":
        return model  # what they are anyway
    return replace(model, block_activations={"": found, **model.block_activations})


def block_activations_of(view: DataflowView, names: Iterable[str]) -> BlockActivations:
    """Return how a product reads its activations, by the names of what is computed in one with it."""
    said: Any = attrs_of(view.function).get(BLOCK_ATTR) or {}
    known = {str(name): str(value) for name, value in said.items()}
    wanted = next((known[name] for name in names if name in known), known.get(""))
    return _known(wanted) or "float32"


def _known(name: str | None) -> BlockActivations | None:
    return next((each for each in BLOCK_ACTIVATIONS if each == name), None)
