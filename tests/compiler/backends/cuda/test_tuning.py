"""Tuning on a GPU: the tiles its events find fastest are kept, in a file that any machine compiles with, to the same bytes."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest
from cuda_conv2d_cases import SM61, SM80, SM90, Shape, conv2d_case, differing
from emulated_runner import emulated
from fake_driver import FakeDriver
from small_networks import dense_model

import octavo
from octavo.compiler import tune as tuner
from octavo.compiler.backends.cuda import backend, driver
from octavo.compiler.backends.cuda.compiler import MachineCode
from octavo.compiler.backends.cuda.driver import LoadedModule
from octavo.compiler.backends.cuda.driver_clock import DriverClock
from octavo.compiler.backends.cuda.isa import Isa
from octavo.compiler.backends.cuda.kernel import Kernel
from octavo.compiler.backends.cuda.kernels.conv.conv2d import product_of
from octavo.compiler.backends.cuda.kernels.conv.conv2d_gemm import gemm_conv2d
from octavo.compiler.backends.cuda.kernels.matmuls.gemm import Tiling
from octavo.compiler.backends.cuda.kernels.matmuls.tile_choice import ALTERNATIVES, ranked_tilings
from octavo.compiler.backends.tuning import Tuning, Winner
from octavo.compiler.device_models import lowered_for
from octavo.compiler.target_choice import resolve_target
from octavo.compiler.tune import tune
from octavo.errors import TargetError, TuningError
from octavo.ir.graph import Model
from octavo.runtime.llvm_host import processor_name

ISA = "cuda.sm_80"
CHIP = "Fake GPU"


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    """A GPU that runs nothing and says how long that took; its kernels are not compiled."""
    fake = FakeDriver([], emulates=False)
    monkeypatch.setattr(driver, "driver", lambda: fake)

    def noted(kernels: tuple[Kernel, ...], _isa: Isa) -> list[MachineCode]:
        fake.kernels = [*fake.kernels, *kernels]
        return [MachineCode(cubin=b"\x7fELF" + " ".join(kernel.symbol for kernel in kernels).encode(), usage={})]

    monkeypatch.setattr(backend, "compile_kernels", noted)
    monkeypatch.setattr(tuner, "FIRST_COMPILATION_S", 0.0)
    return fake


def is_cut(kernel: Kernel, tiling: Tiling) -> bool:
    """Return whether a kernel computes a product cut so."""
    names = ("tile_m", "tile_n", "tile_k", "warps_m", "warps_n", "stages", "splits", "warp_groups")
    values = (*tiling.tile, *tiling.warps, tiling.stages, tiling.splits, tiling.warp_groups)
    return all(kernel.parameters.get(name) == value for name, value in zip(names, values, strict=True))


def hidden_tilings(model: Model, isa: str = ISA) -> dict[str, Tiling]:
    """Return one alternative of each product, another one for each."""
    tunables = lowered_for(resolve_target(isa).device, model).tunables
    return {key: each.alternatives[3 + 4 * number] for number, (key, each) in enumerate(tunables.items())}


def tuning_of(schedules: dict[str, Any], isa: str = ISA, processor: str = CHIP) -> Tuning:
    winners = {key: Winner(schedule=each, before_us=2.0, after_us=1.0) for key, each in schedules.items()}
    return Tuning(isa=isa, processor=processor, octavo="0.1.0", winners=winners)


def on_its_clock(gpu: FakeDriver, fast: dict[str, Tiling], *, noise: float, drift: float = 0.0) -> None:
    """Let products take 10 us, those cut as `fast` says a tenth less; all launches slow down by `drift` a second."""
    rng = np.random.default_rng(0)

    def cost(kernel: Kernel) -> float:
        own = next(tiling for key, tiling in fast.items() if f"x{kernel.parameters['out_channels']}x" in key)
        return (9.0 if is_cut(kernel, own) else 10.0) * rng.normal(1, noise) * (1 + drift * gpu.us / 1e6)

    gpu.cost = cost


@pytest.mark.parametrize("drift", [0.0, 5.0])
def test_the_tiles_that_were_measured_to_be_fastest_win(rng, gpu: FakeDriver, monkeypatch, tmp_path, drift: float) -> None:
    model = dense_model(rng)
    hidden = hidden_tilings(model)
    on_its_clock(gpu, hidden, noise=0.02, drift=drift)
    counts: list[int] = []
    report = tune(model, target="cuda", seconds=1000, progress=counts.append)
    assert {key: winner.schedule for key, winner in report.tuning.winners.items()} == hidden
    assert (report.tuning.isa, report.tuning.processor) == (ISA, CHIP)
    assert sum(counts) == sum(each.tried for each in report.kernels) >= 2 * ALTERNATIVES
    for each in report.kernels:
        assert each.after_us == pytest.approx(0.9 * each.before_us, rel=0.03)
    assert str(next(iter(hidden.values()))) in report.to_markdown()
    report.tuning.save(tmp_path / "t.json")
    monkeypatch.undo()  # no GPU any more, and the real compiler
    plain, tuned = octavo.compile(model, target=ISA), octavo.compile(model, target=ISA, tuning=tmp_path / "t.json")
    code: Any = tuned.code
    assert all(is_cut(kernel, tiling) for kernel, tiling in zip(code.plan.kernels, hidden.values(), strict=True))
    x = rng.integers(-128, 128, (5, 24)).astype(np.int8)
    (found,), (expected,) = emulated(tuned)(x).values(), emulated(plain)(x).values()
    assert np.array_equal(found, expected)


def test_noise_wins_nothing(rng, gpu: FakeDriver) -> None:
    model = dense_model(rng)
    on_its_clock(gpu, dict.fromkeys(hidden_tilings(model), Tiling(tile=(1, 1, 1), warps=(1, 1), stages=1)), noise=0.1)
    report = tune(model, target=ISA, seconds=1000)
    assert not report.tuning.winners
    assert all(each.tried >= ALTERNATIVES for each in report.kernels)


def test_without_time_nothing_is_tried(rng, gpu: FakeDriver) -> None:
    model = dense_model(rng)
    on_its_clock(gpu, hidden_tilings(model), noise=0.0)
    assert {each.tried for each in tune(model, target=ISA, seconds=1e-6).kernels} == {0}


def test_the_clock_counts_launches_to_their_keys(rng, gpu: FakeDriver) -> None:
    lowered: Any = lowered_for(resolve_target(ISA).device, dense_model(rng))
    gpu.kernels = lowered.plan.kernels
    gpu.cost = lambda kernel: {20: 3.0, 7: 5.0}[int(kernel.parameters["out_channels"])]
    module = LoadedModule(lowered.plan, [b"\x7fELF" + " ".join(each.symbol for each in gpu.kernels).encode()], ISA)
    first, second = lowered.keys
    clock = DriverClock(module, lowered.keys, [np.zeros((5, 24), np.int8)])
    found = clock.burst(4)
    assert found == pytest.approx({first: 3.0, second: 5.0, "": 8.0})


@pytest.mark.parametrize("isa", [SM61, SM80, SM90], ids=lambda isa: isa.name)
def test_every_candidate_gives_the_oracles_integers(rng, isa: Isa) -> None:
    case = conv2d_case(rng, Shape(size=(3, 3), channels=(224, 40), kernel=(3, 3), padding=(1, 1, 1, 1)))
    candidates = [each for _, each in ranked_tilings(product_of(case.spec), isa)[: ALTERNATIVES + 1]]
    assert any(each.splits > 1 for each in candidates)
    builders = [lambda spec, tiling=tiling: gemm_conv2d(spec, isa, tiling) for tiling in candidates]
    assert differing([(case, builder) for builder in builders]) == []


# ------------------------------------------------------------------------------------------------------------- refusals


def test_a_tuning_of_another_chip_is_refused(rng, gpu: FakeDriver) -> None:
    model = dense_model(rng)
    tuning = tuning_of(hidden_tilings(model))
    with pytest.raises(TuningError, match=r"of cuda\.sm_80 on 'Fake GPU', this is cuda\.sm_90a: tune the model here"):
        octavo.compile(model, target="cuda.sm_90a", tuning=tuning)
    with pytest.raises(TuningError, match=r"of cuda\.sm_80 on 'Fake GPU', this is (?!cuda)\S+ on '.+': tune the model here"):
        octavo.compile(model, tuning=tuning)
    gpu.name = "Another GPU"
    with pytest.raises(TuningError, match=r"of cuda\.sm_80 on 'Fake GPU', this is cuda\.sm_80 on 'Another GPU': tune"):
        octavo.compile(model, target="cuda", tuning=tuning)
    host = Tuning(isa=resolve_target(None).isa, processor=processor_name(), octavo="0.1.0", winners={})
    with pytest.raises(TuningError, match=r"this is cuda\.sm_80: tune the model here"):
        octavo.compile(model, target=ISA, tuning=host)


def edited(change: Callable[[dict[str, Any]], object]) -> Callable[[str], str]:
    def edit(text: str) -> str:
        data = json.loads(text)
        change(next(iter(data["kernels"].values()))["schedule"])
        return json.dumps(data)

    return edit


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (lambda text: text[: len(text) // 2], "not a tuning file (not JSON, or cut short)"),
        (
            lambda text: text.replace(ISA, "cuda.sm_70"),
            "the tuning is of cuda.sm_70 on 'Fake GPU', this is cuda.sm_80: tune the model here",
        ),
        (lambda text: text.replace(ISA, "x86.avx2"), "the schedule is of no kind that is known; tune the model again"),
        (edited(lambda tiling: tiling.pop("stages")), "the schedule is of no kind that is known; tune the model again"),
        (edited(lambda tiling: tiling.update(tile=[32, 32])), "'tile' must be 3 whole numbers, got (32, 32)"),
        (edited(lambda tiling: tiling.update(tile="32x32")), "'tile' must be 3 whole numbers, got '32x32'"),
        (edited(lambda tiling: tiling.update(warps=[2, 2.5])), "'warps' must be a whole number from 1 to 1024, got 2.5"),
        (edited(lambda tiling: tiling.update(splits=0)), "'splits' must be a whole number from 1 to 1024, got 0"),
        (edited(lambda tiling: tiling.update(stages=True)), "'stages' must be a whole number from 1 to 1024, got True"),
        (edited(lambda tiling: tiling.update(warp_groups=1)), "'warp_groups' must be true or false, got 1"),
        (edited(lambda tiling: tiling.update(tile=[48, 32, 64])), "can take the schedule 48x32x64 by 2x2 warps, 4 stages; tune"),
        (edited(lambda tiling: tiling.update(stages=1000)), "can take the schedule 32x32x64 by 2x2 warps, 1000 stages; tune"),
        (edited(lambda tiling: tiling.update(splits=3)), "can take the schedule 32x32x64 by 2x2 warps, 4 stages, 3 splits; tune"),
    ],
)
def test_a_file_that_does_not_fit_is_one_error(rng, tmp_path, edit: Callable[[str], str], said: str) -> None:
    model, path = dense_model(rng), tmp_path / "t.json"
    own = {key: each.schedule for key, each in lowered_for(resolve_target(ISA).device, model).tunables.items()}
    tuning_of(own).save(path)
    assert Tuning.load(path) == tuning_of(own)
    path.write_text(edit(path.read_text(encoding="utf-8")), encoding="utf-8")
    with pytest.raises(TuningError) as caught:
        octavo.compile(model, target=ISA, tuning=path)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_holds_a_tiling_by_its_fields(rng, tmp_path) -> None:
    tiling = Tiling(tile=(128, 64, 32), warps=(4, 1), stages=3, splits=2, warp_groups=True)
    tuning_of({"product": tiling}).save(tmp_path / "t.json")
    data = json.loads((tmp_path / "t.json").read_text(encoding="utf-8"))
    fields = {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(tiling).items()}
    assert data["kernels"]["product"]["schedule"] == fields
    assert str(tiling) == "128x64x32 by 4x1 warps, 3 stages, 2 splits, warp groups"


def test_to_tune_takes_a_gpu_that_runs_the_code(rng, gpu: FakeDriver, monkeypatch) -> None:
    gpu.capability = (7, 5)
    with pytest.raises(TargetError, match=r"cuda\.sm_80: this machine's Fake GPU \(compute capability 7\.5\) does not run it; "):
        tune(dense_model(rng), target=ISA, seconds=1)
    monkeypatch.undo()
    monkeypatch.setitem(__import__("sys").modules, "cuda.bindings.driver", None)
    with pytest.raises(TargetError, match=r"target cuda\.sm_80: kernels are measured on a GPU that runs them: "):
        tune(dense_model(rng), target=ISA, seconds=1)
