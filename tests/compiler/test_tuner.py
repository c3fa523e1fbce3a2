"""Tuning finds the schedule that is faster, keeps the kernels' choice where none is, and changes no result."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import octavo
from nets import residual_net
from octavo.compiler import tune as tuner
from octavo.compiler.backends.cpu.kernels.conv.loops import gemm_loops
from octavo.compiler.backends.tunable import Schedule, Tunable
from octavo.compiler.backends.tuning import Tuning, Winner
from octavo.compiler.codegen.layer_clock import TimedCalls
from octavo.compiler.partition.pipeline import lower
from octavo.compiler.target_choice import resolve_target
from octavo.compiler.tune import tune
from octavo.errors import CompileError, TuningError
from octavo.runtime.llvm_host import processor_name
from octavo.target import CPU

ISA = resolve_target(None).isas[0]
Cost = Callable[[Tunable, Schedule], float]


@pytest.fixture(scope="module")
def quantized() -> octavo.Model:
    model = residual_net()
    samples = [np.random.default_rng(seed).normal(size=(1, 3, 8, 8)).astype(np.float32) for seed in range(2)]
    return octavo.quantize(model, octavo.profile(model, samples))


@pytest.fixture(scope="module")
def own(quantized: octavo.Model) -> dict[str, Tunable]:
    lowered = lower(quantized.bound(), CPU, (ISA,), 1, quantized.tensors)
    return {each.tunable.key: each.tunable for each in lowered.kernels.values() if each.tunable is not None}


def tuning_of(schedules: dict[str, Schedule]) -> Tuning:
    winners = {key: Winner(schedule=schedule, before_us=2.0, after_us=1.0) for key, schedule in schedules.items()}
    return Tuning(isa=ISA, processor=processor_name(), octavo="0.1.0", winners=winners)


@pytest.mark.parametrize("threads", [1, 2])
def test_results_do_not_depend_on_schedules(
    quantized: octavo.Model, own: dict[str, Tunable], threads: int, tmp_path: Path
) -> None:
    others = {key: each.alternatives[0] for key, each in own.items() if each.alternatives}
    assert len(others) > 2
    path = tmp_path / "t.json"
    tuning_of({**others, "int8 of another model": next(iter(others.values()))}).save(path)
    plain, tuned = octavo.compile(quantized, threads=threads), octavo.compile(quantized, threads=threads, tuning=path)
    assert [op["kernel"] for op in plain.description.ops] != [op["kernel"] for op in tuned.description.ops]
    for seed in range(3):
        x = np.random.default_rng(seed).normal(size=(1, 3, 8, 8)).astype(np.float32)
        [(name, value)] = plain(x).items()
        assert np.array_equal(value, tuned(x)[name])


def test_a_tuning_of_another_isa_is_refused(quantized: octavo.Model) -> None:
    with pytest.raises(TuningError, match="tune the model here, or compile without the tuning"):
        octavo.compile(quantized, target="generic", tuning=tuning_of({}))


def test_the_real_thing_ends_and_is_of_use(quantized: octavo.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuner, "ROUNDS", 3)
    monkeypatch.setattr(gemm_loops, "ALTERNATIVES", 1)
    monkeypatch.setattr(gemm_loops, "MAX_BLOCK_BYTES", 0)
    counts: list[int] = []
    report = tune(quantized, seconds=120, progress=counts.append)
    assert sum(counts) == sum(each.tried for each in report.kernels) > 0
    assert octavo.compile(quantized, tuning=report.tuning).description.isa == report.tuning.isa
    told = json.loads(json.dumps(report.to_json()))
    assert len(told["kernels"]) == len(report.kernels)
    text = report.to_markdown()
    assert all(each.key in text for each in report.kernels)
    assert f"{report.before_ms:.3f} ms before" in text


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf"), "60", None, True])
def test_seconds_are_a_positive_number(quantized: octavo.Model, seconds: object) -> None:
    with pytest.raises(TuningError, match="seconds"):
        tune(quantized, seconds=seconds)  # type: ignore[arg-type]


# ---- with a clock of our own


def on_a_clock(monkeypatch: pytest.MonkeyPatch, cost: Cost, *, others: Callable[[int], float], noise: float) -> None:
    """Let each kernel take what `cost` says, in microseconds, and all other calls `others` of how many schedules were changed."""
    rng = np.random.default_rng(0)
    lowered = []

    def noted(*args: object, **options: object) -> object:
        lowered.append(lower(*args, **options))
        return lowered[-1]

    def timed(*_: object) -> TimedCalls:
        kernels, first = lowered[-1].kernels, lowered[0].kernels
        owned = {each.tunable.key: each.tunable for each in first.values() if each.tunable is not None}
        tunable = [each.tunable for each in kernels.values()]
        changed = sum(each is not None and each.schedule != owned[each.key].schedule for each in tunable)
        costs = [others(changed) if each is None else cost(owned[each.key], each.schedule) for each in tunable]
        times = np.array(costs) * 1e3

        def run() -> np.ndarray:
            return (times * rng.normal(1, noise, len(times))).astype(np.int64)

        return TimedCalls(symbols=tuple(kernels), run=run, move=lambda: None)

    monkeypatch.setattr(gemm_loops, "ALTERNATIVES", 6)
    monkeypatch.setattr(tuner, "lower", noted)
    monkeypatch.setattr(tuner, "timed_calls", timed)
    monkeypatch.setattr(tuner, "FIRST_COMPILATION_S", 0.0)


def test_the_fastest_schedule_wins(quantized: octavo.Model, own: dict[str, Tunable], monkeypatch: pytest.MonkeyPatch) -> None:
    hidden = {key: each.alternatives[min(5, len(each.alternatives) - 1)] for key, each in own.items() if each.alternatives}

    def cost(tunable: Tunable, schedule: Schedule) -> float:
        return 100 - 10 * (schedule == hidden.get(tunable.key)) - 5 * (schedule == tunable.alternatives[:1])

    on_a_clock(monkeypatch, cost, others=lambda _: 50.0, noise=0.02)
    report = tune(quantized, seconds=1000)
    assert {key: winner.schedule for key, winner in report.tuning.winners.items()} == hidden
    assert report.after_ms < report.before_ms
    for each in report.kernels:
        assert each.after_us == pytest.approx(each.before_us * (0.9 if each.key in hidden else 1), rel=0.03)


def test_noise_wins_nothing(quantized: octavo.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    on_a_clock(monkeypatch, lambda *_: 100.0, others=lambda _: 50.0, noise=0.1)
    report = tune(quantized, seconds=1000)
    assert not report.tuning.winners
    assert sum(each.tried for each in report.kernels) > 10


def test_winners_that_lose_together_are_dropped(quantized: octavo.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    def cost(tunable: Tunable, schedule: Schedule) -> float:
        return 100 - 10 * (schedule != tunable.schedule)

    on_a_clock(monkeypatch, cost, others=lambda changed: 50.0 + 1000 * changed, noise=0.01)
    assert not tune(quantized, seconds=1000).tuning.winners


def test_without_time_nothing_is_tried(quantized: octavo.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    on_a_clock(monkeypatch, lambda tunable, schedule: 1.0 + (schedule == tunable.schedule), others=lambda _: 1.0, noise=0.01)
    report = tune(quantized, seconds=1e-6)
    assert not report.tuning.winners
    assert {each.tried for each in report.kernels} == {0}


def test_a_model_of_the_virtual_machine_is_refused(quantized: octavo.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuner, "timed_calls", lambda *_: None)
    with pytest.raises(CompileError, match="can't be tuned, for it runs on TVM's virtual machine"):
        tune(quantized, seconds=1)
