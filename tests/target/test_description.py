"""Target descriptions: what they allow, what their errors name, and that they survive JSON."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from octavo.compiler.partition.outline_integer import COMPUTE
from octavo.compiler.partition.target_rules import _TABLES
from octavo.errors import TargetError
from octavo.target import CPU, OpSupport, TargetDescription
from octavo.target.limits import LIMITS, Limit
from octavo.target.tensor_support import TensorSupport
from octavo.target.vocabulary import ACTIVATION_DTYPES, FUSIONS, OPS, ROLES, ROUNDINGS

_FIELDS = (
    *(*OpSupport.__slots__, *TensorSupport.__slots__, *Limit.__slots__),
    *(name for name in TargetDescription.__slots__ if name != "ops"),
    *(*LIMITS, *ROLES),
)
NPU = TargetDescription(
    name="npu",
    ops=(
        OpSupport(op="nn.conv2d", weights=("int8", "int4"), fusions=("bias",), rounding="half_away", accumulator_bits=24),
        OpSupport(
            op="add",
            activations=("int16",),
            same_params=True,
            scales="power_of_two",
            requantize="shift",
            tensors={"output": TensorSupport(scale=0.5, zero_point=0)},
            limits={"rank": Limit(one_of=(2, 4)), "output_channels": Limit(maximum=64, multiple_of=8)},
        ),
    ),
    never=("nn.softmax",),
    scratch_bytes=1024,
)


def with_field(field: str, value: object) -> dict:
    """The JSON of NPU with one field of its first op changed."""
    data = NPU.to_json()
    data["ops"][0][field] = value
    return data


@pytest.mark.parametrize("description", [CPU, NPU])
def test_json_round_trip(description: TargetDescription) -> None:
    assert TargetDescription.from_json(json.loads(json.dumps(description.to_json()))) == description


def test_the_vocabulary_of_ops_is_what_partition_asks_for() -> None:
    asked = {_TABLES.get(composite) or op for composite, ops, _ in COMPUTE for op in ops} | {"dequantize"}
    assert set(OPS) == asked | {"dequantize"}
    assert {entry.op for entry in CPU.ops} == set(OPS)
    assert len(set(OPS)) == len(OPS)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("op", "conv2d", "ops[0]: op: unknown 'conv2d': did you mean 'nn.conv2d'? allowed: nn.conv2d, "),
        ("op", 5, "ops[0]: op: unknown 5: allowed: nn.conv2d, "),
        ("rounding", "whatever", "op 'nn.conv2d': rounding: unknown 'whatever': allowed: half_even, half_even_stored"),
        ("rounding", ["half_even", "nearest"], "rounding: unknown 'nearest'"),
        ("rounding", [], "rounding: expected at least 1 of half_even"),
        ("rounding", 5, "rounding: expected a list of names (half_even, half_even_stored"),
        ("activations", ["int7"], "activations: unknown 'int7': did you mean 'int8'? allowed: uint8, int8, uint16, int16"),
        ("activations", ["int4"], "activations: unknown 'int4'"),
        ("activations", "int8", "activations: expected a list of names (uint8, int8, uint16, int16), got 'int8'"),
        ("activations", [], "activations: expected at least 1 of uint8"),
        ("activations", ["int8", "int8"], "activations: a name stands twice"),
        ("weights", ["float16"], "weights: unknown 'float16'"),
        ("weights", None, "weights: expected a list of names"),
        ("weight_schemes", ["symetric"], "weight_schemes: unknown 'symetric': did you mean 'symmetric'?"),
        ("weight_granularity", ["per_channel"], "weight_granularity: unknown 'per_channel'"),
        ("fusions", ["relu"], "fusions: unknown 'relu': did you mean 'nn.relu'? allowed: bias, nn.relu, clip"),
        ("same_params", "yes", "same_params: expected true or false, got 'yes'"),
        ("accumulator_bits", 8, "accumulator_bits: expected a whole number from 16 to 64, got 8"),
        ("accumulator_bits", "32", "accumulator_bits: expected a whole number from 16 to 64, got '32'"),
        ("wide_accumulator_bits", 65, "wide_accumulator_bits: expected a whole number from 16 to 64, got 65"),
        ("accumulator_bits", True, "accumulator_bits: expected a whole number from 16 to 64, got True"),
        ("rounding", "once", "rounding: unknown 'once'"),
        ("requantize", "shift", "requantize 'shift' needs scales 'power_of_two', got 'any'"),
        ("requantize", "fixed", "requantize: unknown 'fixed': did you mean 'fixed_point'?"),
        ("scales", "pow2", "scales: unknown 'pow2': allowed: any, power_of_two"),
        ("overflow", "maybe", "overflow: unknown 'maybe': allowed: proven, saturates, wraps"),
        ("weight_range", "wide", "weight_range: unknown 'wide': allowed: narrow, full"),
        ("activation_schemes", [], "activation_schemes: expected at least 1 of symmetric, asymmetric"),
        ("tensors", {"result": {}}, "tensors: unknown 'result': allowed: input, input0"),
        ("tensors", {"output": {"scale": 0}}, "tensors: output: scale: expected a positive number, got 0"),
        ("tensors", {"output": {"zero_point": 0.5}}, "tensors: output: zero_point: expected a whole number, got 0.5"),
        (
            "tensors",
            {"output": {"scale": 0.3, "scales": "power_of_two"}},
            "expected a power of two, as scales says, got 0.3",
        ),
        ("tensors", {"output": {"dtype": "int8"}}, "tensors: output: field: unknown 'dtype': did you mean 'dtypes'?"),
        ("tensors", ["output"], "tensors: expected an object by name"),
        ("limits", {"kernels": 3}, "limits: unknown 'kernels': did you mean 'kernel'?"),
        ("limits", {"kernel": {"max": 3}}, "limits: kernel: field: unknown 'max'"),
        ("limits", {"kernel": {"minimum": -1}}, "limits: kernel: minimum: expected a whole number of 0 or more, got -1"),
        ("limits", {"kernel": {"minimum": 3, "maximum": 2}}, "limits: kernel: minimum 3 is above maximum 2"),
        ("limits", {"kernel": {"multiple_of": 0}}, "limits: kernel: multiple_of: expected a whole number of 1 or more, got 0"),
        (
            "limits",
            {"kernel": {"maximum": 3, "one_of": [5]}},
            "kernel: one_of: no number of (5,) keeps to the other fields",
        ),
        ("limits", {"kernel": "3x3"}, "limits: kernel: expected an object with minimum"),
        ("roundings", "half_up", "an op's: field: unknown 'roundings': did you mean 'rounding'?"),
    ],
)
def test_an_error_names_the_file_the_field_and_what_is_allowed(tmp_path: Path, field: str, value: object, message: str) -> None:
    path = tmp_path / "npu.json"
    path.write_text(json.dumps(with_field(field, value)))
    with pytest.raises(TargetError) as raised:
        TargetDescription.load(path)
    assert str(raised.value).startswith(f"{path}: ops[0]: ")
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": ""}, "name: expected the target's name, got ''"),
        ({"name": 5}, "name: expected the target's name, got 5"),
        ({"ops": {"op": "add"}}, "ops: expected a list of objects"),
        ({"ops": ["add"]}, "ops[0]: expected an object, got 'add'"),
        ({"ops": [{}]}, "ops[0]: an op's: field 'op' is missing"),
        ({"ops": [{"op": "add"}, {"op": "add"}]}, "ops: 'add' stands twice"),
        ({"isas": "generic"}, "isas: expected a list of names, got 'generic'"),
        ({"extensions": [1]}, "extensions: expected a list of names"),
        ({"isa": []}, "field: unknown 'isa': did you mean 'isas'?"),
        ({"schema_version": 3}, "schema_version 2"),
        ({"never": ["relu"]}, "never: unknown 'relu': did you mean 'nn.relu'?"),
        ({"alignment": 3}, "alignment: expected one of 1, 2, 4, 8, 16, 32, 64, got 3"),
        ({"scratch_bytes": -1}, "scratch_bytes: expected a whole number of 0 or more, or null, got -1"),
        ({"weight_layout": "HIWO"}, "weight_layout: unknown 'HIWO': did you mean 'IHWO'?"),
        ({"activation_layout": "NHCW"}, "activation_layout: unknown 'NHCW'"),
        ({"defaults": {"op": "add"}}, "defaults: expected an object with fields of ops, `op` not among them"),
        ({"defaults": {"scales": "two"}}, "defaults: op 'nn.conv2d': scales: unknown 'two'"),
    ],
)
def test_errors_of_the_whole(change: dict, message: str) -> None:
    with pytest.raises(TargetError) as raised:
        TargetDescription.from_json(NPU.to_json() | change)
    assert message in str(raised.value)


def test_ops_and_a_name_are_required_and_isas_are_not() -> None:
    data = NPU.to_json()
    del data["isas"], data["extensions"]
    assert TargetDescription.from_json(data) == NPU
    for field in ("name", "ops"):
        with pytest.raises(TargetError, match=f"field '{field}' is missing"):
            TargetDescription.from_json({key: value for key, value in data.items() if key != field})


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[" * 100_000, json.dumps(NPU.to_json()).encode()[:-40]])
def test_what_is_no_json_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "npu.json"
    path.write_bytes(content)
    with pytest.raises(TargetError, match="cannot read the target description: not JSON, or truncated") as raised:
        TargetDescription.load(path)
    assert str(path) in str(raised.value)


@pytest.mark.parametrize("content", ["[]", "null", "5", '{"format": "profile"}'])
def test_foreign_json_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "npu.json"
    path.write_text(content)
    with pytest.raises(TargetError, match="is a JSON object with schema_version 2"):
        TargetDescription.load(path)


def test_the_example_of_the_docs_is_read() -> None:
    page = (Path(__file__).parents[2] / "docs" / "targets.md").read_text(encoding="utf-8")
    (text,) = re.findall(r"^```json\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert [entry.op for entry in TargetDescription.from_json(json.loads(text)).ops] == [
        "nn.conv2d",
        "nn.max_pool2d",
        "add",
        "elementwise",
    ]
    assert all(f"`{name}`" in page for name in (*ACTIVATION_DTYPES, *FUSIONS, *ROUNDINGS, *_FIELDS))


def test_python_values_are_checked_as_json_is() -> None:
    with pytest.raises(TargetError, match=r"op: unknown 'conv2d': did you mean 'nn\.conv2d'\?"):
        OpSupport(op="conv2d")
    with pytest.raises(TargetError, match="expected a tuple of OpSupport"):
        replace(NPU, ops=[NPU.ops[0]])


def test_defaults_are_overridden_by_ops_name_by_name() -> None:
    data = {
        "schema_version": 2,
        "name": "npu",
        "defaults": {"activations": ["int8"], "limits": {"rank": 4, "batch": 1}, "tensors": {"output": {"scale": 2}}},
        "ops": [{"op": "add", "limits": {"rank": {"maximum": 5}}}, {"op": "multiply", "activations": ["uint8"], "tensors": {}}],
    }
    add, multiply = TargetDescription.from_json(data).ops
    assert (add.activations, multiply.activations) == (("int8",), ("uint8",))
    assert add.limits == {"rank": Limit(maximum=5), "batch": Limit(one_of=(1,))}
    assert multiply.limits == {"rank": Limit(one_of=(4,)), "batch": Limit(one_of=(1,))}
    assert add.tensors == multiply.tensors == {"output": TensorSupport(scale=2)}


def test_a_quantize_says_the_form_and_the_rounding() -> None:
    shift = OpSupport(op="add", scales="power_of_two", requantize="shift", rounding=("half_away", "half_up"))
    assert shift.roundings == ("shift_half_away", "shift_half_up")
    assert OpSupport(op="add", requantize="fixed_point").roundings == ("fixed_point_once",)
    assert OpSupport(op="add").roundings == ("half_even",)


def test_an_op_that_it_must_not_take_is_not_supported() -> None:
    assert NPU.support("add") is not None
    assert replace(NPU, never=("add",)).support("relax.add") is None


def test_a_file_of_version_1_is_read() -> None:
    data = {"schema_version": 1, "name": "old", "ops": [{"op": "add", "rounding": ["half_up", "half_even"]}]}
    assert TargetDescription.from_json(data).ops[0].roundings == ("half_up", "half_even")
