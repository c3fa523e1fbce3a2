"""Profiles made on a GPU, here by the emulator: the CPU's bytes wherever values are the CPU's, and near them where sums round."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from emulated_runner import emulated
from fake_driver import FakeDriver
from tvm import relax
from tvm.relax import Expr, Var

import octavo
from nets import model_of, residual_net
from octavo.compiler.backends.cuda import driver
from octavo.compiler.backends.cuda.backend import CudaBackend
from octavo.compiler.compile import compile_model
from octavo.compiler.device_models import observing_for
from octavo.compiler.target_choice import resolve_target
from octavo.errors import CompileError, DataError, TargetError
from octavo.ir.graph import Model
from octavo.ir.graph.dataflow import BodyWriter
from octavo.profiling import Profile, TensorStatistics, accumulator, instrument
from octavo.profiling import profile as profile_module

ISA = "cuda.sm_80"
Array = np.ndarray[Any, Any]
Emit = Callable[[str, Any], Var]


@pytest.fixture
def gpu(monkeypatch) -> None:
    """A machine whose GPU is the emulator."""
    monkeypatch.setattr(CudaBackend, "check_present", lambda _self: None)
    monkeypatch.setattr(profile_module, "observing_for", lambda *args: emulated(observing_for(*args)))
    compiled = compile_model
    monkeypatch.setattr(
        profile_module,
        "compile_model",
        lambda model, **o: emulated(compiled(model, **o)) if o.get("target") == ISA else compiled(model, **o),
    )


def net(body: Callable[..., Expr], shape: tuple[int, ...], **params: Array) -> Model:
    """A model of one input x."""
    return model_of({"x": (shape, "float32")}, params, body, ("y",))


def rounded_once(batch: int = 1) -> Model:
    """No op of it sums: moves, choices, and elementwise ops that IEEE 754 defines to the bit."""

    def body(writer: BodyWriter, x: Var, w: Var, b: Var) -> Expr:
        moved = writer.emit("moved", relax.op.permute_dims(x, axes=[0, 2, 3, 1]))
        scaled = writer.emit("scaled", relax.op.multiply(moved, w))
        shifted = writer.emit("shifted", relax.op.add(scaled, b))
        clamped = writer.emit("clamped", relax.op.clip(shifted, -1.0, 1.5))
        part = writer.emit("part", relax.op.strided_slice(clamped, axes=[1], begin=[1], end=[7]))
        negative = writer.emit("negative", relax.op.negative(part))
        both = writer.emit("both", relax.op.concat([part, negative], axis=3))
        flat = writer.emit("flat", relax.op.reshape(both, (batch, 6 * 8 * 6)))
        last = writer.emit("last", relax.op.nn.relu(flat))
        return writer.emit("y", relax.op.maximum(last, flat), is_output=True)

    rng = np.random.default_rng(1)
    return net(body, (batch, 3, 8, 8), w=normal(rng, 3), b=normal(rng, 3))


def summing(values: Callable[[int], Array]) -> Model:
    """Convolution, matmul, sum and both poolings, each of the input, and their sum."""

    def body(writer: BodyWriter, x: Var, w: Var, m: Var) -> Expr:
        conv = writer.emit("conv", relax.op.nn.conv2d(x, w, padding=1))
        rows = writer.emit("rows", relax.op.reshape(x, (24, 8)))
        product = writer.emit("product", relax.op.matmul(rows, m))
        pooled = writer.emit("pooled", relax.op.nn.avg_pool2d(x, pool_size=2, strides=2))
        best = writer.emit("best", relax.op.nn.max_pool2d(x, pool_size=3, strides=1))
        total = writer.emit("total", relax.op.sum(x, axis=[2, 3]))
        parts = [relax.op.sum(each) for each in (conv, product, pooled, best, total)]
        kept = [writer.emit(f"_part{number}", part) for number, part in enumerate(parts)]
        for number in range(1, len(kept)):
            kept[0] = writer.emit(f"_sum{number}", relax.op.add(kept[0], kept[number]))
        return writer.emit("y", relax.op.reshape(kept[0], (1,)), is_output=True)

    return net(body, (1, 3, 8, 8), w=values(5 * 3 * 9).reshape(5, 3, 3, 3), m=values(8 * 10).reshape(8, 10))


def normal(rng: np.random.Generator, *shape: int) -> Array:
    return rng.standard_normal(shape).astype(np.float32)


def saved(profile: Profile, folder: Path) -> list[bytes]:
    """The bytes of its files."""
    for path in folder.glob("profile.json*"):
        path.unlink()
    profile.save(folder / "profile.json")
    return [path.read_bytes() for path in sorted(folder.glob("profile.json*"))]


def test_values_that_are_the_same_leave_the_same_bytes(rng, gpu, tmp_path) -> None:
    samples = normal(rng, 5, 3, 8, 8) * np.exp2(rng.integers(-30, 12, (5, 1, 1, 1))).astype(np.float32)
    model = rounded_once()
    found, expected = octavo.profile(model, samples, target=ISA, keep_samples=3), octavo.profile(model, samples, keep_samples=3)
    assert len(found.kept_results) == 3
    assert saved(found, tmp_path) == saved(expected, tmp_path)


def test_sums_without_rounding_leave_the_same_bytes(rng, gpu, tmp_path) -> None:
    model = summing(lambda size: rng.integers(-4, 5, size).astype(np.float32))
    samples = 4 * rng.integers(-16, 17, (4, 3, 8, 8)).astype(np.float32)
    found, expected = octavo.profile(model, samples, target=ISA), octavo.profile(model, samples)
    assert {"conv", "product", "pooled", "best", "total"} <= found.keys()
    assert saved(found, tmp_path) == saved(expected, tmp_path)


@pytest.mark.parametrize("batch", [1, 2])
def test_what_is_not_finite_is_found_where_the_cpu_finds_it(rng, gpu, tmp_path, batch: int) -> None:
    def body(writer: BodyWriter, x: Var, w: Var) -> Expr:
        moved = writer.emit("moved", relax.op.permute_dims(x, axes=[0, 2, 1]))
        return writer.emit("y", relax.op.multiply(moved, w), is_output=True)

    samples = normal(rng, 6, 5, 7)
    samples[1, 2, 3:5] = np.nan, np.inf
    samples[4, 0, 0] = -np.inf
    samples[5] = 2e38  # finite; times w it is not
    model = net(body, (batch, 5, 7), w=np.full(5, 2, np.float32))
    found, expected = octavo.profile(model, samples, target=ISA), octavo.profile(model, samples)
    assert [str(each.first_non_finite) for each in found.values()] == [str(each.first_non_finite) for each in expected.values()]
    assert saved(found, tmp_path) == saved(expected, tmp_path)


@pytest.mark.needs_device("gpu")
def test_this_machines_gpu_leaves_the_same_bytes(rng, tmp_path) -> None:
    whole = summing(lambda size: rng.integers(-4, 5, size).astype(np.float32))
    for model, samples in (
        (rounded_once(), normal(rng, 50, 3, 8, 8)),
        (whole, 4 * rng.integers(-16, 17, (50, 3, 8, 8)).astype(np.float32)),
    ):
        found, expected = octavo.profile(model, samples, target="cuda"), octavo.profile(model, samples)
        assert saved(found, tmp_path) == saved(expected, tmp_path)


def check_within(statistics: TensorStatistics, exact: Array, bound: Array) -> None:
    """Check that the statistics are those of values that differ from `exact` by `bound` at most, one by one."""
    low, high = exact - bound, exact + bound
    assert statistics.count == exact.size
    assert low.min() <= statistics.minimum <= high.min()
    assert low.max() <= statistics.maximum <= high.max()
    _, ends = statistics.histogram.edges()
    for end, seen in zip(ends, np.cumsum(statistics.histogram.counts), strict=True):
        assert np.sum(high < end) <= seen <= np.sum(low <= end)


def test_sums_that_round_differ_by_no_more_than_sums_of_float32_do(rng, gpu) -> None:
    model = summing(lambda size: normal(rng, size))
    x = normal(rng, 3, 3, 8, 8)
    wide, w, m = (each.astype(np.float64) for each in (x, model.params["w"], model.params["m"]))
    padded = np.pad(wide, ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))
    exact = {
        "conv": [np.einsum("nchwrs,ocrs->nohw", a, b) for a, b in ((windows, w), (abs(windows), abs(w)))],
        "product": [a.reshape(-1, 8) @ b for a, b in ((wide, m), (abs(wide), abs(m)))],
        "total": [each.sum(axis=(2, 3)) for each in (wide, abs(wide))],
        "pooled": [each.reshape(3, 3, 4, 2, 4, 2).mean(axis=(3, 5)) for each in (wide, abs(wide))],
    }
    terms = {"conv": 27, "product": 8, "total": 64, "pooled": 5}
    unit = 2.0**-24  # Higham, Accuracy and Stability of Numerical Algorithms, 3.1: in any order
    profile = octavo.profile(model, x, target=ISA)
    for name, (values, magnitudes) in exact.items():
        check_within(profile[name], values, terms[name] * unit / (1 - terms[name] * unit) * magnitudes)


def test_profiles_of_both_merge(rng, gpu, tmp_path) -> None:
    model, samples = rounded_once(), normal(rng, 4, 3, 8, 8)
    part = octavo.profile(model, samples[:2], target=ISA)
    other = octavo.profile(model, samples[2:], numbers=[2, 3])
    assert saved(part.merge(other), tmp_path) == saved(octavo.profile(model, samples), tmp_path)


def test_a_network_is_quantized_by_such_a_profile(rng, gpu) -> None:
    model, samples = residual_net(), normal(rng, 4, 3, 8, 8)
    found, expected = octavo.profile(model, samples, target=ISA), octavo.profile(model, samples)
    assert found.keys() == expected.keys()
    plans = [octavo.quantize(model, profile, preset="fast") for profile in (found, expected)]
    results = [next(iter(octavo.compile(each)(samples[:1]).values())) for each in plans]
    np.testing.assert_allclose(*results, atol=1 / 256)  # one step of the softmax's result


def test_state_goes_from_sample_to_sample_there(rng, gpu, tmp_path) -> None:
    def body(writer: BodyWriter, x: Var, s: Var) -> Expr:
        new = writer.emit("new", relax.op.add(x, s), is_output=True)
        return relax.Tuple([writer.emit("y", relax.op.nn.relu(new), is_output=True), new])

    model = model_of(dict.fromkeys(("x", "s"), ((1, 4), "float32")), {}, body, ("y", "new"))
    samples = [{"net/x:0": each[None]} for each in normal(rng, 5, 4)]
    state = {"net/new:0": "net/s:0"}
    found = octavo.profile(model, samples, state=state, target=ISA)
    assert saved(found, tmp_path) == saved(octavo.profile(model, samples, state=state), tmp_path)


def test_each_result_of_an_op_is_observed(rng, gpu) -> None:
    def body(writer: BodyWriter, x: Var, w: Var, b: Var) -> Expr:
        both = writer.emit("_both", relax.op.nn.batch_norm(x, w, b, b, w, axis=1))
        normal = writer.emit("normal", relax.TupleGetItem(both, 0))
        scaled = writer.emit("scaled", relax.op.multiply(normal, normal))
        mean = writer.emit("mean", relax.TupleGetItem(both, 1))
        shaped = writer.emit("_shaped", relax.op.reshape(mean, (1, 3, 1, 1)))
        return writer.emit("y", relax.op.add(scaled, shaped), is_output=True)

    model, samples = net(body, (1, 3, 8, 8), w=abs(normal(rng, 3)), b=normal(rng, 3)), normal(rng, 2, 3, 8, 8)
    found, expected = octavo.profile(model, samples, target=ISA), octavo.profile(model, samples)
    assert {"normal", "mean", "y"} <= found.keys()
    for name, each in expected.items():
        np.testing.assert_allclose([found[name].minimum, found[name].maximum], [each.minimum, each.maximum], rtol=1e-5)


def test_what_kernels_do_not_hold_is_said(gpu) -> None:
    def body(writer: BodyWriter, x: Var) -> Expr:
        narrow = writer.emit("narrow", relax.op.astype(x, "float16"))
        return writer.emit("y", relax.op.astype(narrow, "float32"), is_output=True)

    with pytest.raises(CompileError, match="narrow: kernels for CUDA hold no float16: expected one of int8, "):
        octavo.profile(net(body, (1, 4)), np.zeros((1, 4), np.float32), target=ISA)


def test_observers_are_composites_and_floats_are_tvms() -> None:
    target, model = resolve_target(ISA), residual_net()
    device: Any = target.device
    instrumented = instrument(model)
    code: Any = observing_for(device, model, instrumented.module, target).code
    launched = [kernel.name for kernel in code.plan.kernels]
    assert launched.count("observe") == len(instrumented.observations)
    assert {name.split("_")[0] for name in launched} == {"observe", "tvm"}


@pytest.fixture
def fake(monkeypatch) -> FakeDriver:
    """A driver whose GPU is the emulator; it finds the kernels that were compiled last."""
    driven = FakeDriver([])
    code = CudaBackend.code

    def compiled(self: CudaBackend, lowered: Any) -> Any:
        driven.kernels = lowered.plan.kernels
        return code(self, lowered)

    monkeypatch.setattr(driver, "driver", lambda: driven)
    monkeypatch.setattr(CudaBackend, "code", compiled)
    return driven


def test_counts_stay_there_and_ranges_come_back(rng, fake, tmp_path) -> None:
    model, samples = rounded_once(), normal(rng, 3, 3, 8, 8)
    samples[1, 0, 2, 2] = np.nan
    log: list[list[str]] = []

    def note(_samples: int) -> None:
        log.append(list(fake.log))
        fake.log.clear()

    found = octavo.profile(model, samples, target="cuda", progress=note)
    run = ["upload", "copy", "set", "launch", "download", "download rows", "wait"]
    assert log[1:] == [run, run]
    observed = len(instrument(model).observations)
    assert fake.log == [*["download", "wait"] * observed, "set", "wait"]
    expected = octavo.profile(model, samples)
    assert {found["x"].first_non_finite, found["both"].first_non_finite} != {None}
    for name, each in expected.items():
        if name not in ("clamped", "part", "negative", "both", "flat", "last", "y"):  # a clamp of NaN is the machine's own
            assert saved_tensor(found[name]) == saved_tensor(each)
    fine = octavo.profile(model, samples[::2], target="cuda", keep_samples=2)
    assert saved(fine, tmp_path) == saved(octavo.profile(model, samples[::2], keep_samples=2), tmp_path)


def saved_tensor(statistics: TensorStatistics) -> str:
    return repr([getattr(statistics, name) for name in ("minimum", "maximum", "zeros", "non_finite", "first_non_finite")])


def test_counts_are_fetched_before_they_overflow(rng, fake, tmp_path, monkeypatch) -> None:
    model, samples = rounded_once(), normal(rng, 5, 3, 8, 8)
    monkeypatch.setattr(accumulator, "_MAX_COUNT", 2 * 6 * 8 * 6)  # two runs of its largest tensor
    found = octavo.profile(model, samples, target="cuda")
    assert saved(found, tmp_path) == saved(octavo.profile(model, samples), tmp_path)


def test_memory_of_the_gpu_is_given_back(rng, fake) -> None:
    model = rounded_once()
    octavo.profile(model, normal(rng, 1, 3, 8, 8), target="cuda")
    del model
    gc.collect()
    assert fake.memory == {}


def test_a_checkpoint_holds_what_the_gpu_counted(rng, fake, tmp_path) -> None:
    def body(writer: BodyWriter, x: Var, w: Var) -> Expr:
        return writer.emit("y", relax.op.multiply(x, w), is_output=True)

    model, samples, path = net(body, (1, 9), w=normal(rng, 9)), normal(rng, 4, 9), tmp_path / "so_far.json"
    octavo.profile(model, samples[:3], target="cuda", checkpoint=path, every=1)
    assert Profile.load(path).samples == 3
    found = octavo.profile(model, samples, target="cuda", resume=path)
    assert saved(found, tmp_path) == saved(octavo.profile(model, samples), tmp_path)


def test_targets_that_are_no_place_to_profile_are_refused(fake) -> None:
    model = rounded_once()
    with pytest.raises(TargetError, match=r"'generic': profiles are made on this machine \('cpu'\) or on a GPU"):
        octavo.profile(model, [], target="generic")
    with pytest.raises(
        TargetError, match=r"target cuda\.sm_90a: this machine's Fake GPU \(compute capability 8\.0\) does not run it"
    ):
        octavo.profile(model, [], target="cuda.sm_90a")
    with pytest.raises(DataError, match="no samples"):
        octavo.profile(model, [], target="cpu")


def test_without_a_gpu_it_says_so_before_it_compiles(monkeypatch) -> None:
    def absent() -> Any:
        raise driver.ExecutableError("this machine has no driver for NVIDIA GPUs")

    monkeypatch.setattr(driver, "driver", absent)
    monkeypatch.setattr(profile_module, "observing_for", None)
    with pytest.raises(TargetError, match=r"^target cuda\.sm_80: this machine has no driver for NVIDIA GPUs; run it where"):
        octavo.profile(rounded_once(), [], target=ISA)
    with pytest.raises(TargetError, match=r"^target 'cuda' is this machine's GPU: this machine has no driver for NVIDIA GPUs;"):
        octavo.profile(rounded_once(), [], target="cuda")
