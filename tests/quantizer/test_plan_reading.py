"""Reading a plan's file: a field that is wrong is named, and a file that is none is one clear error."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from plan_edits import Edit, drop, edited, layer, put, save_plan, scale

import octavo
from nets import residual_net
from octavo.errors import QuantizationError
from octavo.quantizer.plan.plan import QuantizationPlan


@pytest.fixture(name="saved")
def fixture_saved(tmp_path: Path) -> Path:
    """A plan with a journal of two entries."""
    path = save_plan(tmp_path / "plan.json")
    return edited(path, lambda data: data["journal"].update(held_back=4, plain_db=20.0, sqnr_db=21.0, entries=[ENTRY, ENTRY]))


ENTRY = {"step": "correct", "proposal": "2 biases", "gain_db": 1.0, "standard_error_db": 0.1, "kept": True, "seconds": 0.5}


def journal(**more: Any) -> Edit:
    return lambda data: data["journal"].update(more)


def entry(**more: Any) -> Edit:
    """Edit the second entry of the journal."""

    def edit(data: dict[str, Any]) -> None:
        data["journal"]["entries"][1] = {**ENTRY, **more}

    return edit


MALFORMED: dict[str, tuple[Edit, str]] = {
    "version": (lambda data: data.update(schema_version=1), "schema_version must be 4, got 1"),
    "format": (lambda data: data.update(format="octavo-profile"), 'it has no "format": "octavo-plan"'),
    "unknown field": (lambda data: data.update(comment="x"), "the plan: unknown field 'comment'"),
    "missing field": (drop("layers"), "the plan: field 'layers' is missing"),
    "field of a tensor": (put("activations", "r1", zeropoint=0), "activations: r1: unknown field 'zeropoint'"),
    "no zero point": (drop("activations", "r1", "zero_point"), "activations: r1: field 'zero_point' is missing"),
    "negative scale": (scale("activations", "r1", -0.5), "activations: r1: scale must be a positive float32 number, got -0.5"),
    "scale 0": (scale("weights", "w1", [0.0] * 8), "weights: w1: scale must be a positive float32 number, got 0.0"),
    "tiny scale": (scale("activations", "r1", 1e-60), "activations: r1: scale must be a positive float32 number"),
    "large scale": (scale("activations", "r1", 1e60), "activations: r1: scale must be a positive float32 number"),
    "text": (scale("activations", "r1", "0.5"), "scale must be a positive float32 number, got '0.5'"),
    "true": (scale("activations", "r1", True), "scale must be a positive float32 number, got True"),
    "list without axis": (scale("activations", "r1", [0.5]), r"r1: scale must be a positive float32 number, got \[0.5\]"),
    "number with axis": (scale("weights", "w1", 0.5), "w1: scale must be a list"),
    "lengths": (scale("weights", "w1", [0.5]), r"w1: scale \(1,\) and zero_point \(8,\) must have one shape"),
    "zero point": (put("activations", "r1", zero_point=128), r"r1: zero_point must be a whole number in \[-128; 127\], got 128"),
    "half a zero point": (put("activations", "r1", zero_point=0.5), "r1: zero_point must be a whole number"),
    "dtype": (put("activations", "r1", dtype="int9"), "r1: dtype must be one of int4, .*, got 'int9'"),
    "qmin": (put("weights", "w1", qmin=-200), r"w1: qmin must be a whole number in \[-128; 127\], got -200"),
    "order": (put("weights", "w1", qmin=5, qmax=5), "w1: qmin 5 must be below qmax 5"),
    "rounding": (put("activations", "r1", rounding="up"), "r1: rounding must be one of .*, got 'up'"),
    "recipe": (lambda data: data["recipe"].update(weight_dtype="int3"), "recipe: weight_dtype must be one of int8, got 'int3'"),
    "layer": (layer(0, inputs="x"), r"layers\[0\]: inputs must be a list, got 'x'"),
    "layer's field": (layer(0, padding=1), r"layers\[0\]: unknown field 'padding'"),
    "twice": (lambda data: data["layers"].append(data["layers"][0]), "layers: two have the output r1"),
    "both": (
        lambda data: data["float_ops"].append({"op": "nn.conv2d", "tensor": "r1", "reason": "slow"}),
        "r1 is the output of a layer and stands in float_ops",
    ),
    "fold": (
        lambda data: data["folds"].append(
            {"op": "nn.pad", "tensor": "a", "gone": "b", "weight": None, "bias": None, "padding": [1]}
        ),
        r"folds\[0\]: padding must be 4 numbers",
    ),
    "journal": (lambda data: data.update(journal=[]), r"journal must be an object, got \[\]"),
    "no journal": (drop("journal"), "the plan: field 'journal' is missing"),
    "field of the journal": (journal(kept=1), "journal: unknown field 'kept'; known: held_back, plain_db, sqnr_db, agreement"),
    "no ratio": (drop("journal", "sqnr_db"), "journal: field 'sqnr_db' is missing"),
    "ratio": (journal(plain_db="20"), 'journal: plain_db must be a number, "inf", "-inf" or null, got \'20\''),
    "true ratio": (journal(sqnr_db=True), "journal: sqnr_db must be a number, .* got True"),
    "held back": (journal(held_back=-1), r"journal: held_back must be a whole number in \[0; "),
    "half held back": (journal(held_back=0.5), "journal: held_back must be a whole number"),
    "agreement": (journal(agreement="all"), "journal: agreement must be a number"),
    "entries": (journal(entries={}), "journal.* must be a list, got {}"),
    "entry": (journal(entries=["correct"]), r"journal: entries\[0\] must be an object, got 'correct'"),
    "entry's field": (entry(gain=1.0), r"journal: entries\[1\]: unknown field 'gain'"),
    "entry without": (drop("journal", "entries", 1, "step"), r"journal: entries\[1\]: field 'step' is missing"),
    "step": (entry(step=2), r"journal: entries\[1\]: step must be a text"),
    "proposal": (entry(proposal=None), r"journal: entries\[1\]: proposal must be a text, got None"),
    "kept": (entry(kept="yes"), r"journal: entries\[1\]: kept must be true or false, got 'yes'"),
    "gain": (entry(gain_db="much"), r"journal: entries\[1\]: gain_db must be a number, .* got 'much'"),
    "error": (entry(standard_error_db=[0.1]), r"journal: entries\[1\]: standard_error_db must be a number"),
    "seconds": (entry(seconds="1"), r"journal: entries\[1\]: seconds must be a number"),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_a_field_that_is_wrong_is_named(saved: Path, case: str) -> None:
    edit, said = MALFORMED[case]
    with pytest.raises(QuantizationError, match=said) as raised:
        QuantizationPlan.load(edited(saved, edit))
    assert str(raised.value).startswith(f"{saved}: not a valid plan: ")


def test_a_file_that_is_none_is_one_error(saved: Path, tmp_path: Path) -> None:
    text = saved.read_text()
    bad = tmp_path / "bad.json"
    for content, said in (
        (text[: len(text) // 2], "not a valid plan: not JSON, or cut short"),
        (text.replace('"scale": 0', '"scale": NaN, "was": 0', 1), "NaN is not allowed"),
        (text.replace('"fingerprint"', '"format": "octavo-plan",\n"fingerprint"', 1), "'format' stands twice in one object"),
        ("[]", "it has no"),
        ("", "not JSON"),
        ("[" * 100_000, "not JSON"),
    ):
        bad.write_text(content)
        with pytest.raises(QuantizationError, match=said):
            QuantizationPlan.load(bad)
    bad.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(QuantizationError, match="it is not text"):
        QuantizationPlan.load(bad)
    with pytest.raises(QuantizationError, match="No such file"):
        QuantizationPlan.load(tmp_path / "none.json")
    with pytest.raises(QuantizationError, match="expected the path of the plan, got int 3"):
        octavo.quantize(residual_net(), plan=3)


def test_every_truncation_is_found(saved: Path, tmp_path: Path) -> None:
    text = saved.read_text()
    for length in range(0, len(text.rstrip()) - 1, 97):
        (tmp_path / "cut.json").write_text(text[:length])
        with pytest.raises(QuantizationError, match="cut short"):
            QuantizationPlan.load(tmp_path / "cut.json")
