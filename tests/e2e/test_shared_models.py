"""The whole path on real models and labelled data, against the frameworks they come from."""

from __future__ import annotations

import subprocess

import numpy as np
import pytest

import accuracy
import octavo
import post_training
from child_python import OCTAVO
from datasets import images, pixels
from machine_isas import machine_isas
from octavo.compiler.backends.cpu.kernels import AVX_VNNI
from octavo.evaluation.bench.timing import time_alternating


def by_name(part: str) -> accuracy.Case:
    (case,) = [case for case in accuracy.CASES if part in case.file]
    return case


@pytest.fixture(scope="module")
def mobilenet_uint8(shared):
    return shared / "models/tflite/mobilenet_v2_1.0_224_uint8.tflite"


@pytest.fixture(scope="module")
def executable(mobilenet_uint8):
    return octavo.compile(octavo.load(mobilenet_uint8))


def test_mobilenet_v2_uint8_chooses_litert_s_classes(executable):
    result = accuracy.measure(by_name("mobilenet_v2_1.0_224_uint8"), limit=30, executable=executable)
    assert result.samples == 30
    assert result.agreement >= 0.99
    assert result.top1 == pytest.approx(result.peer_top1, abs=0.005)
    assert result.heavy_float_ops == ()


@pytest.mark.needs_isa("x86.avx512_vnni")
def test_mobilenet_v2_uint8_is_integer_dot_products(executable, shared):
    heavy = [op for op in octavo.explain(executable).ops if op.macs]
    assert len(heavy) == 53
    assert all(op.integer and op.isa == "x86.avx512_vnni" for op in heavy)
    # To see the machine code is to compile all of it anew: a small network's will do.
    small = octavo.compile(octavo.load(shared / "models/tflite/resnet8_cifar10_int8.tflite"))
    assert small.assembly().count("vpdpbusd") > 100


def test_mobilenet_v2_uint8_is_faster_than_litert(executable, mobilenet_uint8):
    """Alternating in one process, medians. The margin is wide: the ratio measured on an idle machine is above 2."""
    (image,), _ = images(pixels, calibration=False, limit=1)
    peer = accuracy.peer_of(mobilenet_uint8)
    times = time_alternating({"ours": executable.bind(image).run, "litert": lambda: peer(image)}, seconds=0.5)
    if executable.description.isa == "x86.avx512_vnni":
        assert times["ours"].median_ms < times["litert"].median_ms


@pytest.mark.parametrize("part", ["mobilenet_v1_0.25_128_uint8", "resnet8", "dscnn_kws_int8", "vww96", "ad01"])
def test_other_tflite_models_match_litert(shared, part):
    result = accuracy.measure(by_name(part), limit=100)
    assert result.agreement >= 0.985
    if result.top1 is not None:
        assert result.top1 == pytest.approx(result.peer_top1, abs=0.01)
    assert result.heavy_float_ops == ()


def test_post_training_quantization_of_mobilenet_v2(shared):
    """Reduced to keep the suite short; benchmarks/post_training.py runs all 100 + 200 images."""
    result = post_training.measure("mobilenet_v2", calibration=10, evaluation=100, order_check=2, exported=25, seconds=0.5)
    assert result.top1_int8 >= result.top1_float - 0.02
    assert result.agreement_with_onnxruntime >= 0.98
    assert result.same_profile_bytes
    # Without an instruction for products of 8 bits int8 saves half of the multiplications at most.
    assert result.float_ms / result.int8_ms >= (2.0 if AVX_VNNI in machine_isas() else 1.0)
    integer, total = result.explained.split(" ")[0].split("/")
    assert int(total) - int(integer) == 1, "only the softmax stays float"


def test_save_and_run_in_a_new_process_gives_the_same_bytes(executable, tmp_path):
    batches, _ = images(pixels, calibration=False, limit=3)
    executable.save(tmp_path / "m.so")
    np.savez(tmp_path / "x.npz", x=np.concatenate(batches))
    command = [*OCTAVO, "run", "m.so", "--input", "x.npz", "-o", "y.npz"]
    subprocess.run(command, check=True, cwd=tmp_path)
    with np.load(tmp_path / "y.npz") as archive:
        (got,) = (archive[name] for name in archive.files)
    want = np.concatenate([next(iter(executable(x).values())) for x in batches])
    assert got.tobytes() == want.tobytes()
