"""Factors have to leave the float model's results as they are: what does not hold gives way to powers of two, then to none."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tvm import relax

import octavo
from apply_steps import with_steps
from nets import model_of
from octavo.compiler.float_program import FloatProgram
from octavo.ir.graph.dataflow import BodyWriter
from octavo.quantizer.equalization import equalizer

SHAPE = (1, 3, 12, 12)


def profiled_with(function: Any, rng: np.random.Generator) -> tuple[octavo.Model, octavo.Profile]:
    """Two convolutions with a function between them whose channels are unlike, and a profile of them."""
    unlike = np.exp(rng.uniform(-3, 3, (8, 1, 1, 1)))
    params = {
        "w1": (rng.normal(size=(8, 3, 3, 3)) * unlike).astype(np.float32),
        "b1": (rng.normal(size=(1, 8, 1, 1)) * unlike.reshape(1, 8, 1, 1)).astype(np.float32),
        "w2": (rng.normal(size=(4, 8, 3, 3)) / unlike.reshape(1, 8, 1, 1)).astype(np.float32),
    }

    def body(writer: BodyWriter, **v: Any) -> Any:
        s1 = writer.emit("s1", relax.op.add(writer.emit("c1", relax.op.nn.conv2d(v["x"], v["w1"])), v["b1"]))
        r1 = writer.emit("r1", function(s1))
        return writer.emit("y", relax.op.nn.conv2d(r1, v["w2"]), is_output=True)

    model = model_of({"x": (SHAPE, "float32")}, params, body, ("y",))
    return model, octavo.profile(model, rng.normal(size=(20, *SHAPE[1:])).astype(np.float32), keep_samples=20)


@pytest.fixture
def profiled(rng: np.random.Generator) -> tuple[octavo.Model, octavo.Profile]:
    return profiled_with(relax.op.nn.relu, rng)


def exponents(quantized: Any) -> np.ndarray:
    factors = quantized.plan.equalization.factors
    return np.log2(np.concatenate([np.ravel(each) for each in factors.values()])) if factors else np.zeros(0)


def test_the_proof_runs_the_equalized_model_on_few_samples(
    profiled: tuple[octavo.Model, octavo.Profile], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many as say whether results are the same, once; what corrects runs the model as it was."""
    model, profile = profiled
    runs: list[int] = []
    run = FloatProgram.on

    def counted(self: Any, samples: Any, names: Any = ()) -> Any:
        runs.append(len(samples))
        return run(self, samples, names)

    monkeypatch.setattr(FloatProgram, "on", counted)
    assert with_steps(model, profile).plan.equalization
    assert runs == [equalizer._SAMPLES]


@pytest.mark.parametrize("is_wrong", [False, True])
def test_what_is_clipped_is_proven_with_the_program_that_there_is(
    is_wrong: bool, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And is left where what is made of it is not what it was."""
    model, profile = profiled_with(lambda s1: relax.op.clip(s1, 0, 6), rng)
    built: list[Any] = []
    build, scaled = FloatProgram.__init__, equalizer.scaled

    def counted(self: Any, *given: Any) -> None:
        built.append(self)
        build(self, *given)

    def wrong(simple: octavo.Model, factors: Any, **options: Any) -> octavo.Model:
        return scaled(simple, {name: each * np.float32(1.001) for name, each in factors.items()}, **options)

    monkeypatch.setattr(FloatProgram, "__init__", counted)
    monkeypatch.setattr(equalizer, "scaled", wrong if is_wrong else scaled)
    equalization = octavo.quantize(model, profile).plan.equalization
    assert {*equalization.clamps} == (set() if is_wrong else {"r1"})
    assert len(built) == 1


@pytest.mark.parametrize("knows_results", [True, False])
def test_factors_that_change_nothing_stay(profiled: tuple[octavo.Model, octavo.Profile], knows_results: bool) -> None:
    model, profile = profiled
    found = exponents(octavo.quantize(model, profile if knows_results else replace(profile, kept_results=())))
    assert np.ptp(found) > 1
    assert (found != found.round()).any(), "not powers of two: those come where others do not hold"


def test_what_rounds_gives_way_to_powers_of_two(
    profiled: tuple[octavo.Model, octavo.Profile], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(equalizer, "MAX_CHANGE", 0.0)
    model, profile = profiled
    found = exponents(octavo.quantize(model, profile))
    assert np.ptp(found) > 1
    assert (found == found.round()).all()


def test_what_never_holds_is_left(profiled: tuple[octavo.Model, octavo.Profile], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(equalizer, "MAX_CHANGE", -1.0)
    model, profile = profiled
    found = octavo.quantize(model, profile)
    assert not found.plan.equalization
    plain = octavo.quantize(model, profile, recipe=octavo.Recipe(equalization="none"))
    assert {name: value.tobytes() for name, value in found.params.items()} == {
        name: value.tobytes() for name, value in plain.params.items()
    }


def test_results_of_another_model_prove_nothing(profiled: tuple[octavo.Model, octavo.Profile]) -> None:
    """What the profile keeps does not fit: the model itself is run, and has the last word."""
    model, profile = profiled
    wrong = replace(profile, kept_results=tuple((result + 1,) for (result,) in profile.kept_results))
    found = exponents(octavo.quantize(model, wrong)).tolist()
    assert found
    assert found == exponents(octavo.quantize(model, profile)).tolist()
