"""What the table of root causes names first on real networks, and what searches return that are interrupted or killed.

Reduced to keep the suite short; benchmarks/planted_faults.py, root_causes.py and search_interruptions.py run more trials, on more
networks and samples.
"""

from __future__ import annotations

import numpy as np
from tvm import relax

import planted_faults
import root_causes
from nets import model_of
from quantization_quality import Evaluation
from search_interruptions import PLAIN, Searching, searches


def test_planted_faults_are_named_first(shared, tmp_path):
    evaluation = Evaluation("resnet8", tmp_path, limit=planted_faults.MAX_SAMPLES)
    evaluation.calibration = evaluation.calibration[:8]
    planting = planted_faults.Planting(evaluation, np.random.default_rng(1), PLAIN)
    trials = planted_faults.planted_trials(planting, rounds=1, least_effect=0.5, faults=["swap"])
    assert [planted_faults.cells(each) for each in trials if not each.is_right] == []
    assert [each.fault for each in trials if each.effect_db >= 0.5] == ["swap"]


def test_the_sum_of_squares_under_a_root_is_named_first(shared, tmp_path):
    evaluation = Evaluation("silero_vad", tmp_path, limit=100)
    evaluation.calibration = evaluation.calibration[::8]
    result = root_causes.measure(evaluation, "min-max", fix=False)
    assert "(power -> add -> sqrt)" in result.rows[0].remedy
    assert result.rows[0].gain_db > 10 > result.quality.sqnr_db
    assert "(power -> add -> sqrt)" in root_causes.cells(result, 1)[2]


def test_interrupted_and_killed_searches(tmp_path, rng):
    def body(writer, **v):
        value = v["x"]
        for name in ("w0", "w1", "w2"):
            value = writer.emit(f"{name}_relu", relax.op.nn.relu(writer.emit(f"{name}_x", relax.op.matmul(value, v[name]))))
        return writer.emit("y", relax.op.matmul(value, v["w3"]), is_output=True)

    params = {f"w{number}": rng.normal(size=(16, 16)).astype(np.float32) for number in range(4)}
    model = model_of({"x": ((1, 16), "float32")}, params, body, ("y",))
    samples = rng.normal(size=(8, 16)).astype(np.float32)
    searching = Searching(model, samples, tmp_path, candidates=3, recipe=PLAIN, seed=0)
    outcome = searches(searching, interruptions=1, kills=1)
    assert outcome.same_twice
    assert outcome.same_after_kills
    assert outcome.kills == len(outcome.returned_after) == 1
    assert max(outcome.returned_after) <= outcome.candidates == 3
