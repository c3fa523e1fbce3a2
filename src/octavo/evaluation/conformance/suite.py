"""Writes the conformance cases of a target description: small models of each of its ops, inputs and what they must give.

Expected values are those of the oracles of `octavo.numerics` in the target's own arithmetic. No kernel runs here. What a
description allows and no case covers is listed with the reason.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...compiler.partition.pipeline import partition
from ...compiler.target_choice import TargetLike, resolve_target
from ...errors import DataError, OctavoError, check_path
from ...frontends.load import load
from ...ir.composites.attributes import Composite, read_composites
from ...ir.graph import Model
from ...quantizer.compile import explain
from ...target import GATHERED_MATMUL, STACKED_MATMUL, OpSupport, TargetDescription
from .case import write_case
from .choices import all_choices, dtypes_with_cases
from .oracles import Expected, expected
from .reduced import REDUCED
from .sketch import Sketch
from .unweighted import SKETCHES
from .weighted import weighted_sketches

SCHEMA_VERSION = 1
INDEX = "index.json"
_WEIGHTED = ("nn.conv2d", "matmul", STACKED_MATMUL, GATHERED_MATMUL)
_MAKERS = {**SKETCHES, **REDUCED, **dict.fromkeys(_WEIGHTED, weighted_sketches)}
_EDGES = ("quantize", "dequantize")


@dataclass(kw_only=True, slots=True)
class Suite:
    """What `write` made.

    Parameters
    ----------
    cases
        Entries of the index: name, op, what each checks and covers.
    not_covered
        Ops, or parts of one, that no case covers, with the reason.
    refused
        Cases that the description does not allow, with the reason.
    """

    cases: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    not_covered: list[dict[str, str]] = field(default_factory=list[dict[str, str]])
    refused: list[dict[str, str]] = field(default_factory=list[dict[str, str]])

    @property
    def summary(self) -> str:
        """One line: how many cases of which ops, and what none covers."""
        ops = dict.fromkeys(case["op"] for case in self.cases)
        text = f"{len(self.cases)} cases of {len(ops)} ops"
        if not self.not_covered:
            return text
        return f"{text}; not covered: " + "; ".join(f"{entry['op']} ({entry['reason']})" for entry in self.not_covered)


def write(target: TargetLike, folder: str | Path) -> Suite:
    """Write the cases of each op and constraint of a target description into a new folder.

    Parameters
    ----------
    target
        A TargetDescription, the path of one, or another target that `octavo.compile` takes.
    folder
        New, or empty. The same description gives the same bytes.

    Raises
    ------
    TargetError
        The description cannot be read.
    DataError
        The folder has something in it, or cannot be written.
    """
    description = resolve_target(target).description
    place = check_path(folder, DataError, "the path of a new folder")
    if place.exists() and (not place.is_dir() or any(place.iterdir())):
        raise DataError(f"{place}: is there already; give a new folder, or an empty one")
    if not place.absolute().parent.is_dir():
        raise DataError(f"{place}: there is no folder {place.parent}; make it first")
    try:
        made = Path(tempfile.mkdtemp(dir=place.absolute().parent, prefix=f".{place.name}."))
    except OSError as error:
        raise DataError(f"{place}: cannot write: {error.strerror or error}") from error
    try:
        suite = _write_all(description, made)
        mask = os.umask(0)
        os.umask(mask)
        made.chmod(0o777 & ~mask)
        made.replace(place)
    except BaseException as error:
        shutil.rmtree(made, ignore_errors=True)
        if isinstance(error, OSError):
            raise DataError(f"{place}: cannot write: {error.strerror or error}") from error
        raise
    return suite


def _write_all(description: TargetDescription, folder: Path) -> Suite:
    suite = Suite()
    for support in description.ops:
        if support.op not in description.never:
            _write_op(description, support, folder, suite)
    index = {
        "schema_version": SCHEMA_VERSION,
        "description": description.to_json(),
        "cases": suite.cases,
        "not_covered": suite.not_covered,
        "refused": suite.refused,
    }
    (folder / INDEX).write_text(json.dumps(index, indent=1) + "\n", encoding="utf-8")
    return suite


def _write_op(description: TargetDescription, support: OpSupport, folder: Path, suite: Suite) -> None:
    """Write the cases of one op, and say what of it none covers."""
    suite.not_covered += [{"op": support.op, "reason": reason} for reason in _left_out(support)]
    if support.op not in _MAKERS:
        return
    seen: set[tuple[str, ...]] = set()
    for choices in all_choices(description, support):
        accepted, refused = 0, list[dict[str, str]]()
        for sketch in _MAKERS[support.op](choices):
            name = "-".join((support.op.replace("nn.", ""), choices.dtype, choices.rounding, sketch.name))
            found = computed(sketch, description)
            if isinstance(found, str):
                refused.append({"case": name, "reason": found})
                continue
            composite, values = found
            accepted += 1
            # Another rounding that leaves an op's arithmetic as it is makes no other case.
            key = (sketch.name, choices.dtype, str(composite.op.arithmetic()), values.values.tobytes().hex())
            if key not in seen:
                seen.add(key)
                suite.cases.append(write_case(folder / name, sketch, composite, values))
        if accepted:
            suite.refused += refused
        else:
            what = f"{choices.dtype}, rounding {choices.rounding}"
            reason = refused[-1]["reason"] if refused else "no case of it was made"
            suite.not_covered.append({"op": support.op, "reason": f"{what}: {reason}"})


def _left_out(support: OpSupport) -> Iterator[str]:
    """Yield what no case covers of an op, whatever the cases are."""
    if support.op not in _MAKERS:
        yield "no cases of this op yet"
        return
    others = [dtype for dtype in support.activations if dtype not in dtypes_with_cases(support)]
    if others:
        yield f"no cases of {', '.join(others)} yet"
    if "int4" in support.weights:
        yield "no cases of int4 weights yet"
    yield from (f"no cases of {name} yet" for name in ("float_output", "sum_output", "float_input") if getattr(support, name))


def computed(sketch: Sketch, description: TargetDescription) -> tuple[Composite, Expected] | str:
    """Return the composite of a case and what it must give, or in words why there is none."""
    try:
        model: Model = load(sketch.module)
        composites = list(read_composites(partition(model, target=description)).values())
    except OctavoError as error:
        return str(error)
    inner = [each for each in composites if each.op_name not in _EDGES and each.quantize_info]
    if len(inner) != 1 or len(composites) != 1:
        ops = explain(model, target=description).ops
        return next((op.reason for op in ops if op.reason and op.op not in _EDGES), f"it becomes {len(inner)} composites")
    found = expected(inner[0].op, sketch.inputs)
    if found is None:
        return f"no oracle of {type(inner[0].op).__name__} is known here"
    return inner[0], found
