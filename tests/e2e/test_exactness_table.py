"""The table of exactness: a cell counts what differs, files lose their softmax, and two files come out exact with AVX2."""

import numpy as np
import pytest

import accuracy
import datasets
import exactness
import octavo
from octavo.compiler.backends.cpu.kernels import AVX2


def test_a_cell_counts_values_steps_and_classes() -> None:
    exact = np.array([[1, 5, 2], [7, 0, 0]], np.int8)
    values = np.array([[1, 5, 9], [7, 1, 0]], np.int8)
    cell = exactness.compare(values, exact, 1.0, np.array([2, 1]))
    assert (cell.different, cell.largest, cell.top1, cell.agreement) == (2 / 6, 7, 0.5, 0.5)
    scaled = exactness.compare(values * np.float32(0.25), exact * np.float32(0.25), 0.25, None)
    assert (scaled.different, scaled.largest, str(scaled)) == (2 / 6, 7, "33.33%, 7, 0.500 agree")
    row = exactness.Row(file="m", samples=2, exact=cell, cells={exactness.OURS: scaled})
    assert "| 33.33%, 7, 0.500 agree | - " in exactness.table([row])


def test_a_softmax_is_cut_off(shared, tmp_path) -> None:
    path = shared / "models/tflite/resnet8_cifar10_int8.tflite"
    cut = octavo.load(exactness.without_softmax(path, tmp_path / "cut.tflite"))
    (x,), _ = datasets.cifar10(datasets.pixels_minus_128, 1)
    before, after = (next(iter(octavo.compile(model)(x).values())) for model in (cut, octavo.load(path)))
    assert after.argmax() == before.argmax()
    assert len(np.unique(before)) > len(np.unique(after)) + 2
    without_one = shared / "models/tflite/autoencoder_ad01_int8.tflite"
    assert exactness.without_softmax(without_one, tmp_path / "same.tflite") == without_one


@pytest.mark.needs_isa(AVX2)
@pytest.mark.usefixtures("shared")
@pytest.mark.parametrize("file", ["tflite/resnet8_cifar10_int8.tflite", "onnx/dscnn_kws_qoperator.onnx"])
def test_avx2_is_exact(file: str) -> None:
    (case,) = [case for case in accuracy.CASES if case.file == file]
    row = exactness.measure(case, limit=4, emulation=False)
    assert row.samples == 4
    assert (row.cells[exactness.OURS].different, row.cells[exactness.OURS].agreement) == (0, 1)
    assert row.cells[exactness.OURS].top1 == row.exact.top1
    # OpenVINO's frontend has no conversion for com.microsoft.QLinearAdd.
    assert set(row.cells) == {exactness.OURS, "openvino"} - ({"openvino"} if file.endswith(".onnx") else set())


def test_openvino_s_kernels_are_those_of_avx2() -> None:
    assert exactness.saturates("openvino")
    assert exactness.saturates("onnxruntime", emulation=False) is None
