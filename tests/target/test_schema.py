"""The published JSON Schema of target descriptions: equal to the code, and of the same mind as it about files."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path

import jsonschema
import pytest
from target_schema import json_schema

from octavo.errors import TargetError
from octavo.target import CPU, OpSupport, TargetDescription
from octavo.target.limits import Limit
from octavo.target.tensor_support import TensorSupport

DOCS = Path(__file__).resolve().parents[2] / "docs"
FILE = DOCS / "target.schema.json"


@cache
def validator() -> jsonschema.Draft202012Validator:
    schema = json_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def is_valid(data: object) -> bool:
    return validator().is_valid(data)


def example() -> dict:
    found = re.search(r"```json\n(.*?)```", (DOCS / "targets.md").read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    return json.loads(found[1])


def test_the_file_is_what_the_code_says() -> None:
    write = "json.dumps(target_schema.json_schema(), indent=1) and a newline"
    assert FILE.read_text(encoding="utf-8") == json.dumps(json_schema(), indent=1) + "\n", f"write {FILE.name} anew: {write}"


def test_it_has_every_field() -> None:
    schema = json_schema()
    defs = schema["$defs"]
    assert {*schema["properties"]} == {"schema_version", "defaults", *TargetDescription.__slots__}
    assert {*defs["op"]["properties"]} == {*OpSupport.__slots__}
    assert {*defs["defaults"]["properties"]} == {*OpSupport.__slots__} - {"op"}
    assert {*defs["tensor"]["properties"]} == {*TensorSupport.__slots__}
    assert {*defs["limit"]["anyOf"][1]["properties"]} == {*Limit.__slots__}


def test_descriptions_are_valid() -> None:
    assert is_valid(json.loads(json.dumps(CPU.to_json())))
    assert is_valid(example())
    for path in (DOCS.parent / "examples").rglob("*.json"):
        data = json.loads(path.read_text(encoding="utf-8"))
        assert not (isinstance(data, dict) and "ops" in data and "schema_version" in data) or is_valid(data), path


@pytest.mark.parametrize(
    "change",
    [
        {"name": " "},
        {"name": None},
        {"schema_version": 3},
        {"ops": {}},
        {"ops": [{}]},
        {"ops": [{"op": "conv2d"}]},
        {"ops": [{"op": "add", "activations": []}]},
        {"ops": [{"op": "add", "activations": ["int8", "int8"]}]},
        {"ops": [{"op": "add", "weights": ["float16"]}]},
        {"ops": [{"op": "add", "rounding": "nearest"}]},
        {"ops": [{"op": "add", "accumulator_bits": 8}]},
        {"ops": [{"op": "add", "same_params": 1}]},
        {"ops": [{"op": "add", "limits": {"kernels": 3}}]},
        {"ops": [{"op": "add", "limits": {"kernel": {"multiple_of": 0}}}]},
        {"ops": [{"op": "add", "limits": {"kernel": -1}}]},
        {"ops": [{"op": "add", "tensors": {"result": {}}}]},
        {"ops": [{"op": "add", "tensors": {"output": {"scale": 0}}}]},
        {"ops": [{"op": "add", "tensors": {"output": {"zero_point": "0"}}}]},
        {"defaults": {"op": "add"}},
        {"defaults": {"scales": "two"}},
        {"never": ["relu"]},
        {"op_by_op": 1},
        {"alignment": 3},
        {"scratch_bytes": -1},
        {"activation_layout": "NHCW"},
        {"isas": "generic"},
        {"colour": "red"},
    ],
)
def test_what_the_code_refuses_the_schema_refuses(change: dict) -> None:
    data = example() | change
    assert not is_valid(data)
    with pytest.raises(TargetError):
        TargetDescription.from_json(data)
