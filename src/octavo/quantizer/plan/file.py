"""The plan as a file: JSON, versioned, deterministic, one tensor or op a line, made to be edited and distrusted on reading.

Scales are written as the shortest decimal of the float64 that equals the float32, so any reader gets the very number. What
follows from the rest (`derived`) is there for readers; who applies a plan derives it anew.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
import numpy.typing as npt

from ...errors import QuantizationError, brief
from ...ir.identity import TensorId
from ...ir.simplify import Fold
from ...numerics import INTEGER_RANGE, PerAxis, PerBlock, PerTensor, QuantParams
from ...runtime.atomic_write import write_atomically
from ...target.vocabulary import ROUNDINGS
from ..override import Override
from ..recipe import Recipe
from .contents import PlanContents
from .corrections import Corrections
from .entries import Adjustment, FloatOp, IntegerLayer
from .equalization import Equalization
from .journal import Journal, JournalEntry

FORMAT = "octavo-plan"
SCHEMA_VERSION = 4
_WITHOUT_JOURNAL = 3
"""The version before: it is read, too."""

_KEYS = (
    *("format", "schema_version", "fingerprint", "recipe"),
    *(
        "activations",
        "weights",
        "layers",
        "float_ops",
        "adjustments",
        "equalization",
        "bias_shifts",
        "weight_values",
        "derived",
        "journal",
    ),
)
_PARAMS = ("dtype", "scale", "zero_point", "axis", "block", "qmin", "qmax")
_DERIVED = ("biases", "enclosed", "folds", "shared")
_RECIPE = tuple(each.name for each in fields(Recipe) if each.name != "tensors")
_FLOAT32_MAX = float(np.finfo(np.float32).max)
_LATER: Mapping[type, Mapping[str, Any]] = {
    IntegerLayer: {"per_row": [], "block": 0},
    Recipe: {"weight_block": None},
    QuantParams: {"block": None},
}
"""Fields that files of the same version may lack, with what they say then."""
Entry = TypeVar("Entry", IntegerLayer, FloatOp, Fold, Adjustment)


class _Malformed(Exception):
    """What is wrong, in words; becomes a QuantizationError that names the file."""


# ----------------------------------------------------------------------------------------------------------------- write


def write_plan(contents: PlanContents, path: Path) -> None:
    """Write a plan, whole or not at all; QuantizationError if it can't be."""
    write_atomically(path, encode(contents), QuantizationError, "the plan")


def encode(plan: PlanContents) -> str:
    """Return the text of a plan's file: the same plan gives the same text."""
    header = {
        "format": FORMAT,
        "schema_version": SCHEMA_VERSION,
        "fingerprint": plan.fingerprint,
        "recipe": {name: _plain(getattr(plan.recipe, name)) for name in _RECIPE},
    }
    lines = [f"{json.dumps(key)}: {_compact(value)}" for key, value in header.items()]
    activations = {
        key: {"name": plan.names.get(key), **value.to_json(), "rounding": plan.roundings.get(key)}
        for key, value in plan.activations.items()
    }
    lines.append(f'"activations": {_by_line(activations)}')
    weights = {key: {"name": plan.names.get(key), **value.to_json()} for key, value in plan.weights.items()}
    lines.append(f'"weights": {_by_line(weights)}')
    lines += [f'"{name}": {_list_by_line(getattr(plan, name))}' for name in ("layers", "float_ops", "adjustments")]
    scaled = {
        key: {"shape": list(each.shape), "factors": [float(factor) for factor in each.reshape(-1)]}
        for key, each in plan.equalization.factors.items()
    }
    lines.append(f'"equalization": {_by_line(scaled)}')
    shifts = {key: [float(each) for each in value] for key, value in plan.corrections.bias_shifts.items()}
    lines.append(f'"bias_shifts": {_by_line(shifts)}')
    values = {key: _integers_to_json(each, plan.weights[key]) for key, each in plan.corrections.weight_values.items()}
    lines.append(f'"weight_values": {_by_line(values)}')
    derived = [
        f'"biases": {_by_line({key: value.to_json() for key, value in plan.biases.items()})}',
        f'"enclosed": {_compact(_plain(plan.enclosed))}',
        f'"folds": {_list_by_line(plan.folds)}',
        f'"shared": {_compact(_plain(plan.shared))}',
    ]
    lines.append('"derived": {\n' + ",\n".join(derived) + "\n}")
    lines.append(f'"journal": {_journal_to_json(plan.journal)}')
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _journal_to_json(journal: Journal) -> str:
    header = {
        "held_back": journal.held_back,
        "plain_db": _real_to_json(journal.plain_db),
        "sqnr_db": _real_to_json(journal.sqnr_db),
        "agreement": journal.agreement,
    }
    entries = [
        _compact(
            {
                each.name: _real_to_json(value) if isinstance(value := getattr(entry, each.name), float) else value
                for each in fields(entry)
            }
        )
        for entry in journal.entries
    ]
    lines = [f"{json.dumps(key)}: {_compact(value)}" for key, value in header.items()]
    return "{\n" + ",\n".join([*lines, f'"entries": [{",".join(chr(10) + "  " + entry for entry in entries)}]']) + "\n}"


