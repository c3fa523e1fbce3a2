"""Sums of a residual trunk that stay float, of which products read copies."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tvm import relax

import octavo
from apply_steps import with_steps
from nets import mlp, model_of
from octavo.compiler.target_choice import resolve_target
from octavo.ir.graph.dataflow import BodyWriter
from octavo.numerics.statistics.metrics import sqnr_db
from octavo.quantizer.choices import Choices
from octavo.quantizer.planner import Planner
from octavo.quantizer.quantize_graph import quantize_graph
from octavo.quantizer.referee import Referee, RoundedProgram
from octavo.quantizer.steps.float_trunk import FloatTrunk

BLOCKS = 4
CHANNELS = 48


def trunk_net(rng: np.random.Generator) -> octavo.Model:
    """A product that blocks add to; the last sum adds what the product gave again."""

    def body(writer: BodyWriter, **v: Any) -> Any:
        trunk = head = writer.emit("head", relax.op.matmul(v["x"], v["w"]))
        for number in range(BLOCKS):
            inner = writer.emit(
                f"r{number}", relax.op.nn.relu(writer.emit(f"_a{number}", relax.op.matmul(trunk, v[f"a{number}"])))
            )
            more = writer.emit(f"d{number}", relax.op.matmul(inner, v[f"b{number}"]))
            trunk = writer.emit(f"t{number}", relax.op.add(trunk, more))
        both = writer.emit("both", relax.op.add(trunk, head))
        return writer.emit("y", relax.op.matmul(both, v["o"]), is_output=True)

    params = {"w": rng.normal(size=(8, CHANNELS)), "o": rng.normal(size=(CHANNELS, 4))}
    for number in range(BLOCKS):
        params |= {f"{kind}{number}": rng.normal(size=(CHANNELS, CHANNELS)) / 20 for kind in "ab"}
    return model_of({"x": ((1, 6, 8), "float32")}, {k: each.astype(np.float32) for k, each in params.items()}, body, ("y",))


@pytest.fixture
def made(rng: np.random.Generator) -> Any:
    """Return the network, plainly and with the step, and samples."""
    model = trunk_net(rng)
    samples = [rng.normal(size=(1, 6, 8)).astype(np.float32) for _ in range(24)]
    profile = octavo.profile(model, samples, keep_samples=24)
    return model, quantize_graph(model, profile), with_steps(model, profile, [FloatTrunk()]), samples


def test_sums_stay_float_and_outputs_come_nearer(made: Any) -> None:
    """The referee says what compiled models give."""
    model, plain, quantized, samples = made
    floats = {str(op.tensor) for op in quantized.plan.float_ops}
    assert floats >= {f"t{number}" for number in range(BLOCKS - 1)}
    copied = {str(layer.output) for layer in quantized.plan.layers if layer.leaves_copies}
    assert copied == {"head"}
    assert "head" in quantized.plan.activations, "products read a copy of it"

    expected, *found = (_outputs(each, samples) for each in (model, plain, quantized))
    before, after = (sqnr_db(expected, each) for each in found)
    assert after > before + 1
    referee = Referee(RoundedProgram(model, [plain.plan, quantized.plan], resolve_target(None)), [[each] for each in samples])
    assert abs(referee.score(quantized.plan).sqnr_db - after) < 0.05


def test_a_saved_plan_makes_the_same_model(made: Any, tmp_path: Path) -> None:
    """Which products leave copies is in the file."""
    model, _, quantized, _ = made
    quantized.plan.save(tmp_path / "plan.json")
    assert octavo.quantize(model, plan=tmp_path / "plan.json").fingerprint == quantized.fingerprint


@pytest.mark.parametrize("ops", ["sums", "all"])
def test_nothing_is_planned_that_would_gain_too_little(
    ops: Any, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What all would gain in float is known from the plan that there is."""
    model = trunk_net(rng)
    samples = [rng.normal(size=(1, 6, 8)).astype(np.float32) for _ in range(8)]
    profile = octavo.profile(model, samples, keep_samples=8)
    planned, own = list[Choices](), Planner.planned
    monkeypatch.setattr(
        Planner, "planned", lambda planner, choices, **how: [planned.append(choices), own(planner, choices, **how)][1]
    )
    with_steps(model, profile, [FloatTrunk(ops=ops)])
    assert any(each.float_results for each in planned)

    planned.clear()
    monkeypatch.setattr(FloatTrunk, "min_gain_db", 60.0)
    with_steps(model, profile, [FloatTrunk(ops=ops)])
    assert planned
    assert not any(each.float_results for each in planned)


def test_nothing_is_proposed_where_nothing_is_summed_up(rng: np.random.Generator) -> None:
    """A step of two that finds nothing changes nothing."""
    model = mlp(rng)
    profile = octavo.profile(model, [rng.normal(size=(1, 16)).astype(np.float32) for _ in range(4)], keep_samples=4)
    assert with_steps(model, profile, [FloatTrunk()]).fingerprint == quantize_graph(model, profile).fingerprint


def _outputs(model: octavo.Model, samples: list[np.ndarray]) -> np.ndarray:
    run = octavo.compile(model)
    return np.concatenate([next(iter(run(sample).values())) for sample in samples])
