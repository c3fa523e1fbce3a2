"""Plans to AIMET's encodings and TensorRT's calibration cache and back: numbers exact, names that do not fit reported."""

from __future__ import annotations

import json
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import octavo
from handmade_profile import ranged
from nets import residual_net
from octavo.errors import QuantizationError
from octavo.export.encodings import FORMATS, read_encodings, write_encodings
from octavo.ir.identity import TensorId
from octavo.numerics import PerTensor, QuantParams
from octavo.quantizer.plan.plan import QuantizationPlan
from octavo.quantizer.recipe import Recipe
from vendors import SYMMETRIC

AIMET = [form for form in FORMATS if form.startswith("aimet")]
RANGES = {"x": (-2.0, 3.0), "r1": (0.0, 5.0), "c3": (-0.3, 0.1), "y": (-7.0, 1.0)}


_PLANS: dict[str, QuantizationPlan] = {}


def plan_of(target: Any = "cpu", **recipe: Any) -> QuantizationPlan:
    """What the same target and recipe come to each time."""
    key = repr((target, recipe))
    if key not in _PLANS:
        model = residual_net()
        _PLANS[key] = octavo.quantize(model, ranged(model, RANGES), target=target, recipe=Recipe(**recipe)).plan
    return _PLANS[key]


@pytest.mark.parametrize("form", AIMET)
@pytest.mark.parametrize(
    ("target", "recipe"),
    [
        ("cpu", {}),
        ("cpu", {"activation_dtype": "int8", "weight_granularity": "per_tensor"}),
        (SYMMETRIC, {}),
        ("cpu", {"activation_dtype": "int16"}),
    ],
    ids=["uint8", "int8", "symmetric", "int16"],
)
def test_aimet_gives_back_what_it_was_given(form: str, target: Any, recipe: dict[str, Any], tmp_path: Path) -> None:
    plan = plan_of(target, **recipe)
    notes = write_encodings(plan, tmp_path / "e", form)
    encoded = read_encodings(tmp_path / "e", plan)
    assert (encoded.plan.activations, encoded.plan.weights) == (plan.activations, plan.weights)
    assert (encoded.unmatched, encoded.kept, notes) == ((), (), ())
    # Into a plan of other parameters: the file's count, to the last bit.
    other = octavo.quantize(residual_net(), ranged(residual_net()), target=target, recipe=Recipe(**recipe)).plan
    assert other.activations != plan.activations
    again = octavo.quantize(residual_net(), plan=read_encodings(tmp_path / "e", other).plan, target=target)
    assert again.plan.activations == plan.activations
    assert again.plan.weights == plan.weights


def test_what_aimet_has_no_field_for_is_said(tmp_path: Path) -> None:
    plan = plan_of()
    plan = replace(plan, roundings={**plan.roundings, TensorId("r1"): "half_away", TensorId("r2"): "half_away"})
    assert write_encodings(plan, tmp_path / "e", "aimet-1.0.0") == ("roundings have no field: half_away",)
    assert read_encodings(tmp_path / "e", plan).plan.roundings == plan.roundings


def test_what_is_written_is_aimet_s_arithmetic(tmp_path: Path) -> None:
    plan = plan_of()
    write_encodings(plan, tmp_path / "old", "aimet-0.6.1")
    write_encodings(plan, tmp_path / "new", "aimet-1.0.0")
    old, new = (json.loads((tmp_path / name).read_text()) for name in ("old", "new"))
    assert (old["version"], new["version"]) == ("0.6.1", "1.0.0")
    x, params = old["activation_encodings"]["net/x:0"], plan.activations[TensorId("x")]
    assert x == [
        {
            "bitwidth": 8,
            "dtype": "int",
            "is_symmetric": "False",
            "offset": -int(params.zero_point),
            "scale": float(params.scale),
            "min": -int(params.zero_point) * float(params.scale),
            "max": (255 - int(params.zero_point)) * float(params.scale),
        }
    ]
    (w1,) = [entry for entry in new["param_encodings"] if entry["name"] == "net/w1:0"]
    assert w1 == {
        "name": "net/w1:0",
        "bw": 8,
        "dtype": "INT",
        "enc_type": "PER_CHANNEL",
        "is_sym": True,
        "scale": plan.weights[TensorId("w1")].scale.tolist(),
        "offset": [-127] * 8,
    }


