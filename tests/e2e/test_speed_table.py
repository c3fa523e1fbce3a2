"""The table of speeds: ratios, means and gains from rows, and one row measured against the peers that are installed."""

from pathlib import Path

import pytest

import networks
import speed
from octavo.evaluation.bench.bench import OURS


def row(model: str, kind: str, times: dict[str, float], threads: int = 1) -> speed.Row:
    return speed.Row(model=model, kind=kind, threads=threads, times=times, spread=0.1, notes={})


def test_the_table_says_ratio_mean_and_gain() -> None:
    rows = [
        row("a", "float32", {OURS: 2.0, "openvino": 4.0, "onnxruntime": 3.0}),
        row("b", "float32", {OURS: 2.0, "openvino": 3.0}),
        row("a", "quantized", {OURS: 0.5, "openvino": 0.5}),
    ]
    assert [one.ratio for one in rows] == [1.5, 1.5, 1.0]
    text = speed.table(rows)
    assert "float32, 1 threads: geometric mean 1.500, least 1.50" in text
    assert "gain of a, 1 threads: 4.00" in text
    assert row("c", "int8", {OURS: 1.0}).ratio is None


def test_geometric_mean() -> None:
    assert speed.geometric_mean([1.0, 4.0]) == pytest.approx(2.0)


def test_a_network_in_bfloat16_against_openvino(tmp_path: Path, shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = shared / "models/tflite/resnet8_cifar10_fp32.tflite"
    monkeypatch.setattr(networks, "network_file", lambda _name, _folder: model)
    (measured,) = speed.bfloat16_rows("resnet8", tmp_path, [1], 0.05)
    assert (measured.kind, set(measured.times), measured.notes) == ("bfloat16", {OURS, "openvino"}, {})


def test_a_shared_model_against_its_peers(shared) -> None:
    (measured,) = speed.shared_rows("tflite/dscnn_kws_int8.tflite", [1], 0.05)
    assert set(measured.times) == {OURS, "litert", "openvino"}
    assert measured.notes == {}
    assert measured.ratio > 0
