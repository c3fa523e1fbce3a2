"""Other tools' descriptions of hardware: what they say is in the description, what they cannot say here is named."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import Any

import pytest

from octavo.errors import TargetError
from octavo.target import ELEMENTWISE, TargetDescription
from octavo.target.importers import Imported, aimet, mct
from octavo.target.tensor_support import TensorSupport

KERNEL = {"activation": {"bitwidth": 8, "dtype": "int"}, "param": {"bitwidth": 8, "dtype": "int"}}
WIDE = {"activation": {"bitwidth": 16, "dtype": "int"}, "param": {"bitwidth": 8, "dtype": "int"}}
FLOAT = {"activation": {"bitwidth": 16, "dtype": "float"}, "param": {"bitwidth": 16, "dtype": "float"}}
AIMET: dict[str, Any] = {
    "defaults": {
        "hw_version": "V1",
        "ops": {"is_output_quantized": "True", "is_symmetric": "False"},
        "params": {"is_quantized": "True", "is_symmetric": "True"},
        "strict_symmetric": "False",
        "unsigned_symmetric": "True",
        "per_channel_quantization": "False",
        "supported_kernels": [KERNEL, WIDE, FLOAT],
    },
    "params": {"bias": {"is_quantized": "False"}},
    "op_type": {
        "Conv": {"per_channel_quantization": "True", "supported_kernels": [KERNEL]},
        "MaxPool": {"is_output_quantized": "False"},
        "Mean": {"is_output_quantized": "False"},
        "Add": {"is_symmetric": "True"},
        "Softmax": {"encoding_constraints": {"min": 0.0, "max": 1.0}},
        "Sigmoid": {"encoding_constraints": {"min": 0.0, "max": 1.0}},
        "Einsum": {"is_output_quantized": "False"},
    },
    "supergroups": [
        {"op_list": ["Conv", "BatchNormalization", "Relu"]},
        {"op_list": ["Conv", "Clip"]},
        {"op_list": ["Add", "Relu"]},
        {"op_list": ["Conv", "Sigmoid"]},
    ],
    "supergroup_pass_list": ["RMSNormalization"],
    "model_input": {"is_input_quantized": "True"},
    "model_output": {},
}


def imported(read: Any, data: Any, folder: Path) -> Imported:
    path = folder / "hardware.json"
    path.write_text(json.dumps(data), encoding="utf-8")
    return read(path)


def changed(data: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """The data with the value at a path; None drops it."""
    data = copy.deepcopy(data)
    *parents, key = path.split(".")
    at: Any = data
    for each in parents:
        at = at[int(each)] if each.isdigit() else at[each]
    if value is None:
        del at[key]
    else:
        at[int(key) if key.isdigit() else key] = value
    return data


def support(found: Imported, op: str) -> Any:
    return found.description.support(op)


def test_aimet(tmp_path) -> None:
    found = imported(aimet, AIMET, tmp_path)
    assert found.description.name == "hardware_V1"
    conv, add, pool = (support(found, op) for op in ("nn.conv2d", "add", "nn.max_pool2d"))
    assert (conv.activations, conv.weights) == (("uint8", "int8"), ("int8",))
    assert (conv.weight_schemes, conv.weight_granularity, conv.weight_range) == (
        ("symmetric",),
        ("per_axis", "per_tensor"),
        "full",
    )
    assert conv.fusions == ("bias", "nn.relu", "clip")
    assert support(found, "matmul").weight_granularity == ("per_tensor",)
    assert support(found, "matmul").activations == ("uint8", "int8", "uint16", "int16")
    assert add.activation_schemes == ("symmetric",)
    assert add.activations == ("int8", "int16", "uint8", "uint16"), "signed first, unsigned where nothing is negative"
    assert add.fusions == ("nn.relu",)
    assert pool.same_params
    assert not add.same_params
    assert support(found, "mean") is None
    assert "mean" in found.description.never
    assert support(found, "quantize") is not None
    assert support(found, "dequantize") is None
    assert support(found, "nn.softmax").tensors == {"output": TensorSupport(dtypes=("uint8",), scale=1 / 255, zero_point=0)}
    assert support(found, ELEMENTWISE).tensors == {}
    assert TargetDescription.from_json(found.description.to_json()) == found.description


def test_the_example_of_the_docs_writes_a_description(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).parents[2] / "docs" / "targets.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    monkeypatch.chdir(tmp_path)
    Path("quantsim_config.json").write_text(json.dumps(AIMET), encoding="utf-8")
    exec(compile(code, "docs/targets.md", "exec"), {})
    assert TargetDescription.load("npu.json").name == "quantsim_config_V1"


@pytest.mark.parametrize(
    "note",
    [
        "op_type.Einsum: no op of ours has this name",
        "op_type.Sigmoid.encoding_constraints: of one function among those that are elementwise",
        "params.bias: a bias is held in 32 bits",
        "supergroups[3]: Conv + Sigmoid is no op with bias, nn.relu or clip behind it",
        "supergroup_pass_list: RMSNormalization",
        "supported_kernels: a kernel of (16, 16) bits in float",
        "rounding, requantize and accumulator_bits: the format has no word for them",
    ],
)
def test_what_aimet_says_and_a_description_does_not_is_named(tmp_path, note: str) -> None:
    assert any(note in each for each in imported(aimet, AIMET, tmp_path).unmatched)


@pytest.mark.parametrize(
    ("path", "value", "op"),
    [
        ("defaults.ops.is_output_quantized", "False", "subtract"),
        ("defaults.ops.is_symmetric", "True", "subtract"),
        ("defaults.params.is_quantized", "False", "matmul"),
        ("defaults.params.is_symmetric", "False", "matmul"),
        ("defaults.strict_symmetric", "True", "matmul"),
        ("defaults.unsigned_symmetric", "False", "add"),
        ("defaults.per_channel_quantization", "True", "matmul"),
        ("defaults.supported_kernels", [WIDE], "matmul"),
        ("params.weight", {"is_symmetric": "False"}, "nn.conv2d"),
        ("op_type.Conv.params", {"weight": {"is_symmetric": "False"}}, "nn.conv2d"),
        ("op_type.Conv.is_output_quantized", "False", "nn.conv2d"),
        ("op_type.Softmax.encoding_constraints.max", 2.0, "nn.softmax"),
        ("op_type.Softmax.encoding_constraints.min", -1.0, "nn.softmax"),
        ("supergroups.2", {"op_list": ["Sub", "Relu"]}, "subtract"),
        ("model_input.is_input_quantized", "False", "quantize"),
        ("model_output.is_output_quantized", "True", "dequantize"),
    ],
)
def test_every_field_of_aimet_changes_the_description(tmp_path, path: str, value: Any, op: str) -> None:
    before, after = imported(aimet, AIMET, tmp_path), imported(aimet, changed(AIMET, path, value), tmp_path)
    assert support(before, op) != support(after, op)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("default", {}, "the configuration: unknown field 'default'"),
        ("defaults.ops.is_output_quantised", "True", "defaults.ops: unknown field 'is_output_quantised'"),
        ("defaults.strict_symmetric", "yes", "strict_symmetric: expected True or False, got 'yes'"),
        ("op_type.Conv.bits", 8, "op_type.Conv: unknown field 'bits'"),
        ("op_type.Conv", [], "op_type.Conv: expected an object, got"),
        ("defaults.supported_kernels", [FLOAT], "defaults.supported_kernels: no kernel of integers"),
        ("supergroups.0", {"op_list": ["Conv"]}, "supergroups[0]: op_list: expected two ops or more"),
        ("op_type.Softmax.encoding_constraints", {"min": 1, "max": 0}, "expected min <= 0 <= max"),
    ],
)
def test_what_aimets_format_does_not_have_is_refused(tmp_path, path: str, value: Any, message: str) -> None:
    with pytest.raises(TargetError) as raised:
        imported(aimet, changed(AIMET, path, value), tmp_path)
    assert str(raised.value).startswith(str(tmp_path / "hardware.json"))
    assert message in str(raised.value)


def attribute(**changes: Any) -> dict[str, Any]:
    given = {"weights_quantization_method": 2, "weights_n_bits": 8, "weights_per_channel_threshold": True}
    return {**given, "enable_weights_quantization": True, "lut_values_bitwidth": None, **changes}


def of_kernel(**changes: Any) -> dict[str, Any]:
    return {"attr_weights_configs_mapping": {"kernel_attr": attribute(**changes)}}


def config(**changes: Any) -> dict[str, Any]:
    weights = {"kernel_attr": attribute(), "bias_attr": attribute(enable_weights_quantization=False)}
    return {
        "default_weight_attr_config": attribute(enable_weights_quantization=False),
        "attr_weights_configs_mapping": weights,
        "activation_quantization_method": 0,
        "activation_n_bits": 8,
        "supported_input_activation_n_bits": [8],
        "enable_activation_quantization": True,
        "quantization_preserving": False,
        "fixed_scale": None,
        "fixed_zero_point": None,
        "simd_size": None,
        "signedness": 0,
        **changes,
    }


def options(*configs: dict[str, Any]) -> dict[str, Any]:
    return {"quantization_configurations": list(configs), "base_config": configs[0]}


def operators(name: str, *configs: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "qc_options": options(*configs) if configs else None, "type": "OperatorsSet"}


POT = {"kernel_attr": attribute(weights_quantization_method=0)}
MCT: dict[str, Any] = {
    "default_qco": options(config()),
    "operator_set": [
        operators("Conv", config(), config(activation_n_bits=16, supported_input_activation_n_bits=[8, 16])),
        operators("FullyConnected", config(attr_weights_configs_mapping=POT, signedness=1)),
        operators("MaxPool", config(enable_activation_quantization=False, quantization_preserving=True)),
        operators("Softmax", config(activation_quantization_method="UNIFORM", fixed_scale=1 / 256, fixed_zero_point=-128)),
        operators("Add"),
        operators("Sub", config(enable_activation_quantization=False)),
        operators("Mul", config(activation_quantization_method=1)),
        operators("CombinedNonMaxSuppression", config()),
    ],
    "fusing_patterns": [
        {"operator_groups": [operators("Conv"), {"operators_set": [operators("ReLU"), operators("ReLU6")], "name": "acts"}]},
        {"operator_groups": [operators("Conv"), operators("Swish")], "fuse_op_quantization_config": None, "name": "x"},
    ],
    "tpc_platform_type": "npu",
    "name": "npu v1",
    "is_simd_padding": True,
    "SCHEMA_VERSION": 2,
}


def test_mct(tmp_path) -> None:
    found = imported(mct, MCT, tmp_path)
    assert found.description.name == "npu_v1"
    conv, dense, pool, softmax = (support(found, op) for op in ("nn.conv2d", "matmul", "nn.max_pool2d", "nn.softmax"))
    assert conv.activations == ("int8", "uint8", "int16", "uint16")
    assert conv.activation_schemes == ("symmetric",)
    assert conv.weight_granularity == ("per_axis", "per_tensor")
    assert conv.tensor("input").scales == conv.tensor("output").scales == "power_of_two"
    assert conv.tensor("weight").scales == "any", "weights are symmetric with any scale"
    assert conv.fusions == ("bias", "nn.relu", "clip")
    assert dense.scales == "power_of_two"
    assert dense.tensors == {}
    assert dense.activations == ("int8",)
    assert pool.same_params
    assert softmax.activation_schemes == ("symmetric", "asymmetric")
    assert softmax.tensors == {"output": TensorSupport(scale=1 / 256, zero_point=-128)}
    assert support(found, "add").scales == "power_of_two"
    assert support(found, "subtract") is support(found, "multiply") is None
    assert {"subtract", "multiply"} <= set(found.description.never)
    assert TargetDescription.from_json(found.description.to_json()) == found.description


@pytest.mark.parametrize(
    "note",
    [
        "operator_set CombinedNonMaxSuppression: no op of ours has this name",
        "operator_set Mul: activations by LUT_POT_QUANTIZER of 8 bits: multiply stays float",
        "fusing_patterns[1]: Conv + Swish is no op with bias",
        "is_simd_padding: says nothing",
        "tpc_platform_type: says nothing",
        "rounding, requantize and accumulator_bits: the format has no word for them",
    ],
)
def test_what_mct_says_and_a_description_does_not_is_named(tmp_path, note: str) -> None:
    assert any(note in each for each in imported(mct, MCT, tmp_path).unmatched)


@pytest.mark.parametrize(
    ("changes", "op"),
    [
        ({"activation_quantization_method": 2}, "add"),
        ({"activation_n_bits": 16, "supported_input_activation_n_bits": 16}, "add"),
        ({"supported_input_activation_n_bits": [8, 16]}, "add"),
        ({"enable_activation_quantization": False}, "add"),
        ({"quantization_preserving": True}, "add"),
        ({"fixed_scale": 0.5}, "add"),
        ({"fixed_zero_point": 0}, "add"),
        ({"signedness": 2}, "add"),
        (of_kernel(weights_n_bits=4), "nn.conv2d_transpose"),
        (of_kernel(weights_quantization_method=3), "nn.conv2d_transpose"),
        (
            of_kernel(weights_per_channel_threshold=False),
            "nn.conv2d_transpose",
        ),
        (of_kernel(enable_weights_quantization=False), "nn.conv2d_transpose"),
        ({"attr_weights_configs_mapping": {}}, "nn.conv2d_transpose"),
    ],
)
def test_every_field_of_mct_changes_the_description(tmp_path, changes: dict[str, Any], op: str) -> None:
    before = imported(mct, MCT, tmp_path)
    after = imported(mct, {**MCT, "default_qco": options(config(**changes))}, tmp_path)
    assert support(before, op) != support(after, op)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("operator_sets", [], "the capabilities: unknown field 'operator_sets'"),
        ("SCHEMA_VERSION", 3, "SCHEMA_VERSION: expected 1 or 2, got 3"),
        ("default_qco", None, "default_qco: expected an object, got None"),
        ("default_qco.base_config.activation_quantization_method", 9, "expected one of POWER_OF_TWO"),
        ("default_qco.base_config.enable_activation_quantization", "yes", "expected true or false, got 'yes'"),
        ("operator_set.0.bits", 8, "operator_set: unknown field 'bits'"),
        ("fusing_patterns.0.operator_groups", [operators("Conv")], "operator_groups: expected two or more, got 1"),
    ],
)
def test_what_mcts_format_does_not_have_is_refused(tmp_path, path: str, value: Any, message: str) -> None:
    with pytest.raises(TargetError) as raised:
        imported(mct, changed(MCT, path, value), tmp_path)
    assert str(raised.value).startswith(str(tmp_path / "hardware.json"))
    assert message in str(raised.value)


@pytest.mark.parametrize("read", [aimet, mct])
def test_what_is_no_file_of_a_tool_is_refused(tmp_path, read: Any) -> None:
    for content in ("", "[]", "{", '{"defaults": 5}'):
        (tmp_path / "bad.json").write_text(content)
        with pytest.raises(TargetError):
            read(tmp_path / "bad.json")
    with pytest.raises(TargetError, match="cannot read"):
        read(tmp_path / "none.json")
