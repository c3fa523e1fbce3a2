"""Trained networks on GPUs that are emulated: the CPU's bytes, on each generation."""

from __future__ import annotations

from pathlib import Path

import pytest

import gpu
import octavo


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
