"""Tables of neighbours: ONNX Runtime's own writer and reader, round trips, and one error for each bad file."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import onnxruntime.quantization
import pytest
from onnxruntime.quantization import calibrate
from onnxruntime.quantization.calibrate import CalibrationMethod, TensorData, TensorsData
from onnxruntime.quantization.CalTableFlatBuffers.TrtTable import TrtTable
from profiled_net import Profiled

import octavo
from octavo.errors import ProfileError
from octavo.ir.identity import TensorId
from octavo.profiling import FORMATS, Profile, from_table, read_table, write_table
from octavo.quantizer.ranges import Percentile, QuantScheme

SYMMETRIC = ("ort-flatbuffers", "ort-cache", "tensorrt")


@pytest.fixture(scope="module")
def profile(net: Profiled) -> Profile:
    return net.profile(net.samples)


def expected(profile: Profile, form: str) -> dict[str, tuple[float, float]]:
    ranges = {value.source_name: (value.minimum, value.maximum) for value in profile.values() if value.kind != "constant"}
    if form not in SYMMETRIC:
        return ranges
    return {name: (-max(abs(low), high), max(abs(low), high)) for name, (low, high) in ranges.items()}


@pytest.mark.parametrize("form", FORMATS)
def test_what_is_written_is_read(profile: Profile, tmp_path: Path, form: str) -> None:
    path = tmp_path / "table"
    count = write_table(profile, path, form)
    _, found = read_table(path)
    wanted = expected(profile, form)
    assert count == len(wanted)
    assert found.keys() == wanted.keys()
    for name, (low, high) in wanted.items():
        # AIMET's ranges are whole steps of their scale and hold 0; TensorRT's are a scale, rounded to float32.
        step = (max(high, 0) - min(low, 0)) / 255 if form.startswith("aimet") else 1e-6 * high
        assert found[name] == (pytest.approx(min(low, 0 if step else low), abs=step), pytest.approx(high, abs=step))


# The last ONNX Runtime for Python 3.10 writes these files and reads none: neither `from_dict` nor `load_tensors_data` is there.
def test_onnxruntime_reads_ours(profile: Profile, tmp_path: Path) -> None:
    write_table(profile, tmp_path / "t.json", "ort-json")
    data = json.loads((tmp_path / "t.json").read_text())
    for name, (low, high) in expected(profile, "ort-json").items():
        if hasattr(TensorData, "from_dict"):
            entry = TensorData.from_dict(data[name])
            assert (float(entry.lowest), float(entry.highest)) == (low, high)
    write_table(profile, tmp_path / "t.flatbuffers", "ort-flatbuffers")
    table = TrtTable.GetRootAsTrtTable((tmp_path / "t.flatbuffers").read_bytes(), 0)
    found = {table.Dict(place).Key().decode(): float(table.Dict(place).Value()) for place in range(table.DictLength())}
    assert found == {name: high for name, (_, high) in expected(profile, "ort-flatbuffers").items()}


def test_ours_reads_onnxruntime(tmp_path: Path) -> None:
    ranges = {"a/x:0": (-1.5, 2.25), "zero": (0.0, 6.0), "tensor with spaces": (-3.0, 3.5)}
    data = {
        name: TensorData(lowest=np.array(ends[0], np.float32), highest=np.array([ends[1]], np.float32))
        for name, ends in ranges.items()
    }
    onnxruntime.quantization.write_calibration_table(data, str(tmp_path))
    assert read_table(tmp_path / "calibration.json") == ("ONNX Runtime's calibration.json", ranges)
    if hasattr(calibrate, "save_tensors_data"):
        calibrate.save_tensors_data(TensorsData(CalibrationMethod.MinMax, data), tmp_path / "saved.json")
        assert calibrate.load_tensors_data(tmp_path / "saved.json").keys() == ranges.keys()
        assert read_table(tmp_path / "saved.json")[1] == ranges
    amplitudes = {name: (-high, high) for name, (_, high) in ranges.items()}
    assert read_table(tmp_path / "calibration.flatbuffers") == ("ONNX Runtime's calibration.flatbuffers", amplitudes)
    assert read_table(tmp_path / "calibration.cache") == ("ONNX Runtime's calibration.cache", amplitudes)


def test_tensorrt_as_its_sample_shows_it(tmp_path: Path) -> None:
    (tmp_path / "c").write_text("TRT-7000-EntropyCalibration2\ndata: 3c008912\n(Unnamed Layer* 3) [Scale]_output: 3db6bd6e\n")
    kind, found = read_table(tmp_path / "c")
    assert kind == "TensorRT's calibration cache"
    assert found["data"][1] == pytest.approx(0.9963, abs=1e-4)
    assert found["(Unnamed Layer* 3) [Scale]_output"][1] == pytest.approx(11.332, abs=1e-3)


def test_aimet_of_both_versions(tmp_path: Path) -> None:
    old = {"version": "0.6.1", "param_encodings": {}, "activation_encodings": {
        "t": [{"bitwidth": 8, "dtype": "int", "is_symmetric": "False", "max": 1.9, "min": -0.65, "offset": -65, "scale": 0.01}],
        "f": [{"bitwidth": 16, "dtype": "float"}],
    }}  # fmt: skip
    new = {"version": "1.0.0", "param_encodings": [], "activation_encodings": [
        {"name": "t", "bw": 8, "dtype": "INT", "enc_type": "PER_TENSOR", "is_sym": False, "scale": [0.01], "offset": [-65]},
        {"name": "f", "bw": 16, "dtype": "FLOAT", "enc_type": "PER_TENSOR"},
    ]}  # fmt: skip
    for data in (old, new):
        (tmp_path / "e").write_text(json.dumps(data))
        kind, found = read_table(tmp_path / "e")
        assert kind == "AIMET's encodings"
        assert found == {"t": (pytest.approx(-0.65), pytest.approx(1.9))}


def test_aimet_gets_the_weights_by_channel(profile: Profile, tmp_path: Path) -> None:
    write_table(profile, tmp_path / "e", "aimet-1.0.0")
    data = json.loads((tmp_path / "e").read_text())
    weights = {entry["name"]: entry for entry in data["param_encodings"]}
    value = profile[TensorId("w1")]
    entry = weights[value.source_name]
    assert (entry["enc_type"], entry["is_sym"], set(entry["offset"])) == ("PER_CHANNEL", True, {-128})
    largest = np.maximum(np.abs(value.channel_minimum), np.abs(value.channel_maximum))
    np.testing.assert_allclose(entry["scale"], largest / 127, rtol=1e-6)


def test_a_table_becomes_a_profile_that_quantizes(net: Profiled, profile: Profile, tmp_path: Path) -> None:
    write_table(profile, tmp_path / "t.json", "ort-json")
    table = json.loads((tmp_path / "t.json").read_text())
    (tmp_path / "t.json").write_text(json.dumps({**table, "stranger": table["net/x:0"]}))
    taken, foreign = from_table(net.model, tmp_path / "t.json")
    assert foreign == ["stranger"]
    assert taken.preprocessing == "not known: ranges alone, from ONNX Runtime's calibration.json"
    taken.save(tmp_path / "p.json")
    again = Profile.load(tmp_path / "p.json")
    assert again.keys() == profile.keys()
    one, other = (octavo.quantize(net.model, ranges, preset="fast").plan for ranges in (again, profile))
    assert one is not None
    assert other is not None
    assert {key: (value.scale, value.zero_point) for key, value in one.activations.items()} == {
        key: (value.scale, value.zero_point) for key, value in other.activations.items()
    }


def test_percentiles_narrow_the_ranges(profile: Profile, tmp_path: Path) -> None:
    write_table(
        profile, tmp_path / "t", "ort-json", range_of=lambda tensor: Percentile(99.0).range_of(tensor, QuantScheme(dtype="uint8"))
    )
    _, found = read_table(tmp_path / "t")
    x = profile[TensorId("x")]
    assert x.minimum < found["net/x:0"][0]
    assert found["net/x:0"][1] < x.maximum


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "holds no tensor"),
        (b"{}", "holds no tensor"),
        (b"{", "not JSON, or cut short"),
        (b'{"a": 5}', "a must be an object"),
        (b'{"a": {"lowest": 1, "highest": -1}}', "a: 1 to -1 is no range"),
        (b'{"a": {"lowest": NaN, "highest": 1}}', "NaN is not allowed"),
        (b'{"a": {"lowest": 0, "highest": 1e39}}', "a: highest must be a float32 number"),
        (b'{"a": {"highest": 1}}', "a: lowest must be a float32 number, got None"),
        (b'{"a": {"lowest": {"data": [0, 1], "CLS": "numpy.array"}, "highest": 1}}', "a number for each channel"),
        (b'{"version": "9.0", "activation_encodings": {}}', "this is version 9.0"),
        (b'{"activation_encodings": {"a": [{}, {}]}}', "a has 2 encodings"),
        (b'{"version": "1.0.0", "activation_encodings": [{"name": "a", "bw": 99}]}', "scale must be a list"),
        (b"TRT-8601-EntropyCalibration2\na 1", "line 2 must be a name, a colon"),
        (b"TRT-8601-EntropyCalibration2\na: 7f800000", "line 2: a: inf is no scale"),
        (b"TRT-what\n", "must name TensorRT's version"),
        (b"one two\n", "'two' is no number"),
        (b"one -2\n", "below 0"),
        (b"word\n", "line 1 must be a name and a number"),
        (b"\x00\x01\x02", "an offset points out of the file"),
        (b"\xff" * 64, "an offset points out of the file"),
    ],
)
def test_a_bad_table_is_one_error(tmp_path: Path, content: bytes, said: str) -> None:
    (tmp_path / "bad").write_bytes(content)
    with pytest.raises(ProfileError, match=f"bad: not a valid table: .*{said}") as error:
        read_table(tmp_path / "bad")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("form", FORMATS)
def test_no_change_of_a_table_is_more_than_an_error(profile: Profile, tmp_path: Path, form: str) -> None:
    path, draw = tmp_path / "table", random.Random(form)
    write_table(profile, path, form)
    original = path.read_bytes()
    for _ in range(200):
        changed = bytearray(original[: draw.randrange(len(original))] if draw.random() < 0.2 else original)
        for _ in range(draw.choice((1, 3, 20))):
            if changed:
                changed[draw.randrange(len(changed))] = draw.randrange(256)
        path.write_bytes(changed)
        try:
            _, found = read_table(path)
        except ProfileError as error:
            said = str(error)
            assert said.startswith(f"{path}: ")
            assert "\n" not in said
        else:
            assert all(np.isfinite(ends).all() and ends[0] <= ends[1] for ends in found.values())


def test_a_table_of_another_model_is_refused(net: Profiled, tmp_path: Path) -> None:
    (tmp_path / "t.cache").write_text("stranger 3.0\n")
    with pytest.raises(ProfileError, match="none of its 1 tensors is one of the model's"):
        from_table(net.model, tmp_path / "t.cache")
    with pytest.raises(ProfileError, match="cannot read the table"):
        read_table(tmp_path / "missing")
