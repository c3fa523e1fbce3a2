"""A conformance case as files, which any language can read: what octavo writes, a vendor's runner reads. It computes nothing.

A case is a folder with

    model.json      the model of one op in QDQ form: octavo.load(tvm.ir.load_json(text))
    case.json       the same in plain words: op, quantize_info, shapes, attributes; what the case checks, and covers
    constants.npz   the op's constants, where it has any: "weight.values" (HWIO, or (in, out)), "weight.bias", "table" ...
    inputs.npz      the integers it reads, by name
    expected.npz    the integers it gives, by name
    details.npz     for a report: "accumulator", "real" (before rounding and clamp), "touches_padding"; as far as there are any
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import tvm

from ...errors import DataError
from ...ir.composites.attributes import Composite
from ...ir.composites.base import CompositeOp, QuantizedOutput, QuantizedTensor
from ...numerics.arrays import NO_ARRAYS, Array, check_members
from ...numerics.rounding.fixed_point import FixedPointMultiplier
from .oracles import Expected
from .sketch import RESULT, Sketch

_IN_QUANTIZE_INFO = (QuantizedTensor, QuantizedOutput)


@dataclass(frozen=True, kw_only=True)
class Case:
    """One case of a folder that `write` made.

    Parameters
    ----------
    name
        Of the case: its folder's.
    folder
        Where its files are.
    """

    name: str
    folder: Path

    @cached_property
    def description(self) -> dict[str, Any]:
        """What case.json says."""
        found: dict[str, Any] = json.loads((self.folder / "case.json").read_text(encoding="utf-8"))
        return found

    @property
    def op(self) -> str:
        """The op, as the target description calls it."""
        return str(self.description["op"])

    @property
    def inputs(self) -> dict[str, Array]:
        """The integers that it reads, by name."""
        return read_arrays(self.folder / "inputs.npz")

    @property
    def constants(self) -> dict[str, Array]:
        """The constants of its op, by name."""
        return read_arrays(self.folder / "constants.npz")

    @property
    def expected(self) -> dict[str, Array]:
        """The integers that it must give, by name."""
        return read_arrays(self.folder / "expected.npz")

    @property
    def details(self) -> dict[str, Array]:
        """What a report says of a value that is wrong."""
        return read_arrays(self.folder / "details.npz")

    @property
    def module(self) -> tvm.IRModule:
        """Its model, for `octavo.load`."""
        loaded: Any = tvm.ir.load_json((self.folder / "model.json").read_text(encoding="utf-8"))
        return loaded


def read_arrays(path: Path) -> dict[str, Array]:
    """Return the arrays of an .npz; DataError where it is none."""
    try:
        check_members(path)
        with np.load(path, allow_pickle=False) as stored:
            return {name: stored[name] for name in stored.files}
    except (OSError, *NO_ARRAYS) as error:
        raise DataError(f"{path}: cannot read arrays (.npz): {error}") from error


def write_case(folder: Path, sketch: Sketch, composite: Composite, found: Expected) -> dict[str, Any]:
    """Write the files of a case into a new folder; return its entry of the index."""
    folder.mkdir()
    constants, attributes = parts_of(composite.op)
    multiplier = getattr(composite.op, "multiplier", None)
    if isinstance(multiplier, FixedPointMultiplier):
        constants |= {f"multiplier.{each}": getattr(multiplier, each) for each in ("factor", "first", "second")}
    details = {"accumulator": found.accumulator, "real": found.real, "touches_padding": found.touches_padding}
    arrays = {
        "inputs": dict(sketch.inputs),
        "constants": constants,
        "expected": {RESULT: found.values},
        "details": {name: value for name, value in details.items() if value is not None},
    }
    for name, values in arrays.items():
        contiguous: dict[str, Any] = {key: np.ascontiguousarray(value) for key, value in values.items()}
        np.savez(folder / f"{name}.npz", **contiguous)
    (folder / "model.json").write_text(str(tvm.ir.save_json(sketch.module)), encoding="utf-8")
    entry = {"name": folder.name, "op": sketch.op, "checks": sketch.checks, "covers": covers(composite, found)}
    said = {
        **entry,
        "kind": composite.op_name,
        "inputs": {name: _tensor(value) for name, value in sketch.inputs.items()},
        "outputs": {RESULT: _tensor(found.values)},
        "channel_axis": found.channel_axis,
        "attributes": attributes,
        "quantize_info": dict(composite.quantize_info),
    }
    (folder / "case.json").write_text(json.dumps(said, indent=1) + "\n", encoding="utf-8")
    return entry


def parts_of(op: CompositeOp) -> tuple[dict[str, Array], dict[str, Any]]:
    """Return an op's arrays, by dotted names, and its plain fields; the quantize_info has its tensors' parameters."""
    arrays: dict[str, Array] = {}
    plain: dict[str, Any] = {}

    def read(prefix: str, value: Any) -> None:
        if isinstance(value, np.ndarray):
            arrays[prefix] = value
        elif isinstance(value, _IN_QUANTIZE_INFO) or value is None:
            return
        elif is_dataclass(value):
            for each in fields(value):
                read(f"{prefix}.{each.name}", getattr(value, each.name))
        elif isinstance(value, Mapping):
            for key, each in value.items():
                read(f"{prefix}.{key}", each)
        elif "." not in prefix:
            plain[prefix] = list(value) if isinstance(value, tuple) and _is_plain(value) else value

    for each in fields(op):  # pyright: ignore[reportArgumentType] (each composite op is a dataclass; their base is none)
        read(each.name, getattr(op, each.name))
    return arrays, {name: value for name, value in plain.items() if _is_plain(value)}


def _is_plain(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return all(map(_is_plain, value))
    return isinstance(value, (bool, int, float, str))


def _tensor(value: Array) -> dict[str, Any]:
    return {"shape": list(value.shape), "dtype": str(value.dtype)}


def covers(composite: Composite, found: Expected) -> dict[str, int]:
    """Return how many results lie where arithmetics differ: on ties, at the bounds, beside padding; and how far sums reach."""
    counts: dict[str, int] = {"values": int(found.values.size)}
    output = composite.quantize_info.get("output", {})
    if found.real is not None:
        low, high, zero_point = output["qmin"], output["qmax"], output["zero_point"]
        ties = is_tie(found.real) & (found.real > low - 1) & (found.real < high + 1)
        counts |= {"positive_ties": int((ties & (found.real > zero_point)).sum())}
        counts |= {"negative_ties": int((ties & (found.real < zero_point)).sum())}
        counts |= {"below": int((found.real < low - 0.5).sum()), "above": int((found.real > high + 0.5).sum())}
    if found.accumulator is not None:
        counts |= {"least_sum": int(found.accumulator.min()), "greatest_sum": int(found.accumulator.max())}
    if found.touches_padding is not None:
        counts["beside_padding"] = int(np.broadcast_to(found.touches_padding, found.values.shape).sum())
    return counts


def is_tie(real: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
    """Return which numbers lie in the middle between two integers, but for what float32 scales leave of it."""
    return np.abs(np.abs(real - np.trunc(real)) - 0.5) < 1e-6
