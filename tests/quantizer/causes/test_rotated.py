"""Root causes, fix and errors by layer of transformers: channels that are rotated, activations quantized per row."""

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

import octavo
from octavo.compiler.target_choice import resolve_target
from octavo.ir.identity import TensorId
from octavo.ir.simplify import simplify
from octavo.numerics.statistics.metrics import sqnr_db
from octavo.profiling import samples_of
from octavo.quantizer.causes import root_causes
from octavo.quantizer.choices import Choices
from octavo.quantizer.equalization import Equalizer
from octavo.quantizer.plan.plan import QuantizedModel
from octavo.quantizer.programs import Programs
from octavo.quantizer.quantize_graph import quantize_graph
from octavo.quantizer.referee.referee import score_of
from octavo.quantizer.tune import places_held_back
from small_transformer import draws, transformer

FAULTS = ("coarse scale", "clipping", "weight scale", "bias")
SAMPLES = draws(32, 16)
DEFAULT = octavo.Recipe()
PLAIN = replace(DEFAULT, bias_correction=False, weight_rounding="nearest", equalization="none", min_sqnr=None)


@cache
def rotated(kind: str, recipe: octavo.Recipe = DEFAULT) -> tuple[octavo.Model, octavo.Profile, QuantizedModel]:
    """Return a model, its profile, and quantized with all rotated that can be, and static parameters."""
    model = octavo.load(transformer(kind=kind, blocks=1))
    profile = octavo.profile(model, SAMPLES, keep_samples=16)
    simple = simplify(model)[0]
    equalizer = Equalizer(profile, samples_of(model, profile), Programs(simple=simple).floats)
    _, found = equalizer.rotated(simple, ())
    changes = Choices(equalization=found)
    return model, profile, quantize_graph(model, profile, target=resolve_target("cpu"), recipe=recipe, changes=changes)


@cache
def per_row() -> tuple[octavo.Model, octavo.Profile, QuantizedModel]:
    """Return a model, its profile, and what `quantize` makes of them by default: rotated, and per row."""
    model = octavo.load(transformer(kind="layer", blocks=1))
    profile = octavo.profile(model, draws(32, 24), keep_samples=24)
    quantized = octavo.quantize(model, profile)
    assert any(layer.per_row for layer in quantized.plan.layers)
    assert any(entry.step == "rotate" for entry in quantized.plan.journal.entries)
    return model, profile, quantized


def coarse(model: octavo.Model, quantized: QuantizedModel, factor: float) -> tuple[QuantizedModel, TensorId]:
    """Plant a scale that is others than its values need in the first rotated activation that is no other's, moved."""
    plan = quantized.plan
    name = next(name for name in plan.activations if name in plan.equalization.rotations and len(plan.sharing(name)) == 1)
    params = replace(plan.activations[name], scale=np.float32(plan.activations[name].scale * factor))
    return octavo.quantize(model, plan=plan.with_params({name: params})), name


@pytest.mark.parametrize("kind", ["layer", "rms"])
def test_a_fault_in_what_is_rotated_is_named_and_repaired(kind: str) -> None:
    model, profile, sound = rotated(kind)
    assert not [row for row in root_causes(model, sound, SAMPLES) if row.cause in FAULTS]
    faulty, name = coarse(model, sound, 8)
    first = root_causes(model, faulty, SAMPLES)[0]
    assert (first.id, first.cause) == (name, "coarse scale")
    result = octavo.fix(model, faulty, profile, min_gain_db=20)
    assert "against coarse scale" in result.entries[0].proposal
    assert result.entries[0].kept
    again = octavo.quantize(model, plan=result.quantized.plan)
    assert again.fingerprint == result.quantized.fingerprint
    assert result.quantized.plan.equalization.rotations == sound.plan.equalization.rotations


def test_what_is_quantized_anew_may_be_rotated_otherwise() -> None:
    model, profile, sound = rotated("layer", PLAIN)
    result = octavo.fix(model, sound, profile)
    assert not result.quantized.plan.equalization.rotations
    [anew] = [entry for entry in result.entries if entry.step == "equalize"]
    assert anew.kept
    assert anew.gain_db is not None
    held_back = [SAMPLES[place] for place in places_held_back(len(SAMPLES))[0]]
    found = score_of(model, result.quantized, octavo.profile(model, held_back, keep_samples=len(held_back)))
    assert found is not None
    assert found.sqnr_db == pytest.approx(result.after_db, abs=1.5)


@pytest.mark.parametrize("kind", ["layer", "rms"])
def test_rotated_tensors_are_compared_with_what_the_float_model_has_rotated(kind: str) -> None:
    model, _, sound = rotated(kind)
    rows = {row.id: row for row in octavo.layer_errors(model, sound, SAMPLES)}
    named = [name for name in sound.plan.equalization.rotations if name in rows]
    assert named
    assert min(rows[name].sqnr_db for name in named) > 10
    assert min(rows[name].local_sqnr_db for name in named) > 25
    faulty, name = coarse(model, sound, 8)
    first = octavo.layer_errors(model, faulty, SAMPLES)[0]
    assert (first.id, first.has_unfit_scale) == (name, True)


def test_errors_by_layer_are_those_of_the_kernels() -> None:
    model, _, quantized = per_row()
    rows = {row.source_name: row for row in octavo.layer_errors(model, quantized, SAMPLES)}
    floats, here = (np.stack([each(x)["y"] for x in SAMPLES]) for each in (octavo.compile(model), octavo.compile(quantized)))
    assert rows["y"].sqnr_db == pytest.approx(sqnr_db(floats, here), abs=0.3)


def test_rows_quantized_when_run_have_causes() -> None:
    model, profile, quantized = per_row()
    found: dict[Any, Any] = {row.id: row for row in root_causes(model, quantized, SAMPLES) if row.part == "activation"}
    names = {name for layer in quantized.plan.layers for name in layer.per_row}
    assert names <= found.keys()
    assert max(found[name].share for name in names) > 0.02
    largest = max((found[name] for name in names), key=lambda row: row.share)
    assert largest.cause == "rounding"
    assert "8 bits are too few for each row of it" in largest.remedy
    result = octavo.fix(model, quantized, profile, min_gain_db=0.05)
    assert result.after_db >= result.before_db
    tried = [entry for entry in result.entries if "each row" in entry.proposal or entry.step == "float tensors"]
    assert tried