def old(*, offset: int, scale: float, symmetric: bool = True, bits: int = 8) -> dict[str, Any]:
    """An encoding of version 0.6.1."""
    ends = {"min": offset * scale, "max": (2**bits - 1 + offset) * scale}
    return {"bitwidth": bits, "dtype": "int", "is_symmetric": str(symmetric), **ends, "offset": offset, "scale": scale}


def new(name: str, *, offsets: list[int], scales: list[float], symmetric: bool = True, bits: int = 8) -> dict[str, Any]:
    """An encoding of version 1.0.0."""
    kind = "PER_CHANNEL" if len(scales) > 1 else "PER_TENSOR"
    return {"name": name, "bw": bits, "dtype": "INT", "enc_type": kind, "is_sym": symmetric, "scale": scales, "offset": offsets}


HANDMADE = {
    "0.6.1": {
        "version": "0.6.1",
        "activation_encodings": {
            "net/x:0": [old(offset=-71, scale=0.0625, symmetric=False)],
            "stranger": [old(offset=-128, scale=2.0**-7)],
            "net/r1:0": [{"bitwidth": 16, "dtype": "float"}],
        },
        "param_encodings": {
            "net/w3:0": [old(offset=-128, scale=2.0**-7)] * 8,
            "net/w1:0": [old(offset=-128, scale=2.0**-7)] * 3,
            "net/b1:0": [old(offset=-(2**31), scale=2.0**-20, bits=32)],
        },
        "quantizer_args": {"activation_bitwidth": 8, "dtype": "int", "per_channel_quantization": "True"},
    },
    "1.0.0": {
        "version": "1.0.0",
        "activation_encodings": [
            new("net/x:0", offsets=[-71], scales=[0.0625], symmetric=False),
            new("stranger", offsets=[-128], scales=[1]),
            {"name": "net/r1:0", "bw": 16, "dtype": "FLOAT", "enc_type": "PER_TENSOR"},
        ],
        "param_encodings": [
            new("net/w3:0", offsets=[-128] * 8, scales=[2.0**-7] * 8),
            new("net/w1:0", offsets=[-128] * 3, scales=[2.0**-7] * 3),
            new("net/b1:0", offsets=[-(2**31)], scales=[2.0**-20], bits=32),
        ],
    },
    "2.0.0": {
        "version": "2.0.0",
        "encodings": [
            {"name": "net/x:0", "output_dtype": "uint8", "y_scale": 0.0625, "y_zero_point": 71},
            {"name": "stranger", "output_dtype": "int8", "y_scale": 1},
            {"name": "net/r1:0", "output_dtype": "float16", "y_scale": 1},
            {"name": "net/w3:0", "output_dtype": "int8", "y_scale": [2.0**-7] * 8, "y_zero_point": [0] * 8, "axis": 0},
            {"name": "net/w1:0", "output_dtype": "int8", "y_scale": [2.0**-7] * 3, "axis": 0},
            {"name": "net/b1:0", "output_dtype": "int32", "y_scale": 2.0**-20},
        ],
    },
}


@pytest.mark.parametrize("version", HANDMADE)
def test_a_file_of_aimet_s_own_is_read(version: str, tmp_path: Path) -> None:
    (tmp_path / "e").write_text(json.dumps(HANDMADE[version]))
    plan = plan_of()
    encoded = read_encodings(tmp_path / "e", plan)
    assert encoded.plan.activations[TensorId("x")] == QuantParams.per_tensor("uint8", 0.0625, 71)
    w3 = encoded.plan.weights[TensorId("w3")]
    assert w3 == replace(plan.weights[TensorId("w3")], scale=np.full(8, 2.0**-7, np.float32)), "narrow as the plan has it"
    said = dict(line.rsplit(": ", 1) for line in encoded.unmatched)
    assert said.keys() == {"stranger", "net/r1:0", "net/w1:0", "net/b1:0"}
    assert said["stranger"] == said["net/b1:0"] == "the plan gives no parameters to a tensor of this name"
    assert said["net/r1:0"].startswith("it is ")
    assert said["net/w1:0"] == "it has 3 scales there, the plan's tensor has 8 along axis 0"
    assert set(encoded.kept) == {*plan.activations, *plan.weights} - {"x", "w3"}
    quantized = octavo.quantize(residual_net(), plan=encoded.plan)
    assert quantized.plan.activations[TensorId("x")] == QuantParams.per_tensor("uint8", 0.0625, 71)


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        # (is_sym, offset) -> zero point of uint8 and of int8
        ((False, 0), (0, -128)),
        ((False, -255), (255, 127)),
        ((True, -128), (128, 0)),
        ((True, -127), (127, 0)),
        ((True, 0), (0, -128)),
    ],
)
def test_offsets_become_zero_points_of_the_plan_s_integers(
    entry: tuple[bool, int], expected: tuple[int, int], tmp_path: Path
) -> None:
    symmetric, offset = entry
    data = new("net/x:0", offsets=[offset], scales=[0.5], symmetric=symmetric)
    (tmp_path / "e").write_text(json.dumps({"version": "1.0.0", "activation_encodings": [data], "param_encodings": []}))
    for dtype, zero_point in zip(("uint8", "int8"), expected, strict=True):
        found = read_encodings(tmp_path / "e", plan_of(activation_dtype=dtype)).plan.activations[TensorId("x")]
        assert found == QuantParams.per_tensor(dtype, 0.5, zero_point)


