"""Recipes as JSON: any of the fields of a Recipe, by name."""

from __future__ import annotations

import json
from dataclasses import fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any, cast

from ..errors import QuantizationError, TargetError, brief, check_path
from ..target.tensor_support import TensorSupport
from .recipe import Recipe

_KNOWN = tuple(each.name for each in fields(Recipe))


def read_recipe(path: str | Path) -> Recipe:
    """Return the recipe in a JSON file: an object of a Recipe's fields, those that it leaves out being as by default.

    `tensors` holds objects of the fields of a TensorSupport, `overrides` of those of an Override.

    Raises
    ------
    QuantizationError
        If there is no such file, or it is no such object; the message names the file and the field.
    """
    source = check_path(path, QuantizationError, "the path of a recipe, JSON")
    try:
        data: Any = json.loads(source.read_text(encoding="utf-8"))
    except OSError as error:
        raise QuantizationError(f"{path}: cannot read the recipe: {error.strerror or error}") from error
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise QuantizationError(f"{path}: the recipe is no JSON: {error}") from error
    try:
        return _recipe(data)
    except (QuantizationError, TargetError) as error:
        raise QuantizationError(f"{path}: {error}") from error


def _recipe(data: Any) -> Recipe:
    if not isinstance(data, dict):
        raise QuantizationError(f"recipe: expected an object of its fields, got {brief(data)}")
    said = cast("dict[str, Any]", data)
    unknown = next((name for name in said if name not in _KNOWN), None)
    if unknown is not None:
        near = get_close_matches(unknown, _KNOWN, n=1)
        advice = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(_KNOWN)}"
        raise QuantizationError(f"recipe: there is no field {unknown!r}; {advice}")
    tensors = said.get("tensors", {})
    if not isinstance(tensors, dict):
        raise QuantizationError(f"recipe: tensors must be an object of names, got {brief(tensors)}")
    entries = {
        name: TensorSupport.from_json(f"tensors: {name}", entry) for name, entry in cast("dict[str, Any]", tensors).items()
    }
    values: dict[str, Any] = {**said, "tensors": entries}
    return Recipe(**values)
