"""`--recipe FILE`, alone and beside other options."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import octavo
from octavo.cli.main import main


def command(line: str) -> int:
    return main(line.split())


def test_a_recipe_file_counts_after_the_options(workplace: Path) -> None:
    fields = {
        "min_sqnr": None,
        "bias_correction": False,
        "weight_bits": 5,
        "overrides": {"pixels": {"activation_dtype": "int16"}},
    }
    Path("recipe.json").write_text(json.dumps({**fields, "weight_bits": 5, "weight_rounding": "nearest", "equalization": "none"}))
    assert command("quantize m.onnx --profile profile.json --recipe recipe.json --save-plan plan.json -o q.onnx") == 0
    plan = octavo.QuantizationPlan.load("plan.json")
    (pixels,) = octavo.load("m.onnx").input_ids
    assert (plan.activations[pixels].dtype, {params.qmax for params in plan.weights.values()}) == ("int16", {15})
    options = "--weight-bits 6 --no-corrections"
    assert command(f"quantize m.onnx --profile profile.json --recipe recipe.json {options} --save-plan plan.json -o q.onnx") == 0
    plan = octavo.QuantizationPlan.load("plan.json")
    assert (plan.activations[pixels].dtype, {params.qmax for params in plan.weights.values()}) == ("int16", {31})


def test_what_is_wrong_with_it_is_one_line(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("recipe.json").write_text('{"overrides": {"Conf": {"weight_bits": 4}}}')
    assert command("quantize m.onnx --profile profile.json --recipe recipe.json -o q.onnx") == 1
    assert "overrides names 'Conf', but the model has no such op or tensor; did you mean Conv" in capsys.readouterr().err
    Path("recipe.json").write_text('{"overrides": {"Conv": {"bits": 4}}}')
    assert command("quantize m.onnx --profile profile.json --recipe recipe.json -o q.onnx") == 1
    assert "recipe.json: recipe: overrides: Conv: field: unknown 'bits'" in capsys.readouterr().err
    assert not Path("q.onnx").exists()