def test_tensorrt_gives_back_symmetric_scales_to_the_last_bit(tmp_path: Path) -> None:
    plan = plan_of(SYMMETRIC)
    notes = write_encodings(plan, tmp_path / "c", "tensorrt")
    assert notes == (f"{len(plan.weights)} weights have no place there",)
    header, *lines = (tmp_path / "c").read_text().splitlines()
    assert header == "TRT-8601-EntropyCalibration2"
    x = float(plan.activations[TensorId("x")].scale)
    assert lines[0] == f"net/x:0: {struct.pack('>f', x).hex()}"
    other = octavo.quantize(residual_net(), ranged(residual_net()), target=SYMMETRIC).plan
    encoded = read_encodings(tmp_path / "c", other)
    assert encoded.plan.activations == plan.activations
    assert encoded.plan.weights == other.weights
    assert set(encoded.kept) == set(other.weights)
    assert octavo.quantize(residual_net(), plan=encoded.plan, target=SYMMETRIC).plan.activations == plan.activations


def test_tensorrt_covers_what_it_cannot_say_and_tells(tmp_path: Path) -> None:
    plan = plan_of()
    notes = write_encodings(plan, tmp_path / "c", "tensorrt")
    params = plan.activations[TensorId("x")]
    assert f"x: uint8 with zero point {int(params.zero_point)} becomes symmetric int8 that covers its range" in notes
    found = read_encodings(tmp_path / "c", plan).plan.activations[TensorId("x")]
    assert (found.dtype, int(found.zero_point)) == ("uint8", 128)
    low, high = ((bound - int(params.zero_point)) * float(params.scale) for bound in (params.qmin, params.qmax))
    assert float(found.scale) * 127 == pytest.approx(max(-low, high), rel=1e-6)
    wide = plan_of(activation_dtype="int16")
    assert "x: int16 has no scale there, which is one of int8" in write_encodings(wide, tmp_path / "w", "tensorrt")


CACHE = """TRT-7000-EntropyCalibration2
net/x:0: 3d000000
net/m:0: 3c008912
(Unnamed Layer* 3) [Scale]_output: 3db6bd6e
net/r1:0: 0
"""


def test_a_cache_of_tensorrt_s_own_is_read(tmp_path: Path) -> None:
    (tmp_path / "c").write_text(CACHE)
    plan = plan_of()
    encoded = read_encodings(tmp_path / "c", plan)
    assert encoded.plan.activations[TensorId("x")] == QuantParams.per_tensor("uint8", 0.03125, 128)
    (scale,) = struct.unpack(">f", bytes.fromhex("3c008912"))
    assert float(encoded.plan.activations[TensorId("m")].scale) == scale
    assert encoded.plan.activations[TensorId("f")] == encoded.plan.activations[TensorId("m")], "a reshape shares its parameters"
    assert encoded.unmatched == (
        "net/r1:0: its scale is 0",
        "(Unnamed Layer* 3) [Scale]_output: the plan gives no parameters to a tensor of this name",
    )
    octavo.quantize(residual_net(), plan=encoded.plan)


def test_a_weight_by_tensor_where_the_plan_has_channels(tmp_path: Path) -> None:
    data = new("net/w1:0", offsets=[-128], scales=[0.03125])
    (tmp_path / "e").write_text(json.dumps({"version": "1.0.0", "activation_encodings": [], "param_encodings": [data]}))
    encoded = read_encodings(tmp_path / "e", plan_of())
    weight = octavo.quantize(residual_net(), plan=encoded.plan).plan.weights[TensorId("w1")]
    assert (weight.granularity, float(weight.scale), weight.qmin) == (PerTensor(), 0.03125, -127)


