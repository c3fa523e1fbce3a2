"""Trained networks on GPUs that are emulated: the CPU's bytes, on each generation."""

from __future__ import annotations

from pathlib import Path

import pytest

import gpu
import octavo
from octavo.compiler.backends.cuda.backend import backend_of
from octavo.compiler.device_models import lowered_for


@pytest.mark.parametrize(
    ("name", "isa"),
    [
        ("dscnn_kws_int8", "cuda.sm_61"),
        ("mobilenet_v1_vww96_int8", "cuda.sm_75"),
        ("dscnn_kws_qoperator", "cuda.sm_80"),
        ("resnet8_cifar10_int8", "cuda.sm_90a"),
    ],
)
def test_a_network_gives_the_bytes_of_the_cpu(
    shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str, isa: str
) -> None:
    monkeypatch.setenv("OCTAVO_SHARED", str(shared))
    assert gpu.main(["prepare", str(tmp_path), "--isas", isa, "--only", name]) == 0
    assert gpu.main(["emulate", str(tmp_path)]) == 0
    assert f"{name}.{isa}: 0 of " in capsys.readouterr().out


@pytest.mark.usefixtures("shared")
def test_every_op_of_a_network_has_a_kernel_of_ours(shared: Path) -> None:
    explanation = octavo.explain(octavo.load(shared / "models/bench/mobilenet_v2_int8.tflite"), target="cuda.sm_80")
    assert {op.isa for op in explanation.ops} == {"cuda.sm_80"}
    assert explanation.summary.startswith(f"{len(explanation.counted)}/{len(explanation.counted)} ops integer")


@pytest.mark.parametrize(
    ("name", "added", "launches"),
    [
        ("bench/mobilenet_v2_int8.tflite", 10, 55),
        ("tflite/resnet8_cifar10_int8.tflite", 3, 12),
        ("bench/resnet50_int8.tflite", 16, 64),
    ],
)
def test_sums_of_a_network_have_no_launches_of_their_own(shared: Path, name: str, added: int, launches: int) -> None:
    lowered = lowered_for(backend_of("cuda.sm_80"), octavo.load(shared / "models" / name))
    kernels = [kernel.name for kernel in lowered.plan.kernels]
    assert (len(kernels), kernels.count("add"), sum(kernel.endswith("_add") for kernel in kernels)) == (launches, 0, added)
    assert [record.kernel.endswith("_add") for record in lowered.records if record.op == "add"] == [True] * added
