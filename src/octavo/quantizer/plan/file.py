"""The plan as a file: JSON, versioned, deterministic, one tensor or op a line, made to be edited and distrusted on reading.

Scales are written as the shortest decimal of the float64 that equals the float32, so any reader gets the very number. What
follows from the rest (`derived`) is there for readers; who applies a plan derives it anew.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
import numpy.typing as npt

from ...errors import QuantizationError, brief
from ...ir.channels import Rotation
from ...ir.identity import TensorId
from ...ir.simplify import Fold
from ...numerics import INTEGER_RANGE, PerAxis, PerBlock, PerTensor, QuantParams
from ...runtime.atomic_write import read_text
from ...runtime.json_values import Malformed, a_list, a_mapping, a_real, a_text, an_integer, an_object, parsed, plain, read
from ...target.vocabulary import ROUNDINGS
from ..recipe import Recipe
from .entries import Adjustment, Corrections, FloatOp, IntegerLayer
from .equalization import Equalization
from .journal import Journal

FORMAT = "octavo-plan"
SCHEMA_VERSION = 4
_WITHOUT_JOURNAL = 3
"""The version before: it is read, too."""
_LISTS = {"layers": IntegerLayer, "float_ops": FloatOp, "adjustments": Adjustment}
_KEYS = ("format", "schema_version", "fingerprint", "recipe", "activations", "weights", *_LISTS)
_MORE_KEYS = ("folds", "equalization", "rotations", "bias_shifts", "weight_values", "derived", "journal")
_PARAMS = ("dtype", "scale", "zero_point", "axis", "block", "qmin", "qmax")
_DERIVED = ("biases", "enclosed", "shared")
_INTEGERS = ("dtype", "shape", "params", "data")
_LATER = ("per_row", "block", "leaves_copies", "weight_block", "block_activations", "rotations", "carried")
"""Fields that files from before lack: they are as by default there."""
_RECIPE = tuple(each.name for each in fields(Recipe) if each.name != "tensors")
FoundT = TypeVar("FoundT")


# ----------------------------------------------------------------------------------------------------------------- write


def encode(plan: Any) -> str:
    """Return the text of the file of a QuantizationPlan: the same plan gives the same text."""
    params: Mapping[str, Mapping[TensorId, QuantParams]] = {"activations": plan.activations, "weights": plan.weights}
    named = {
        group: {key: {"name": plan.names.get(key), **value.to_json()} for key, value in found.items()}
        for group, found in params.items()
    }
    for key, entry in named["activations"].items():
        entry["rounding"] = plan.roundings.get(key)
    corrections: Corrections = plan.corrections
    said = {name: getattr(plan.recipe, name) for name in _RECIPE}
    content = {
        "format": FORMAT,
        "schema_version": SCHEMA_VERSION,
        "fingerprint": plan.fingerprint,
        "recipe": plain({**said, "overrides": {name: each.given for name, each in plan.recipe.overrides.items()}}),
        **named,
        "folds": plain(plan.folds),
        **{name: plain(getattr(plan, name)) for name in _LISTS},
        "equalization": {
            key: {"shape": list(each.shape), "factors": each.ravel().tolist()} for key, each in plan.equalization.factors.items()
        },
        "rotations": {key: plain(each) for key, each in plan.equalization.rotations.items()},
        "bias_shifts": {key: value.tolist() for key, value in corrections.bias_shifts.items()},
        "weight_values": {key: _integers_to_json(each, plan.weights[key]) for key, each in corrections.weight_values.items()},
        "derived": {
            "biases": {key: value.to_json() for key, value in plan.biases.items()},
            **{name: plain(getattr(plan, name)) for name in _DERIVED[1:]},
        },
        "journal": plain(plan.journal),
    }
    return _by_line(content) + "\n"


def _by_line(value: Any, depth: int = 0) -> str:
    """Return a text with a line for each entry of the outer two levels, and of those below that hold objects."""
    entries: dict[Any, Any] = value if isinstance(value, dict) else dict(enumerate(value)) if isinstance(value, list) else {}
    if not entries or (depth > 1 and not any(isinstance(each, dict) for each in entries.values())):
        return json.dumps(value, allow_nan=False)
    is_object = isinstance(value, dict)
    lines = [f"{json.dumps(key)}: " * is_object + _by_line(each, depth + 1) for key, each in entries.items()]
    ends = "{}" if is_object else "[]"
    return ends[0] + "\n" + ",\n".join("  " * depth + line for line in lines) + "\n" + ends[1]


def _integers_to_json(values: npt.NDArray[Any], params: QuantParams) -> dict[str, Any]:
    return {
        "dtype": str(values.dtype),
        "shape": list(values.shape),
        "params": _digest(params),
        "data": base64.b64encode(values.astype(values.dtype.newbyteorder("<")).tobytes()).decode(),
    }


def _digest(params: QuantParams) -> str:
    """Return what tells parameters from others: integers that were rounded for some are not those of others."""
    return hashlib.sha256(json.dumps(params.to_json(), sort_keys=True).encode()).hexdigest()[:16]


# ------------------------------------------------------------------------------------------------------------------ read


def read_fields(path: str | Path) -> dict[str, Any]:
    """Read and check a plan, and return its fields; QuantizationError names the file and the first thing wrong with it."""
    text = read_text(path, QuantizationError, "the plan")
    try:
        return _decoded(parsed(text))
    except (Malformed, QuantizationError) as error:
        raise QuantizationError(f"{path}: not a valid plan: {error}") from error


def _decoded(data: Any) -> dict[str, Any]:
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise Malformed(f'it has no "format": "{FORMAT}"; give what QuantizationPlan.save wrote')
    version = data.get("schema_version")
    if version == _WITHOUT_JOURNAL:
        data = {**data, "journal": plain(Journal())}
    elif version != SCHEMA_VERSION:
        found = brief(version)
        raise Malformed(f"schema_version must be {SCHEMA_VERSION}, got {found}; quantize the model again with this version")
    # Files from before have `folds` with what is derived.
    older: Any = data.get("derived")
    if "folds" not in data and isinstance(older, dict) and "folds" in older:
        rest = {**cast("dict[str, Any]", older)}
        data = {**data, "folds": rest.pop("folds"), "derived": rest}
    header = an_object("the plan", cast("Any", data), (*_KEYS, *_MORE_KEYS), _LATER)
    derived = an_object("derived", header["derived"], _DERIVED)
    names: dict[TensorId, str] = {}
    roundings: dict[TensorId, str] = {}

    def parameters(group: str, *more: str) -> dict[TensorId, QuantParams]:
        for key, entry in _each(group, header[group], partial(an_object, keys=("name", *_PARAMS, *more), later=_LATER)).items():
            for name, known, allowed in (("name", names, None), ("rounding", roundings, ROUNDINGS)):
                if (said := entry.pop(name, None)) is not None:
                    known[key] = a_text(f"{group}: {key}: {name}", said, allowed)
        return _each(group, header[group], _params)

    weights = parameters("weights")
    corrections = Corrections(
        bias_shifts=_each("bias_shifts", header["bias_shifts"], _reals),
        weight_values=_each("weight_values", header["weight_values"], lambda where, each: _integers(where, each, weights)),
    )
    plan: dict[str, Any] = {
        "fingerprint": a_text("fingerprint", header["fingerprint"]),
        "recipe": Recipe(**an_object("recipe", header["recipe"], _RECIPE, _LATER)),
        "activations": parameters("activations", "rounding"),
        "weights": weights,
        "names": names,
        "roundings": roundings,
        **{name: read(tuple[kind, ...], name, header[name], _LATER) for name, kind in _LISTS.items()},
        "equalization": Equalization(
            factors=_each("equalization", header["equalization"], _factors),
            rotations=_each("rotations", header.get("rotations", {}), partial(read, Rotation)),
        ),
        "corrections": corrections,
        "biases": _each("derived: biases", derived["biases"], _params),
        "enclosed": read(tuple[TensorId, ...], "derived: enclosed", derived["enclosed"]),
        "folds": read(tuple[Fold, ...], "folds", header["folds"]),
        "shared": read(tuple[tuple[TensorId, ...], ...], "derived: shared", derived["shared"]),
        "journal": read(Journal, "journal", header["journal"], _LATER),
    }
    _check_ops(plan["layers"], plan["float_ops"], corrections)
    return plan


def _check_ops(layers: tuple[IntegerLayer, ...], float_ops: tuple[FloatOp, ...], corrections: Corrections) -> None:
    """Refuse an op that stands twice, and a correction of none."""
    outputs = [layer.output for layer in layers]
    twice = next((output for output in outputs if outputs.count(output) > 1), None)
    if twice is not None:
        raise Malformed(f"layers: two have the output {twice}; keep one")
    unknown = next((key for key in corrections.bias_shifts if key not in outputs), None)
    if unknown is not None:
        raise Malformed(f"bias_shifts: {unknown} is the output of no layer; take the entry out")
    both = next((op.tensor for op in float_ops if op.tensor in outputs), None)
    if both is not None:
        raise Malformed(f"{both} is the output of a layer and stands in float_ops; keep one of the two")


def _each(where: str, value: Any, one: Callable[[str, Any], FoundT]) -> dict[TensorId, FoundT]:
    return {TensorId(key): one(f"{where}: {key}", each) for key, each in a_mapping(where, value).items()}


def _params(where: str, value: Any) -> QuantParams:
    entry = an_object(where, value, _PARAMS, _LATER)
    dtype = a_text(f"{where}: dtype", entry["dtype"], INTEGER_RANGE)
    low, high = INTEGER_RANGE[dtype]
    axis, block = (
        None if entry.get(name) is None else an_integer(f"{where}: {name}", entry[name], low=least)
        for name, least in (("axis", 0), ("block", 1))
    )
    if axis is None and block is not None:
        raise Malformed(f"{where}: block needs the axis that blocks lie along, got null")
    depth = 0 if axis is None else 1 if block is None else 2
    point = partial(an_integer, low=low, high=high)
    try:
        return QuantParams(
            dtype=dtype,
            scale=_numbers(f"{where}: scale", entry["scale"], depth, partial(a_real, is_positive=True)),
            zero_point=_numbers(f"{where}: zero_point", entry["zero_point"], depth, point),
            granularity=PerTensor() if axis is None else PerAxis(axis) if block is None else PerBlock(axis, block),
            qmin=point(f"{where}: qmin", entry["qmin"]),
            qmax=point(f"{where}: qmax", entry["qmax"]),
        )
    except ValueError as error:
        raise Malformed(f"{where}: {error}") from error


def _numbers(where: str, value: Any, depth: int, one: Callable[[str, Any], float]) -> Any:
    """Return a number, a list of them, or lists of as many each."""
    if not depth:
        return one(where, value)
    found = [_numbers(where, each, depth - 1, one) for each in a_list(where, value)]
    if depth > 1 and len({len(row) for row in found}) != 1:
        raise Malformed(f"{where} must be lists of as many numbers each, for the blocks of a matrix")
    return found


def _reals(where: str, value: Any) -> npt.NDArray[np.float32]:
    return np.asarray([a_real(where, each) for each in a_list(where, value)], np.float32)


def _factors(where: str, value: Any) -> npt.NDArray[np.float32]:
    data = an_object(where, value, ("shape", "factors"))
    shape = [an_integer(f"{where}: shape", each, 1) for each in a_list(f"{where}: shape", data["shape"])]
    factors = [a_real(f"{where}: factors", each, is_positive=True) for each in a_list(f"{where}: factors", data["factors"])]
    if len(factors) != math.prod(shape):
        raise Malformed(f"{where}: factors must be {math.prod(shape)} numbers for its shape, got {len(factors)}")
    return np.asarray(factors, np.float32).reshape(shape)


def _integers(where: str, value: Any, weights: Mapping[TensorId, QuantParams]) -> npt.NDArray[Any]:
    data, params = an_object(where, value, _INTEGERS), weights.get(TensorId(where.removeprefix("weight_values: ")))
    if params is None:
        raise Malformed(f"{where} is no weight of the plan; take the entry out")
    if a_text(f"{where}: params", data["params"]) != _digest(params):
        raise Malformed(
            f"{where}: its integers were rounded for other parameters than it has; take the entry out, and it is rounded anew"
        )
    a_text(f"{where}: dtype", data["dtype"], [params.dtype])
    shape = [an_integer(f"{where}: shape", each) for each in a_list(f"{where}: shape", data["shape"])]
    try:
        content = base64.b64decode(a_text(f"{where}: data", data["data"]), validate=True)
    except ValueError:
        raise Malformed(f"{where}: data is no base64") from None
    dtype = np.dtype(params.dtype).newbyteorder("<")
    if len(content) != math.prod(shape) * dtype.itemsize:
        raise Malformed(f"{where}: data has {len(content)} bytes, expected {math.prod(shape) * dtype.itemsize} for its shape")
    values = np.frombuffer(content, dtype).reshape(shape).astype(params.dtype)
    if values.size and not (params.qmin <= int(values.min()) and int(values.max()) <= params.qmax):
        raise Malformed(f"{where}: its integers must lie in [{params.qmin}; {params.qmax}]")
    return values
