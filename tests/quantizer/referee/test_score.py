"""What one plan gains over another, and how sure that is."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from tvm import relax

from nets import model_of
from octavo.ir.graph.dataflow import BodyWriter, DataflowView
from octavo.quantizer.referee import Score
from octavo.quantizer.referee.score import counted


def score(*errors: list[float]) -> Score:
    return Score(errors=np.array(errors, np.float64))


def test_the_worst_output_counts() -> None:
    assert score([1e-3, 3e-3], [1e-2, 1e-2]).sqnr_db == pytest.approx(20)
    assert score([0.0, 0.0]).sqnr_db == math.inf
    assert score([1e-3, math.inf], [1e-3, 1e-3]).sqnr_db == -math.inf


def test_a_gain_is_that_of_the_worst_outputs() -> None:
    before, after = score([1e-3, 1e-3], [4e-2, 4e-2]), score([2e-2, 2e-2], [1e-3, 1e-3])
    assert after.gain_over(before).db == pytest.approx(10 * math.log10(2))
    assert before.gain_over(after).db == pytest.approx(-10 * math.log10(2))


def test_an_output_that_no_plan_changes_hides_no_gain() -> None:
    """Reals of zero that are off by as much either way; then only what differs counts."""
    for same in (math.inf, 5.0):
        before, after = score([same, same], [1e-2, 1e-2]), score([same, same], [1e-3, 1e-3])
        assert after.gain_over(before).db == pytest.approx(10)
        assert before.gain_over(after).db == pytest.approx(-10)


def test_half_of_each_error_is_a_certain_gain_however_samples_differ(rng: np.random.Generator) -> None:
    errors = np.exp(rng.normal(size=(1, 20)) * 3)
    gain = Score(errors=errors / 2).gain_over(Score(errors=errors))
    assert gain.db == pytest.approx(10 * math.log10(2))
    assert gain.standard_error == pytest.approx(0, abs=1e-9)
    assert gain.is_certain()


def test_a_gain_that_one_sample_makes_is_less_certain_than_one_of_all() -> None:
    before, after = [1e-3] * 15 + [5e-2], [1.1e-3] * 15 + [1e-2]
    gain = score(after).gain_over(score(before))
    assert gain.db > 1
    assert not gain.is_certain()
    same = score([each / 2.5 for each in before]).gain_over(score(before))
    assert same.is_certain(errors=3)


def test_what_most_samples_gain_is_certain_where_few_have_large_errors() -> None:
    before, after = [1e-3] * 15 + [5e-2], [0.5e-3, 0.6e-3, 0.4e-3] * 5 + [4.8e-2]
    gain = score(after).gain_over(score(before))
    assert 0 < gain.db < 1 * gain.standard_error
    assert gain.typical_db > 5 * gain.typical_error
    assert gain.is_certain()
    worse = score([*after[:-1], 7e-2]).gain_over(score(before))
    assert worse.typical_db > worse.typical_error
    assert worse.db < 0
    assert not worse.is_certain(), "all together lose"


def test_the_standard_error_is_the_spread_of_gains_over_draws_of_samples(rng: np.random.Generator) -> None:
    """4,000 pairs of errors, of which 400 draws take 36: the gains of these scatter as each draw says of itself."""
    common = np.exp(rng.normal(size=4000))
    before, after = common * np.exp(0.3 * rng.normal(size=4000)), 0.8 * common * np.exp(0.3 * rng.normal(size=4000))
    gains = []
    for _ in range(400):
        places = rng.choice(4000, 36, replace=False)
        gains.append(score(list(after[places])).gain_over(score(list(before[places]))))
    spread = float(np.std([gain.db for gain in gains], ddof=1))
    said = float(np.mean([gain.standard_error for gain in gains]))
    assert said == pytest.approx(spread, rel=0.15)
    true = 10 * math.log10(before.mean() / after.mean())
    assert float(np.mean([gain.db for gain in gains])) == pytest.approx(true, abs=2 * spread / math.sqrt(400))


def test_errors_that_are_not_finite_lose_against_any_other() -> None:
    finite, other = score([1e-2, 1e-2]), score([1e-4, math.inf])
    assert finite.gain_over(other).db == math.inf
    assert other.gain_over(finite).db == -math.inf
    assert other.gain_over(other).db == 0
    assert not other.gain_over(other).is_certain()


def test_one_sample_makes_nothing_certain() -> None:
    gain = score([1e-4]).gain_over(score([1e-2]))
    assert gain.db == pytest.approx(20)
    assert not gain.is_certain()


def test_a_cache_that_the_model_appends_to_counts_through_what_is_made_of_it() -> None:
    def body(writer: BodyWriter, **v: Any) -> Any:
        cache, unread = (
            writer.emit(name, relax.op.concat([v[of], v["new"]], axis=0), is_output=True)
            for name, of in (("cache", "past"), ("unread", "state"))
        )
        return relax.Tuple([writer.emit("sum", relax.op.sum(cache, axis=[0]), is_output=True), cache, unread])

    inputs = dict.fromkeys(("past", "state", "new"), ((2, 3), "float32"))
    view = DataflowView(model_of(inputs, {}, body, ("sum", "cache", "unread")).module["main"])
    assert counted(view, list(view.function.params)) == [True, False, True]
    assert counted(view, []) == [True, True, True]
