"""What a caller can hand over by mistake: one OctavoError that says what was expected; and calls from several Python threads."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import octavo
from nets import residual_net
from octavo.errors import ExecutableError, ModelError, ProfileError, QuantizationError, TargetError

X = np.random.default_rng(0).normal(size=(1, 3, 8, 8)).astype(np.float32)


@pytest.fixture(scope="module")
def model():
    return residual_net()


@pytest.fixture(scope="module")
def profile(model):
    return octavo.profile(model, [X])


@pytest.fixture(scope="module")
def executable(model, profile):
    return octavo.compile(octavo.quantize(model, profile))


@pytest.mark.parametrize("wrong", [None, "m.onnx", 5])
def test_a_model_is_expected(wrong, profile):
    for call in (octavo.compile, octavo.explain, lambda m: octavo.profile(m, [X]), lambda m: octavo.quantize(m, profile)):
        with pytest.raises(ModelError, match=r"expected a Model, which octavo\.load returns, got"):
            call(wrong)
    with pytest.raises(QuantizationError, match="expected a Model"):
        octavo.export_onnx(wrong, "never_written.onnx")


@pytest.mark.parametrize("wrong", [None, "profile.json", {}])
def test_a_profile_is_expected(wrong, model, profile):
    with pytest.raises(ProfileError, match="expected a Profile"):
        octavo.quantize(model, wrong)
    with pytest.raises(ProfileError, match="expected a Profile"):
        profile.merge(wrong)


def test_a_recipe_is_expected(model, profile):
    with pytest.raises(QuantizationError, match=r"expected an octavo\.Recipe, got dict"):
        octavo.quantize(model, profile, recipe={})


def test_explain_gives_the_reason_of_the_one_who_decided(model, profile):
    quantized = octavo.quantize(model, profile, recipe=octavo.Recipe(exclude=("net/y:0",)))
    reasons = [op.reason for op in octavo.explain(quantized).ops if op.op == "matmul"]
    assert len(reasons) == 1
    assert reasons[0].endswith("the recipe excludes net/y:0")


@pytest.mark.parametrize("wrong", [None, 5, b"m.so", ["m.so"], "", True, "a\0b"])
def test_a_path_is_expected(wrong, model, profile, executable):
    for call, error in (
        (executable.save, ExecutableError),
        (octavo.load_executable, ExecutableError),
        (profile.save, ProfileError),
        (octavo.Profile.load, ProfileError),
        (octavo.TargetDescription.load, TargetError),
    ):
        with pytest.raises(error, match="expected the path of"):
            call(wrong)
    with pytest.raises(ModelError, match=r"expected the path of|give a path"):
        octavo.load(wrong)


def test_a_model_prints_as_one_line(model, capsys):
    assert repr(model).startswith("Model(relax: net/x:0 float32[1,3,8,8] -> net/p:0 float32[1,10]; ")
    assert "\n" not in repr(model)
    model.show()
    assert "@R.function" in capsys.readouterr().out


def test_explain_of_a_float_model_says_what_to_do(model, profile):
    explanation = octavo.explain(model)
    assert "octavo.quantize(model, octavo.profile(model, samples))" in explanation.advice
    assert all("profiled and quantized" in op.reason for op in explanation.ops if op.macs)
    assert octavo.explain(octavo.compile(model)).advice == explanation.advice
    assert octavo.explain(octavo.quantize(model, profile)).advice == ""


def test_code_for_another_kind_of_machine_is_refused(model):
    other = "armv7a" if "arm" not in octavo.compiler.target_choice.host_triple() else "x86_64"
    with pytest.raises(TargetError, match="this machine is"):
        octavo.compile(model, target=f"llvm -mtriple={other}-linux-gnu")


@pytest.mark.parametrize("threads", ["2", 1.5, True])
def test_a_number_of_threads_is_expected(threads, model):
    with pytest.raises(TargetError, match="expected a whole number of threads"):
        octavo.compile(model, threads=threads)


def test_a_path_with_a_nul_is_no_executable():
    with pytest.raises(ExecutableError, match="embedded null"):
        octavo.load_executable("a\0b")


def test_python_threads_may_share_an_executable(executable):
    """TVM's VM alone would mix up the registers of calls that overlap."""
    samples = [X * scale for scale in (1.0, 0.5, -1.0, 0.1)]
    samples = [sample.astype(np.float32) for sample in samples]
    wanted = [executable(sample)["net/p:0"] for sample in samples]
    calls = [executable.bind(sample) for sample in samples]

    def work(index: int) -> bool:
        same = [np.array_equal(executable(samples[index])["net/p:0"], wanted[index]) for _ in range(200)]
        return all(same) and all(np.array_equal(calls[index]()["net/p:0"], wanted[index]) for _ in range(200))

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(work, range(4))) == [True] * 4
