"""Steps from elsewhere: the page's example is tried, and judged, like any other."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import octavo
from nets import residual_net
from octavo.errors import QuantizationError
from octavo.quantizer import steps

PAGE = Path(__file__).resolve().parents[2] / "docs" / "extending.md"


def example() -> str:
    section = PAGE.read_text(encoding="utf-8").split("## Add a step of quantizing\n")[1]
    found = re.search(r"```python\n(.*?)```", section, re.DOTALL)
    assert found is not None
    return found[1]


def test_the_step_of_the_page_is_tried_and_judged(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    model = residual_net()
    profile = octavo.profile(model, [rng.normal(size=(1, 3, 8, 8)).astype(np.float32) for _ in range(12)], keep_samples=12)
    before = octavo.quantize(model, profile)
    monkeypatch.setattr(steps, "_ORDER", list(steps.order()))
    exec(compile(example(), "example", "exec", dont_inherit=True), {"__name__": "example"})
    quantized = octavo.quantize(model, profile)
    entry = next(each for each in quantized.plan.journal.entries if each.step == "clip")
    assert ": it gains -" in entry.proposal, "a tenth of each range is much"
    assert not entry.kept
    assert quantized.fingerprint == before.fingerprint
    assert "clip: " in str(octavo.explain(quantized))
    quantized.plan.save(tmp_path / "plan.json")
    assert octavo.quantize(model, plan=tmp_path / "plan.json").plan.journal == quantized.plan.journal
    monkeypatch.undo()
    with pytest.raises(QuantizationError, match="names a step 'clip', and there is none here: register it"):
        octavo.quantize(model, plan=tmp_path / "plan.json")
    text = (tmp_path / "plan.json").read_text().replace('"step": "clip"', f'"step": "{steps.FORMER[0]}"')
    (tmp_path / "plan.json").write_text(text)
    assert octavo.quantize(model, plan=tmp_path / "plan.json").fingerprint == quantized.fingerprint


def test_two_steps_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="there is a step 'correct'"):
        steps.register_step(steps.correct.Correct)