def _real_to_json(value: float | None) -> Any:
    """Return a number, or the word for what JSON has no number for."""
    return value if value is None or math.isfinite(value) else str(value)


def _compact(value: Any) -> str:
    return json.dumps(value, allow_nan=False)


def _by_line(values: Mapping[TensorId, Any]) -> str:
    return "{\n" + ",\n".join(f"  {json.dumps(key)}: {_compact(value)}" for key, value in values.items()) + "\n}"


def _list_by_line(values: Iterable[Any]) -> str:
    rows = [{each.name: _plain(getattr(value, each.name)) for each in fields(value)} for value in values]
    return "[\n" + ",\n".join(f"  {_compact(row)}" for row in rows) + "\n]"


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in cast("dict[str, Any]", value).items()}
    if isinstance(value, Override):
        return value.given
    return [_plain(each) for each in cast("tuple[Any, ...]", value)] if isinstance(value, tuple) else value


# ------------------------------------------------------------------------------------------------------------------ read


def read_plan(path: Path) -> PlanContents:
    """Read and check a plan; QuantizationError names the file and the first thing wrong with it."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror or str(error) if isinstance(error, OSError) else "it is not text"
        raise QuantizationError(f"{path}: cannot read the plan: {reason}") from error
    try:
        data = json.loads(text, parse_constant=_no_constant, object_pairs_hook=_unique_keys)
    except (ValueError, RecursionError) as error:
        raise QuantizationError(f"{path}: not a plan (not JSON, or cut short): {error}") from error
    try:
        return _decode(data)
    except (_Malformed, QuantizationError) as error:
        raise QuantizationError(f"{path}: not a valid plan: {error}") from error


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not allowed")


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        twice = next(key for place, (key, _) in enumerate(pairs) if key in dict(pairs[:place]))
        raise ValueError(f"{twice!r} stands twice in one object")
    return result


def _decode(data: Any) -> PlanContents:
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise _Malformed(f'it has no "format": "{FORMAT}"; give what QuantizationPlan.save wrote')
    version = data.get("schema_version")
    if version == _WITHOUT_JOURNAL:
        data = {**data, "journal": {"held_back": 0, "plain_db": None, "sqnr_db": None, "agreement": None, "entries": []}}
    elif version != SCHEMA_VERSION:
        found = brief(version)
        raise _Malformed(f"schema_version must be {SCHEMA_VERSION}, got {found}; quantize the model again with this version")
    header = _object("the plan", cast("Any", data), _KEYS)
    derived = _object("derived", header["derived"], _DERIVED)
    names: dict[TensorId, str] = {}
    roundings: dict[TensorId, str] = {}

    def parameters(group: str, more: tuple[str, ...]) -> dict[TensorId, QuantParams]:
        found: dict[TensorId, QuantParams] = {}
        for key, value in _mapping(group, header[group]).items():
            where = f"{group}: {key}"
            entry = _object(where, _with_later(where, value, QuantParams), ("name", *_PARAMS, *more))
            found[TensorId(key)] = _params(where, entry)
            if entry["name"] is not None:
                names[TensorId(key)] = _text(f"{where}: name", entry["name"])
            if more and entry["rounding"] is not None:
                roundings[TensorId(key)] = _one_of(f"{where}: rounding", entry["rounding"], tuple(ROUNDINGS))
        return found

    weights = parameters("weights", ())
    plan = PlanContents(
        fingerprint=_text("fingerprint", header["fingerprint"]),
        recipe=_recipe(header["recipe"]),
        activations=parameters("activations", ("rounding",)),
        weights=weights,
        names=names,
        roundings=roundings,
        layers=_entries("layers", header["layers"], IntegerLayer),
        float_ops=_entries("float_ops", header["float_ops"], FloatOp),
        adjustments=_entries("adjustments", header["adjustments"], Adjustment),
        equalization=Equalization(
            factors={
                TensorId(key): _factors(f"equalization: {key}", value)
                for key, value in _mapping("equalization", header["equalization"]).items()
            }
        ),
        corrections=Corrections(
            bias_shifts={
                TensorId(key): _reals(f"bias_shifts: {key}", value)
                for key, value in _mapping("bias_shifts", header["bias_shifts"]).items()
            },
            weight_values={
                TensorId(key): _integers(f"weight_values: {key}", value, weights.get(TensorId(key)))
                for key, value in _mapping("weight_values", header["weight_values"]).items()
            },
        ),
        biases={
            TensorId(key): _params(
                f"derived: biases: {key}",
                _object(f"derived: biases: {key}", _with_later(f"derived: biases: {key}", value, QuantParams), _PARAMS),
            )
            for key, value in _mapping("derived: biases", derived["biases"]).items()
        },
        enclosed=_names("derived: enclosed", derived["enclosed"]),
        folds=_entries("derived: folds", derived["folds"], Fold),
        shared=tuple(_names("derived: shared", group) for group in _list("derived: shared", derived["shared"])),
        journal=_journal(header["journal"]),
    )
    _check_ops(plan)
    return plan


def _check_ops(plan: PlanContents) -> None:
    """Refuse an op that stands twice."""
    outputs = [layer.output for layer in plan.layers]
    twice = next((output for output in outputs if outputs.count(output) > 1), None)
    if twice is not None:
        raise _Malformed(f"layers: two have the output {twice}; keep one")
    unknown = next((key for key in plan.corrections.bias_shifts if key not in outputs), None)
    if unknown is not None:
        raise _Malformed(f"bias_shifts: {unknown} is the output of no layer; take the entry out")
    both = next((op.tensor for op in plan.float_ops if op.tensor in outputs), None)
    if both is not None:
        raise _Malformed(f"{both} is the output of a layer and stands in float_ops; keep one of the two")


def _journal(value: Any) -> Journal:
    data = _object("journal", value, ("held_back", "plain_db", "sqnr_db", "agreement", "entries"))
    return Journal(
        entries=tuple(
            _journal_entry(f"journal: entries[{place}]", each) for place, each in enumerate(_list("journal", data["entries"]))
        ),
        held_back=_integer("journal: held_back", data["held_back"], 0, 2**31),
        plain_db=_real("journal: plain_db", data["plain_db"]),
        sqnr_db=_real("journal: sqnr_db", data["sqnr_db"]),
        agreement=_real("journal: agreement", data["agreement"]),
    )


def _journal_entry(where: str, value: Any) -> JournalEntry:
    data = _object(where, value, tuple(each.name for each in fields(JournalEntry)))
    if not isinstance(data["kept"], bool) or not isinstance(data["proposal"], str):
        raise _Malformed(f"{where}: kept must be true or false, and proposal a text")
    return JournalEntry(
        step=_text(f"{where}: step", data["step"]),
        proposal=data["proposal"],
        gain_db=_real(f"{where}: gain_db", data["gain_db"]),
        standard_error_db=_real(f"{where}: standard_error_db", data["standard_error_db"]),
        kept=data["kept"],
        seconds=_real(f"{where}: seconds", data["seconds"]) or 0.0,
    )


def _real(where: str, value: Any) -> float | None:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if value is not None and not is_number and value not in ("inf", "-inf"):
        raise _Malformed(f'{where} must be a number, "inf", "-inf" or null, got {brief(value)}')
    return None if value is None else float(value)


def _recipe(value: Any) -> Recipe:
    data = _object("recipe", _with_later("recipe", value, Recipe), _RECIPE)
    _text("recipe: range_estimator", data["range_estimator"])
    if data["activation_dtype"] is not None:
        _text("recipe: activation_dtype", data["activation_dtype"])
    read: dict[str, Any] = {name: tuple(each) if isinstance(each, list) else each for name, each in data.items()}
    return Recipe(**read)


def _params(where: str, entry: Mapping[str, Any]) -> QuantParams:
    dtype = _one_of(f"{where}: dtype", entry["dtype"], tuple(INTEGER_RANGE))
    low, high = INTEGER_RANGE[dtype]
    axis = None if entry["axis"] is None else _integer(f"{where}: axis", entry["axis"], 0, 31)
    block = None if entry["block"] is None else _integer(f"{where}: block", entry["block"], 1, 2**31)
    per_axis = axis is not None
    if block is not None and not per_axis:
        raise _Malformed(f"{where}: block needs the axis that blocks lie along, got null")

    def numbers(name: str, one: Callable[[str, Any], float]) -> Any:
        place, value = f"{where}: {name}", entry[name]
        if block is not None:
            rows = [_list(place, row) for row in _list(place, value)]
            if len({len(row) for row in rows}) != 1:
                raise _Malformed(f"{place} must be lists of as many numbers each, for the blocks of a matrix")
            return [[one(place, each) for each in row] for row in rows]
        if per_axis != isinstance(value, list):
            expected = "a list, one number for each index of the axis" if per_axis else "one number, for axis is null"
            raise _Malformed(f"{place} must be {expected}, got {brief(value)}")
        return [one(place, each) for each in value] if per_axis else one(place, value)

    scale = numbers("scale", _scale)
    zero_point = numbers("zero_point", lambda place, number: _integer(place, number, low, high))
    qmin, qmax = (_integer(f"{where}: {name}", entry[name], low, high) for name in ("qmin", "qmax"))
    try:
        return QuantParams(
            dtype=dtype,
            scale=np.asarray(scale, np.float32),
            zero_point=np.asarray(zero_point, np.int32),
            granularity=PerTensor() if axis is None else PerAxis(axis) if block is None else PerBlock(axis, block),
            qmin=qmin,
            qmax=qmax,
        )
    except ValueError as error:
        raise _Malformed(f"{where}: {error}") from error


def _entries(where: str, value: Any, kind: type[Entry]) -> tuple[Entry, ...]:
    return tuple(_entry(f"{where}[{place}]", each, kind) for place, each in enumerate(_list(where, value)))


def _entry(where: str, value: Any, kind: type[Entry]) -> Entry:
    declared = fields(kind)
    data = _object(where, _with_later(where, value, kind), tuple(each.name for each in declared))
    read: dict[str, Any] = {}
    for each in declared:
        place, found = f"{where}: {each.name}", data[each.name]
        if each.name == "padding":
            read[each.name] = tuple(_integer(place, number, 0, 2**31) for number in _list(place, found))
            if len(read[each.name]) != 4:
                raise _Malformed(f"{place} must be 4 numbers, got {brief(found)}")
        elif str(each.type).startswith("tuple"):
            read[each.name] = _names(place, found)
        elif each.name == "block":
            read[each.name] = _integer(place, found, 0, 2**31)
        elif found is None and "None" in str(each.type):
            read[each.name] = None
        else:
            read[each.name] = _text(place, found)
    return kind(**read)


def _with_later(where: str, value: Any, kind: type) -> dict[str, Any]:
    """Return an object with fields that its file may lack."""
    return {**_LATER.get(kind, {}), **_mapping(where, value)}


def _object(where: str, value: Any, keys: tuple[str, ...]) -> dict[str, Any]:
    """Return an object that has exactly these fields."""
    found = _mapping(where, value)
    missing, unknown = [key for key in keys if key not in found], [key for key in found if key not in keys]
    if unknown:
        raise _Malformed(f"{where}: unknown field {unknown[0]!r}; known: {', '.join(keys)}")
    if missing:
        raise _Malformed(f"{where}: field {missing[0]!r} is missing")
    return found


def _mapping(where: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _Malformed(f"{where} must be an object, got {brief(value)}")
    return cast("dict[str, Any]", value)


def _list(where: str, value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise _Malformed(f"{where} must be a list, got {brief(value)}")
    return cast("list[Any]", value)


def _names(where: str, value: Any) -> tuple[TensorId, ...]:
    return tuple(TensorId(_text(where, each)) for each in _list(where, value))


def _text(where: str, value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise _Malformed(f"{where} must be a text, got {brief(value)}")
    return value


def _one_of(where: str, value: Any, allowed: tuple[str, ...]) -> str:
    if value not in allowed:
        raise _Malformed(f"{where} must be one of {', '.join(allowed)}, got {brief(value)}")
    return value


def _integer(where: str, value: Any, low: int, high: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise _Malformed(f"{where} must be a whole number in [{low}; {high}], got {brief(value)}")
    return value


def _reals(where: str, value: Any) -> npt.NDArray[np.float32]:
    numbers = _list(where, value)
    is_real = [isinstance(each, (int, float)) and not isinstance(each, bool) and abs(each) <= _FLOAT32_MAX for each in numbers]
    if not all(is_real):
        raise _Malformed(f"{where} must be a list of float32 numbers, got {brief(numbers[is_real.index(False)])}")
    return np.asarray(numbers, np.float32)


def _factors(where: str, value: Any) -> npt.NDArray[np.float32]:
    data = _object(where, value, ("shape", "factors"))
    shape = [_integer(f"{where}: shape", each, 1, 2**31) for each in _list(f"{where}: shape", data["shape"])]
    factors = [_scale(f"{where}: factors", each) for each in _list(f"{where}: factors", data["factors"])]
    if len(factors) != math.prod(shape):
        raise _Malformed(f"{where}: factors must be {math.prod(shape)} numbers for its shape, got {len(factors)}")
    return np.asarray(factors, np.float32).reshape(shape)


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


def _integers(where: str, value: Any, params: QuantParams | None) -> npt.NDArray[Any]:
    data = _object(where, value, ("dtype", "shape", "params", "data"))
    if params is None:
        raise _Malformed(f"{where} is no weight of the plan; take the entry out")
    if _text(f"{where}: params", data["params"]) != _digest(params):
        raise _Malformed(
            f"{where}: its integers were rounded for other parameters than it has; take the entry out, and it is rounded anew"
        )
    dtype = np.dtype(_one_of(f"{where}: dtype", data["dtype"], (params.dtype,))).newbyteorder("<")
    shape = [_integer(f"{where}: shape", each, 0, 2**31) for each in _list(f"{where}: shape", data["shape"])]
    try:
        content = base64.b64decode(_text(f"{where}: data", data["data"]), validate=True)
    except ValueError:
        raise _Malformed(f"{where}: data is no base64") from None
    if len(content) != math.prod(shape) * dtype.itemsize:
        raise _Malformed(f"{where}: data has {len(content)} bytes, expected {math.prod(shape) * dtype.itemsize} for its shape")
    values = np.frombuffer(content, dtype).reshape(shape).astype(params.dtype)
    if values.size and not (params.qmin <= int(values.min()) and int(values.max()) <= params.qmax):
        raise _Malformed(f"{where}: its integers must lie in [{params.qmin}; {params.qmax}]")
    return values


def _scale(where: str, value: Any) -> float:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not 0 < value <= _FLOAT32_MAX or np.float32(value) == 0:
        raise _Malformed(f"{where} must be a positive float32 number, got {brief(value)}")
    return float(value)
