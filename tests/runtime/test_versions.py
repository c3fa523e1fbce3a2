"""Code for a CPU with more features is refused as it is loaded; of a file of several versions the one that fits is taken."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import octavo
from nets import residual_net
from octavo.cli.main import main
from octavo.compiler.backends.cpu.kernels import PORTABLE_TARGETS
from octavo.compiler.target_choice import resolve_target
from octavo.errors import ExecutableError
from octavo.export.multiversion import compile_versions, save_versions
from octavo.ir.graph import Model
from octavo.ir.graph.inputs import random_inputs
from octavo.runtime.cpu_features import features_of, machine_features, missing_features, names_of
from octavo.runtime.file import is_executable
from octavo.runtime.llvm_host import host_target
from octavo.runtime.versions import read_versions

pytestmark = pytest.mark.needs_isa("x86")  # versions are of x86


def features(target: str) -> frozenset[str]:
    return frozenset(names_of(features_of(resolve_target(target).llvm)))


AVX512, AVX_VNNI, AVX2 = (features(target) for target in PORTABLE_TARGETS)


@pytest.fixture(scope="module")
def model() -> Model:
    net = residual_net()
    return octavo.quantize(net, octavo.profile(net, [random_inputs(net)]))


@pytest.fixture(scope="module")
def file(model: Model, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("versions") / "m.so"
    save_versions(compile_versions(model), path)
    return path


def test_this_machine_has_what_code_for_it_may_use() -> None:
    assert missing_features(names_of(features_of(host_target())), machine_features()) == ()


def test_levels_hold_one_another() -> None:
    assert AVX2 < AVX_VNNI
    assert AVX2 < AVX512
    assert "avx512vnni" in AVX512 - AVX_VNNI
    assert {"avxvnni"} == AVX_VNNI - AVX2


@pytest.mark.parametrize(
    ("present", "isa"),
    [(AVX512, "x86.avx512_vnni"), (AVX_VNNI, "x86.avx_vnni"), (AVX2, "x86.avx2"), (AVX2 | AVX512 - {"avx512vnni"}, "x86.avx2")],
)
def test_the_best_version_that_the_cpu_can_run_is_taken(file: Path, present: frozenset[str], isa: str) -> None:
    loaded = octavo.Executable.load(file, present)
    assert loaded.description.isa == isa


@pytest.mark.needs_isa("x86.avx2")
def test_it_runs_here_and_gives_the_same_bytes(file: Path, model: Model) -> None:
    inputs = random_inputs(model)
    (expected,) = octavo.compile(model)(inputs).values()
    assert is_executable(file)
    for loaded in (octavo.load_executable(file), octavo.Executable.load(file, AVX2)):
        (got,) = loaded(inputs).values()
        np.testing.assert_array_equal(got, expected)


def test_no_version_fits(file: Path) -> None:
    with pytest.raises(ExecutableError, match="built for a CPU with fma, avx2, which this one lacks"):
        octavo.Executable.load(file, AVX2 - {"avx2", "fma"})


@pytest.mark.needs_isa("x86.avx512_vnni")
def test_code_for_a_better_cpu_is_refused_in_one_line(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "m.so"
    octavo.compile(model, target=PORTABLE_TARGETS[0]).save(path)
    with pytest.raises(ExecutableError, match=r"m\.so: built for a CPU with avx512f, .*avx512vnni, which this one lacks"):
        octavo.Executable.load(path, AVX2)
    np.savez(tmp_path / "x.npz", **random_inputs(model))
    command = ["run", str(path), "--input", str(tmp_path / "x.npz"), "-o", str(tmp_path / "y.npz")]
    assert main(command) == 0
    monkeypatch.setenv("OCTAVO_TARGET", "x86.avx2")
    capsys.readouterr()
    assert main(command) == 1
    assert capsys.readouterr().err.count("\n") == 1


def test_a_call_of_code_that_this_cpu_lacks_features_for_is_refused(model: Model) -> None:
    compiled = octavo.compile(model)
    beyond = octavo.Executable(compiled._code, replace(compiled.description, features=("nosuch",)))
    with pytest.raises(ExecutableError, match="another machine"):
        beyond(random_inputs(model))


def test_a_damaged_directory_is_refused(file: Path, tmp_path: Path) -> None:
    data = bytearray(file.read_bytes())
    data[-60] ^= 1
    (tmp_path / "damaged.so").write_bytes(data)
    with pytest.raises(ExecutableError, match="damaged"):
        octavo.load_executable(tmp_path / "damaged.so")
    versions = read_versions(file)
    assert versions is not None
    data = bytearray(file.read_bytes())
    data[versions[-1].start + 100] ^= 1
    (tmp_path / "damaged.so").write_bytes(data)
    with pytest.raises(ExecutableError, match="damaged"):
        octavo.Executable.load(tmp_path / "damaged.so", AVX2)


def test_the_command_line_makes_them_in_c_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    net = Path(__file__).parents[2] / "src" / "octavo" / "cli" / "demo_data"
    source = next(net.glob("*.onnx"))
    folder, one = str(tmp_path / "library"), str(tmp_path / "m.so")
    assert main(["compile", str(source), "--emit", "c", "--multiversion", "-o", folder]) == 0
    assert (tmp_path / "library" / "model.c").read_text().count("static void run_") == 3
    assert main(["compile", str(source), "--multiversion", "-o", one]) == 0
    versions = read_versions(one)
    assert versions is not None
    assert len(versions) == 3
    assert main(["compile", str(source), "--multiversion", "--target", "x86.avx2", "-o", one]) in (1, 2)
    assert "leave out --target" in capsys.readouterr().err
