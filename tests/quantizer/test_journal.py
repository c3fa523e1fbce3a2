"""The journal: a plan's file keeps it, a plan that is applied to the letter has it still, and it says in words what it holds."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from plan_edits import drop, edited
from tvm import relax

import octavo
from nets import model_of, residual_net
from octavo.ir.graph.dataflow import BodyWriter
from octavo.quantizer.plan.journal import Journal, JournalEntry
from octavo.quantizer.plan.plan import QuantizationPlan
from octavo.quantizer.tune import demanding

KEPT = JournalEntry(step="correct", proposal="2 biases", gain_db=1.25, standard_error_db=0.125, kept=True, seconds=0.5)
NOTHING = JournalEntry(step="equalize", proposal="", gain_db=None, standard_error_db=None, kept=False, seconds=0.0)
WORSE = JournalEntry(
    step="ranges by mse", proposal="ranges by mse", gain_db=-math.inf, standard_error_db=0.0, kept=False, seconds=1.0
)
UNSURE = JournalEntry(step="x", proposal="1 ranges", gain_db=math.inf, standard_error_db=math.inf, kept=False, seconds=1e-7)
JOURNALS = {
    "full": Journal(
        entries=(KEPT, NOTHING, WORSE, UNSURE), held_back=21, plain_db=20.123456789, sqnr_db=21.373456789, agreement=0.875
    ),
    "exact": Journal(entries=(KEPT,), held_back=4, plain_db=math.inf, sqnr_db=math.inf),
    "broken": Journal(entries=(NOTHING,), held_back=4, plain_db=-math.inf, sqnr_db=20.0),
    "carried": Journal(entries=(KEPT,), held_back=4, plain_db=10.0, sqnr_db=20.0, carried=("state",)),
    "none": Journal(),
}


@pytest.fixture(scope="module")
def quantized() -> tuple[octavo.Model, octavo.QuantizedModel]:
    model, rng = residual_net(), np.random.default_rng(4)
    samples = [rng.normal(size=(1, 3, 8, 8)).astype(np.float32) for _ in range(12)]
    return model, octavo.quantize(model, octavo.profile(model, samples, keep_samples=12))


@pytest.mark.parametrize("name", JOURNALS)
def test_a_plan_s_file_keeps_it(quantized: tuple[octavo.Model, octavo.QuantizedModel], tmp_path: Path, name: str) -> None:
    plan = replace(quantized[1].plan, journal=JOURNALS[name])
    plan.save(tmp_path / "plan.json")
    read = QuantizationPlan.load(tmp_path / "plan.json")
    assert read.journal == JOURNALS[name]
    read.save(tmp_path / "again.json")
    assert (tmp_path / "again.json").read_bytes() == (tmp_path / "plan.json").read_bytes()


def test_inputs_that_look_like_state_are_said(rng: np.random.Generator) -> None:
    """Errors that add up from run to run are nowhere in what was compared."""

    def body(writer: BodyWriter, **v: Any) -> relax.Expr:
        product = writer.emit("_product", relax.op.matmul(v["x"], v["w"]))
        state = writer.emit("next", relax.op.add(product, v["state"]), is_output=True)
        return relax.Tuple([writer.emit("y", relax.op.matmul(state, v["head"]), is_output=True), state])

    weights = {"w": rng.normal(size=(8, 4)).astype(np.float32), "head": rng.normal(size=(4, 4)).astype(np.float32)}
    model = model_of({"x": ((1, 8), "float32"), "state": ((1, 4), "float32")}, weights, body, ("y", "next"))
    samples = [{"x": rng.normal(size=(1, 8)), "state": rng.normal(size=(1, 4))} for _ in range(8)]
    samples = [{name: value.astype(np.float32) for name, value in each.items()} for each in samples]
    journal = octavo.quantize(model, octavo.profile(model, samples, keep_samples=8)).plan.journal
    assert journal.carried == ("net/state:0",)
    assert "each with the float model's net/state:0: evaluate with --state" in journal.summary
    assert not replace(journal, sqnr_db=None).summary
    recipes = octavo.Recipe(), octavo.Recipe(min_sqnr=None)
    assert [demanding(each, model).min_sqnr for each in recipes] == [30.0, None], "errors add up: more is demanded"


def test_a_plan_that_is_applied_has_it_still(quantized: tuple[octavo.Model, octavo.QuantizedModel], tmp_path: Path) -> None:
    model, first = quantized
    assert first.plan.journal.entries
    assert first.plan.journal.held_back == 4
    assert demanding(octavo.Recipe(), model) == octavo.Recipe()
    first.plan.save(tmp_path / "plan.json")
    again = octavo.quantize(model, plan=tmp_path / "plan.json")
    assert again.plan.journal == first.plan.journal
    assert again.fingerprint == first.fingerprint


def test_it_makes_no_other_model(quantized: tuple[octavo.Model, octavo.QuantizedModel]) -> None:
    model, first = quantized
    without = octavo.quantize(model, plan=replace(first.plan, journal=Journal()))
    assert without.fingerprint == first.fingerprint


def test_files_of_the_version_before_are_read(quantized: tuple[octavo.Model, octavo.QuantizedModel], tmp_path: Path) -> None:
    model, first = quantized
    path = tmp_path / "plan.json"
    first.plan.save(path)
    assert json.loads(path.read_text())["schema_version"] == 4
    edited(path, drop("journal"))
    edited(path, lambda data: data.update(schema_version=3))
    read = QuantizationPlan.load(path)
    assert read.journal == Journal()
    assert octavo.quantize(model, plan=read).fingerprint == first.fingerprint


def test_it_is_said_in_words() -> None:
    assert KEPT.said == "correct: 2 biases: +1.25 dB (0.12 standard error), kept"
    assert NOTHING.said == "equalize: nothing to propose"
    assert WORSE.said == "ranges by mse: ranges by mse: -inf dB (0.00 standard error), left out"
    assert replace(NOTHING, proposal="4 ranges").said == "equalize: 4 ranges, left out"
    assert UNSURE.said == "x: 1 ranges: +inf dB (unknown standard error), left out"
    full = JOURNALS["full"]
    assert full.kept == ["correct"]
    assert full.summary == "correct kept: outputs 21.4 dB above their error on 21 samples held back (20.1 dB without)"
    nothing_kept = replace(full, entries=(NOTHING, WORSE))
    assert nothing_kept.summary == "no step kept: outputs 21.4 dB above their error on 21 samples held back"
    assert JOURNALS["none"].summary == ""
