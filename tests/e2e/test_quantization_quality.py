"""What the corrections of weights and biases are worth on real networks, against plain min-max.

Reduced to keep the suite short; benchmarks/quantization_quality.py runs every network, and others' quantizers.
"""

from __future__ import annotations

import numpy as np
import pytest

import quantization_quality as quality
from average_precision import average_precision


def evaluation_of(network, folder):
    evaluation = quality.Evaluation(network, folder, limit=None)
    evaluation.calibration = evaluation.calibration[:32]
    return evaluation


@pytest.fixture(scope="module")
def resnet8(shared, tmp_path_factory):
    return evaluation_of("resnet8", tmp_path_factory.mktemp("resnet8"))


@pytest.mark.parametrize("network", ["resnet8", "dscnn"])
def test_the_default_is_better_than_plain_min_max(shared, resnet8, tmp_path, network):
    evaluation = resnet8 if network == "resnet8" else evaluation_of(network, tmp_path)
    plain, default = (evaluation.measure(name) for name in (quality.PLAIN, quality.DEFAULT))
    assert default.sqnr_db >= plain.sqnr_db + 1
    # Above 97% single samples decide: 700 pictures do not resolve that.
    assert default.agreement >= min(plain.agreement, 97)


def test_weights_of_4_bits_lose_little(resnet8):
    few = resnet8.measure(quality.FEW_BITS)
    assert few.worth >= resnet8.float_row().worth - 1.5
    assert few.agreement >= 95


def test_average_precision_counts_an_object_once_and_by_its_overlap():
    raw = np.zeros((1, 3549, 7))
    raw[0, :3, 4:6] = [[0.9, 1.0], [0.8, 1.0], [0.7, 1.0]]
    # Strides of 8: two anchors on the same object, and one on nothing.
    raw[0, :3, :4] = [[4, 4, 2, 2], [3, 4, 2, 2], [20, 20, 2, 2]]
    side = 8 * np.exp(2)
    object_ = np.array([[0, 32 - side / 2, 32 - side / 2, 32 + side / 2, 32 + side / 2]])
    assert average_precision(raw, [object_], size=416) == 1.0
    raw[0, 2, 4] = 1.0  # what lies on nothing comes first
    assert average_precision(raw, [object_], size=416) == 0.5
    assert average_precision(raw, [object_ + np.array([0, 60, 0, 60, 0])], size=416) == 0.0


def test_a_failing_quantizer_says_why(shared, capsys, tmp_path):
    evaluation = quality.Evaluation("dscnn", tmp_path, limit=2)
    result = evaluation.measure_in_a_process(quality.DEFAULT, timeout=0.01)
    assert result.failed
    assert "fails" in quality.cells(result)
    assert "not done after" in capsys.readouterr().err
