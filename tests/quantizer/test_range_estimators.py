"""Range estimators: what each makes of a tensor's statistics, how they are spelled, and how a new one is registered."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import octavo
from handmade_profile import ranged
from nets import residual_net
from octavo.cli.main import main
from octavo.ir.identity import TensorEntry, TensorId
from octavo.numerics.statistics.histogram import bin_of
from octavo.numerics.statistics.histogram_estimates import estimated_sqnr_db
from octavo.profiling import TensorStatistics
from octavo.profiling.statistics import constant_statistics
from octavo.quantizer import ranges
from octavo.quantizer.ranges import MinMax, Percentile, QuantScheme, registry
from octavo.quantizer.recipe import Recipe

FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)
UINT8 = QuantScheme(dtype="uint8")
EXTENDING = Path(__file__).resolve().parents[2] / "docs" / "extending.md"


def statistics(values: np.ndarray) -> TensorStatistics:
    entry = TensorEntry(id=TensorId("t"), source_name="t", kind="activation", shape=values.shape, dtype="float32")
    return constant_statistics(entry, values)


def percentile_of(values: np.ndarray, percentile: float) -> tuple[float, float]:
    return Percentile(percentile).range_of(statistics(values), UINT8)


def test_estimators_say_whether_ends_are_enough() -> None:
    found = [name for name in ranges.range_estimator_names() if ranges.takes_only_ends(name)]
    assert found == ["min_max", "global_scale", "auto"]
    assert ranges.takes_only_ends("global_scale:4")
    assert not ranges.takes_only_ends("percentile:99.9")


@given(st.lists(FLOATS, min_size=1, max_size=60), st.floats(50, 100))
def test_percentile_keeps_its_share_of_bins_within_the_observed_range(values: list[float], percentile: float) -> None:
    data = np.array(values, np.float32)
    low, high = percentile_of(data, percentile)
    assert float(data.min()) <= low <= high <= float(data.max())
    bins, ends = bin_of(data), bin_of(np.array([low, high], np.float32))
    kept = ((bins >= ends[0]) & (bins <= ends[1])).mean() * 100
    assert kept >= percentile - 1e-9


@pytest.mark.parametrize("percentile", [99.0, 99.9, 99.99])
def test_ends_within_a_bin_are_those_of_the_values(percentile: float) -> None:
    rng = np.random.default_rng(0)
    for data in (rng.standard_normal(200_000), rng.standard_t(3, 200_000), np.abs(rng.standard_normal(200_000)) + 5):
        single = data.astype(np.float32)
        got = percentile_of(single, percentile)
        tail = (100 - percentile) / 2
        # The last share lies in the 0.005% of a tail: ten values, of which the estimate may miss one.
        for cut, end in zip((tail, 100 - tail), got, strict=True):
            near = np.percentile(single, [max(cut - 0.002, 0), min(cut + 0.002, 100)])
            assert near[0] - 0.002 * abs(end) <= end <= near[1] + 0.002 * abs(end)


def test_percentile_cuts_outliers_on_both_sides() -> None:
    data = np.concatenate([np.linspace(-1, 1, 9998), [-100.0, 50.0]]).astype(np.float32)
    low, high = percentile_of(data, 99.9)
    assert -1.0 <= low < -0.998
    assert 0.998 < high <= 1.0
    assert percentile_of(data, 100.0) == (-100.0, 50.0)
    assert percentile_of(np.zeros(0, np.float32), 99.9) == (0.0, 0.0)


def test_spellings() -> None:
    assert ranges.range_estimator("min_max") == MinMax()
    assert ranges.range_estimator("percentile:99.5") == Percentile(99.5)
    assert ranges.range_estimator("percentile") == Percentile()
    assert Recipe(range_estimator="percentile", percentile=99.0).estimator() == Percentile(99.0)
    assert Recipe(range_estimator="percentile:98", percentile=99.0).estimator() == Percentile(98.0)


@pytest.mark.parametrize(
    ("spelling", "message"),
    [
        ("magic", "range_estimator must be one of min_max, percentile, mse, entropy, mean, global_scale, auto, got 'magic'"),
        ("percentile:101", r"percentile must lie in \[50; 100\], got 101"),
        ("percentile:many", "percentile must be a number, got 'percentile:many'"),
        ("percentile:", "percentile must be a number"),
        ("min_max:1", "min_max takes no argument, got 'min_max:1'"),
    ],
)
def test_wrong_spellings_are_named(spelling: str, message: str) -> None:
    with pytest.raises(octavo.OctavoError, match=f"recipe: {message}"):
        Recipe(range_estimator=spelling)


def test_names_are_registered_once() -> None:
    with pytest.raises(ValueError, match="'min_max': give a name that is none of min_max, percentile"):
        ranges.register_range_estimator("min_max", MinMax)


@pytest.mark.parametrize(("dtype", "bits"), [("uint8", 8), ("int8", 8), ("int16", 16)])
def test_a_scheme_makes_parameters(dtype: str, bits: int) -> None:
    scheme = QuantScheme(dtype=dtype, symmetric=True)
    params = scheme.params(-2.0, 1.0)
    assert (scheme.num_bits, float(params.scale), int(params.zero_point)) == (bits, np.float32(2.0 / params.qmax), 0)
    assert int(QuantScheme(dtype="int8").params(-2.0, 1.0).zero_point) != 0


@pytest.fixture
def documented(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Run the example of the docs; what it registers is forgotten after the test."""
    monkeypatch.setattr(registry, "_REGISTERED", dict(registry._REGISTERED))
    text = EXTENDING.read_text(encoding="utf-8")
    match = re.search(r"```python\n(.*?)```", text[text.index("## Add a range estimator") :], re.DOTALL)
    assert match is not None
    assert len(match[1].splitlines()) < 30
    example = tmp_path / "deviations.py"
    example.write_text(match[1], encoding="utf-8")
    runpy.run_path(str(example))


@pytest.mark.usefixtures("documented")
def test_the_documented_estimator_quantizes_and_is_known_everywhere(capsys: pytest.CaptureFixture[str]) -> None:
    model = residual_net()
    rng = np.random.default_rng(1)
    found = statistics(np.append(rng.standard_normal(400_000), [-15.0, 15.0]).astype(np.float32))
    params = {name: UINT8.params(*ranges.range_estimator(name).range_of(found, UINT8)) for name in ("min_max", "deviations")}
    errors = {name: estimated_sqnr_db(found.histogram, found.minimum, found.maximum, each) for name, each in params.items()}
    assert errors["deviations"] > errors["min_max"] + 2

    samples = rng.standard_normal((64, 3, 8, 8)).astype(np.float32)
    samples[0, 0, 0, :2] = -8.0, 8.0
    profile = octavo.profile(model, samples)
    quantized = octavo.quantize(model, profile, recipe=Recipe(range_estimator="deviations:4"))
    plain = octavo.quantize(model, profile)
    x = TensorId("x")
    assert quantized.plan.activations[x].scale < plain.plan.activations[x].scale
    assert list(ranges.range_previews())[-1] == "deviations"
    with pytest.raises(octavo.OctavoError, match=r"must be one of min_max, percentile.*, deviations, got 'kl'"):
        Recipe(range_estimator="kl")
    with pytest.raises(SystemExit, match="0"):
        main(["quantize", "--help"])
    assert "deviations[:NUMBER]" in "".join(capsys.readouterr().out.split())
    assert octavo.quantize(model, ranged(model), recipe=Recipe(range_estimator="deviations")).plan.activations
