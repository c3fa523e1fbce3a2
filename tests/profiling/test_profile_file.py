"""The profile file: schema, round trip, and one ProfileError for whatever is not a profile."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import onnx
import pytest
from profiled_net import Profiled

import octavo
from octavo.errors import ProfileError
from octavo.ir.identity import TensorId
from octavo.profiling import Profile, check_model

SCHEMA = Path(__file__).parents[2] / "docs" / "profile.schema.json"
OTHER = "sha256:" + "f" * 64


@pytest.fixture(scope="module")
def profile(net: Profiled) -> Profile:
    return net.profile([net.samples])


@pytest.fixture
def path(profile: Profile, tmp_path: Path) -> Path:
    profile.save(tmp_path / "profile.json")
    return tmp_path / "profile.json"


def test_the_file_follows_the_published_schema(path: Path) -> None:
    schema = json.loads(SCHEMA.read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(json.loads(path.read_text()), schema)


def test_round_trip_keeps_every_value_and_byte(profile: Profile, path: Path, tmp_path: Path) -> None:
    loaded = Profile.load(path)
    assert (loaded.fingerprint, loaded.samples, set(loaded)) == (profile.fingerprint, profile.samples, set(profile))
    for key, value in profile.items():
        other = loaded[key]
        assert (other.minimum, other.maximum, other.histogram) == (value.minimum, value.maximum, value.histogram)
        np.testing.assert_array_equal(other.channel_maximum, value.channel_maximum)
    loaded.save(str(tmp_path / "again.json"))
    assert (tmp_path / "again.json").read_bytes() == path.read_bytes()


@pytest.mark.parametrize("end", [np.finfo(np.float32).min, np.finfo(np.float32).max])
def test_the_ends_of_float32_are_read_again(end: np.float32, tmp_path: Path) -> None:
    # What masks of attention are made of: of its shortest digits float64 makes more than float32 holds.
    nodes = [onnx.helper.make_node("Mul", ["x", "end"], ["y"])]
    x, y = (onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1, 4]) for name in "xy")
    graph = onnx.helper.make_graph(nodes, "mask", [x], [y], [onnx.numpy_helper.from_array(np.float32(end), "end")])
    model = octavo.load(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8))
    made = octavo.profile(model, [np.float32([[0, 1, 0, 1]])])
    made.save(tmp_path / "profile.json")
    read = Profile.load(tmp_path / "profile.json")
    y_id = next(name for name in made if made[name].source_name == "y")
    assert end in (read[y_id].minimum, read[y_id].maximum)
    assert (read[y_id].minimum, read[y_id].maximum) == (made[y_id].minimum, made[y_id].maximum)


def _at(data: dict[str, Any], *keys: Any, value: Any) -> None:
    for key in keys[:-1]:
        data = data[key]
    if value is KeyError:
        del data[keys[-1]]
    else:
        data[keys[-1]] = value


T = "tensors"
MUTATIONS: list[tuple[tuple[Any, ...], Any, str]] = [
    (("format",), "other", "format"),
    (("schema_version",), 5, "schema_version must be 7, or 6 of older files, got 5"),
    (("schema_version",), 6, r"unknown field 'samples_file'"),
    (("keep_samples",), -1, "keep_samples must be a whole number in"),
    (("keep_samples",), True, "keep_samples must be a whole number in"),
    (("keep_samples",), KeyError, r"field 'keep_samples' is missing"),
    (("keep_samples",), 63, "does not fit its checksum"),
    (("samples_file",), KeyError, r"field 'samples_file' is missing"),
    (("samples_file",), [], "samples_file must be an object"),
    (("samples_file",), None, "does not fit its checksum"),
    (("samples_file", "bytes"), 0, "samples_file: bytes must be a whole number in"),
    (("samples_file", "digest"), None, "samples_file: digest must be a text"),
    (("samples_file", "digest"), OTHER, "does not fit its checksum"),
    (("mantissa_bits",), 5, "mantissa_bits"),
    (("samples",), 0, "samples"),
    (("preprocessing",), None, "preprocessing must be a text"),
    (("samples",), 1.5, "samples must be a whole number"),
    (("fingerprint",), 7, "fingerprint must be a text"),
    (("fingerprint",), KeyError, "is missing"),
    (("fingerprint",), OTHER, "does not fit its checksum"),
    (("checksum",), OTHER, "does not fit its checksum"),
    (("checksum",), KeyError, "is missing"),
    (("checksum",), 5, "checksum must be a text"),
    (("samples",), 19, "bucket_samples must be 32 counts"),
    ((T, "y"), KeyError, "does not fit its checksum"),
    ((T, "x", "source_name"), "other", "does not fit its checksum"),
    (("tools",), [], "tools must be an object"),
    (("tools", "tvm"), [], "tvm must list its versions"),
    (("tools", "tvm"), ["2", "1"], "tvm must list its versions"),
    (("tools", "tvm"), [1], "tools: tvm must be a text"),
    (("tools", "tvm"), ["1"], "does not fit its checksum"),
    (("bucket_samples",), [20], "bucket_samples must be 32 counts"),
    (("bucket_samples",), [1] * 32, "add up to samples 20"),
    (("bucket_samples", 0), -1, "bucket_samples must be a whole number"),
    ((T, "x", "bucket_min"), [], "bucket_min and bucket_max must both list 32"),
    ((T, "x", "bucket_min"), [0.0] * 31, "bucket_min and bucket_max must both list 32"),
    ((T, "x", "bucket_min"), [0.0] * 32, "bucket_min and bucket_max must be finite"),
    ((T, "x", "bucket_max"), [30.0] * 32, "bucket_min and bucket_max must be finite"),
    ((T, "w1", "bucket_max"), [30.0] * 32, "bucket_min and bucket_max must"),
    (("more",), 1, "unknown"),
    ((T,), [], "tensors must be an object"),
    ((T, "x"), [], "tensor x must be an object"),
    ((T, "x", "count"), 1, "tensor x"),
    ((T, "x", "count"), True, "count must be a whole number"),
    ((T, "x", "count"), 10**30, "count must be a whole number"),
    ((T, "x", "zeros"), 10**9, "zeros"),
    ((T, "x", "kind"), "weight", "kind must be one of input, activation, constant"),
    ((T, "x", "shape"), [1, -3], "shape"),
    ((T, "x", "op"), None, "op must be a text"),
    ((T, "x", "min"), 1e9, "must be finite and in order"),
    ((T, "x", "max"), 1e39, "max must be a float32 number"),
    ((T, "x", "max"), "1", "max must be a float32 number"),
    ((T, "x", "max"), 1000.0, "spans bins"),
    ((T, "x", "channel_axis"), 9, "channel_axis"),
    ((T, "x", "channel_axis"), None, "channel_min"),
    ((T, "x", "channel_min"), [0.0], "channel_min"),
    ((T, "x", "channel_min", 0), 100.0, "in order"),
    ((T, "x", "channel_min", 0), None, "without a value"),
    ((T, "x", "layer"), 1, "layer must be a text"),
    ((T, "x", "first_non_finite"), {"sample": 0, "index": [0, 0, 0, 0]}, "where non_finite is 0"),
    ((T, "x", "first_non_finite"), {"sample": -1, "index": []}, "sample must be a whole number"),
    ((T, "x", "first_non_finite"), [], "first_non_finite must be an object"),
    ((T, "x", "histogram"), {}, "is missing"),
    ((T, "x", "histogram", "gaps", 0), -16320, "gaps must be a whole number"),
    ((T, "x", "histogram", "gaps", 0), 16319, "ascend within"),
    ((T, "x", "histogram", "gaps", 0), -16000, "spans bins"),
    ((T, "x", "histogram", "gaps", 1), 0, "gaps must be a whole number"),
    ((T, "x", "histogram", "gaps"), [1] * 33000, "33000 gaps"),
    ((T, "x", "histogram", "counts"), [1] * 3, "bins have 3 counts"),
    ((T, "x", "histogram", "counts", 0), 0, "counts must be a whole number"),
    ((T, "x", "histogram", "counts", 0), 10**6, "histogram counts"),
]


@pytest.mark.parametrize(("keys", "value", "message"), MUTATIONS, ids=lambda item: str(item)[:40])
def test_a_changed_file_is_refused(path: Path, keys: tuple[Any, ...], value: Any, message: str) -> None:
    data = json.loads(path.read_text())
    _at(data, *keys, value=value)
    path.write_text(json.dumps(data))
    with pytest.raises(ProfileError, match=message) as error:
        Profile.load(path)
    assert str(error.value).startswith(str(path))
    assert "\n" not in str(error.value)


def _truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:5000])


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (_truncate, "cut short"),
        (lambda path: path.write_bytes(b""), "cut short"),
        (lambda path: path.write_bytes(b"\x80\x81\x82"), "not text"),
        (lambda path: path.write_text("[1, 2]"), "format"),
        (lambda path: path.write_text("[" * 100_000), "not JSON"),
        (lambda path: path.write_text('{"format": NaN}'), "NaN is not allowed"),
        (lambda path: path.write_text('{"format": "octavo-profile", "format": "octavo-profile"}'), "twice"),
        (lambda path: path.unlink(), "No such file"),
    ],
)
def test_a_foreign_file_is_refused(path: Path, spoil: Callable[[Path], object], message: str) -> None:
    spoil(path)
    with pytest.raises(ProfileError, match=message):
        Profile.load(path)


@pytest.mark.parametrize("name", ["missing/profile.json", "file/profile.json", "folder"])
def test_an_unwritable_path_is_one_error_and_leaves_nothing(profile: Profile, tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("in the way")
    (tmp_path / "folder").mkdir()
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ProfileError, match="cannot write the profile"):
        profile.save(tmp_path / name)
    assert sorted(tmp_path.rglob("*")) == before


def test_profiles_of_different_models_do_not_mix(net: Profiled, profile: Profile) -> None:
    other = replace(profile, fingerprint=OTHER)
    with pytest.raises(ProfileError, match=f"{profile.fingerprint} and {OTHER}"):
        profile.merge(other)
    check_model(profile, net.model)
    with pytest.raises(ProfileError, match=f"made from {OTHER}, this model is {profile.fingerprint}"):
        check_model(other, net.model)


def test_profiles_that_observe_different_tensors_do_not_mix(profile: Profile) -> None:
    fewer = replace(profile, tensors={key: value for key, value in profile.items() if key != "y"})
    with pytest.raises(ProfileError, match="only one of them holds y"):
        profile.merge(fewer)
    y = TensorId("y")
    changed = replace(profile, tensors={**profile.tensors, y: replace(profile[y], op="Other")})
    with pytest.raises(ProfileError, match="y: op 'Op' and 'Other' differ"):
        profile.merge(changed)