def test_what_the_target_cannot_take_is_refused_when_it_is_applied(tmp_path: Path) -> None:
    (tmp_path / "e").write_text(json.dumps(HANDMADE["1.0.0"]))
    encoded = read_encodings(tmp_path / "e", plan_of(SYMMETRIC))
    assert encoded.plan.activations[TensorId("x")] == QuantParams.per_tensor("int8", 0.0625, -57)
    with pytest.raises(QuantizationError, match=r"x cannot be all that its ops need: the plan zero point -57, .* symmetric"):
        octavo.quantize(residual_net(), plan=encoded.plan, target=SYMMETRIC)


def entry(**more: Any) -> dict[str, Any]:
    whole = new("net/x:0", offsets=[0], scales=[0.5], symmetric=False)
    return {"version": "1.0.0", "activation_encodings": [{**whole, **more}], "param_encodings": []}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "not JSON, or cut short"),
        ("[]", "must be an object"),
        ('{"version": "3.0.0"}', "encodings of version 2, this is version 3.0.0"),
        ('{"version": "1.0.0"}', "it must hold activation_encodings"),
        ('{"activation_encodings": {"net/x:0": [{"scale": NaN}]}}', "NaN"),
        (entry(scale=[-0.5]), "net/x:0: -0.5 is no scale"),
        (entry(scale=[1e-60]), "net/x:0: 1e-60 is no scale"),
        (entry(scale=[]), "net/x:0 has 0 scales and 1 offsets"),
        (entry(scale=[0.5, 0.5], offset=[0, 0]), "net/x:0: it has 2 scales there, the plan's tensor has one"),
        (entry(scale="0.5"), "net/x:0: scale must be a list"),
        (entry(offset=[0.5]), "net/x:0: offset must be a whole number"),
        (entry(offset=[7]), r"net/x:0: its offset 7 is a zero point beyond \[0; 255\] of uint8"),
        (entry(bw=True), "number of bits"),
        (entry(bw=4), "net/x:0: it has 4 bits, expected 8 or 16"),
        (entry(is_sym="perhaps"), "net/x:0: is_sym must be true or false"),
        (entry(enc_type="PER_BLOCK"), "net/x:0: it is quantized PER_BLOCK"),
        (entry(name=""), r"encodings\[0\] has no name"),
        (entry(name="net/z:0"), "none of its 1 tensors is one of the plan's"),
        ({"version": "1.0.0", "activation_encodings": entry()["activation_encodings"] * 2}, "net/x:0 stands twice"),
        ("TRT-8601-EntropyCalibration2\nnet/x:0: zz", "line 2 must be a name, a colon and 8 hexadecimal digits"),
        ("TRT-8601-EntropyCalibration2\nnet/x:0: ffc00000", "is no scale"),
        ("TRT-8601-EntropyCalibration2\n", "none of its 0 tensors"),
        ("x: 3d000000\n", "not JSON"),
    ],
)
def test_a_bad_file_is_one_error(content: Any, said: str, tmp_path: Path) -> None:
    (tmp_path / "e").write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(QuantizationError, match=said) as raised:
        read_encodings(tmp_path / "e", plan_of())
    assert str(raised.value).startswith(str(tmp_path / "e"))


def test_files_that_cannot_be_read_or_written(tmp_path: Path) -> None:
    plan = plan_of()
    with pytest.raises(QuantizationError, match="cannot read the encodings: No such file"):
        read_encodings(tmp_path / "none", plan)
    (tmp_path / "b").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(QuantizationError, match="it is not text"):
        read_encodings(tmp_path / "b", plan)
    with pytest.raises(QuantizationError, match=r"encodings are written as one of aimet-0.6.1, .*, got 'qnn'"):
        write_encodings(plan, tmp_path / "e", "qnn")
    with pytest.raises(QuantizationError, match="cannot write the encodings: No such file"):
        write_encodings(plan, tmp_path / "none" / "e", "tensorrt")
    lines = replace(plan, names={**plan.names, TensorId("x"): "two\nlines"})
    with pytest.raises(QuantizationError, match="a cache is made of lines"):
        write_encodings(lines, tmp_path / "e", "tensorrt")
    assert [path.name for path in tmp_path.iterdir()] == ["b"]
