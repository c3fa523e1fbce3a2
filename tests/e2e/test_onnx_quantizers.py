"""ONNX models that others quantized: the shared QOperator files, and files quantized on the spot, against ONNX Runtime.

Reduced to keep the suite short; benchmarks/onnx_quantizers.py and benchmarks/accuracy.py run everything. On so few images a class
may hang on a near tie, so what is compared is the logits: equal to the session that computes in integers but for a few values.
"""

from __future__ import annotations

import pytest

import accuracy
import onnx_quantizers


@pytest.mark.parametrize("part", ["mobilenet_v2_1.0_224_qoperator", "dscnn_kws_qoperator"])
def test_qoperator_models_choose_onnx_runtime_s_classes(shared, part):
    (case,) = [case for case in accuracy.CASES if part in case.file]
    result = accuracy.measure(case, limit=40)
    assert result.agreement >= 0.99
    assert result.top1 == pytest.approx(result.peer_top1, abs=0.005)
    assert result.heavy_float_ops == ()


@pytest.mark.parametrize(
    ("network", "variant", "differ"),
    [
        # A matmul's sums of 1280 products end at ties now and then.
        ("mobilenet_v2", "qdq_u8s8_per_channel", 0.005),
        ("squeezenet", "qdq_quantized_at_run_time", 0.0),
        ("squeezenet", "qdq_u8u8", 0.0),
        ("squeezenet", "qoperator_s8s8", 0.0),
    ],
)
def test_quantized_on_the_spot_by_onnx_runtime(shared, network, variant, differ):
    result = onnx_quantizers.measure(network, variant, calibration=3, evaluation=6)
    check(result)
    assert result.theirs_integer[result.counts] == result.heavy
    assert result.values_differ[result.counts] <= differ


def test_quantized_on_the_spot_by_nncf(shared):
    """ONNX Runtime computes a part of it in float: the logits differ, by less than a hundredth of their range."""
    result = onnx_quantizers.measure("squeezenet", "nncf", calibration=3, evaluation=6)
    check(result)
    assert result.largest <= 0.01


def check(result: onnx_quantizers.Result) -> None:
    assert result.loads == "yes"
    assert result.heavy > 0
    assert result.heavy_integer == result.heavy, result.float_ops
