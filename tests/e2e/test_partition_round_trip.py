"""A partitioned module is complete: saved or printed, and compiled in a new process, it gives the bytes of a direct compile."""

from pathlib import Path

import numpy as np
import pytest
import tvm

import octavo
from child_python import run_python

COMPILE = """
import sys, tvm, octavo
text = open(sys.argv[1], encoding="utf-8").read()
module = tvm.ir.load_json(text) if sys.argv[1].endswith("json") else tvm.script.from_source(text)
octavo.compile(octavo.load(module)).save(sys.argv[2])
"""
QUANTIZED = (
    "tflite/resnet8_cifar10_int8.tflite",
    "tflite/dscnn_kws_int8.tflite",
    "tflite/autoencoder_ad01_int8.tflite",
    "tflite/mobilenet_v1_vww96_int8.tflite",
    "tflite/mobilenet_v1_0.25_128_uint8.tflite",
    "tflite/mobilenet_v2_1.0_224_uint8.tflite",
    "onnx/dscnn_kws_qoperator.onnx",
    "onnx/mobilenet_v2_1.0_224_qoperator.onnx",
)


def compiled_elsewhere(text: str, suffix: str, folder: Path) -> bytes:
    saved, result = folder / f"partitioned.{suffix}", folder / "elsewhere.so"
    saved.write_text(text, encoding="utf-8")
    run_python(COMPILE, saved, result, check=True)
    return result.read_bytes()


def compiled_here(model: octavo.Model, folder: Path) -> bytes:
    octavo.compile(model).save(folder / "here.so")
    return (folder / "here.so").read_bytes()


@pytest.mark.parametrize("file", QUANTIZED)
def test_a_saved_module_compiles_to_the_same_bytes_in_a_new_process(file, shared, tmp_path):
    model = octavo.load(shared / "models" / file)
    saved = tvm.ir.save_json(octavo.partition(model))
    assert compiled_elsewhere(saved, "json", tmp_path) == compiled_here(model, tmp_path)


def test_a_printed_module_compiles_to_the_same_bytes_in_a_new_process(shared, tmp_path):
    model = octavo.load(shared / "models/tflite/resnet8_cifar10_int8.tflite")
    printed = octavo.partition(model).script(show_meta=True)
    assert compiled_elsewhere(printed, "py", tmp_path) == compiled_here(model, tmp_path)


RUN = """
import sys, numpy as np, tvm, octavo
text = open(sys.argv[1], encoding="utf-8").read()
module = tvm.ir.load_json(text) if sys.argv[1].endswith("json") else tvm.script.from_source(text)
executable = octavo.compile(octavo.load(module))
np.save(sys.argv[3], [*map(lambda x: next(iter(executable(x).values())), np.load(sys.argv[2]))])
"""


@pytest.mark.parametrize("suffix", ["json", "py"])
def test_an_imported_module_keeps_its_roundings_in_a_new_process(rng, suffix, shared, tmp_path):
    """LiteRT's additions round half up. Half to even changes the results of about every third of these inputs."""
    model = octavo.load(shared / "models/tflite/resnet8_cifar10_int8.tflite")
    module = model.bound()
    text = tvm.ir.save_json(module) if suffix == "json" else module.script(show_meta=True)
    saved, inputs, results = tmp_path / f"imported.{suffix}", tmp_path / "x.npy", tmp_path / "y.npy"
    saved.write_text(text, encoding="utf-8")
    np.save(inputs, rng.integers(-128, 128, (20, 1, 32, 32, 3)).astype(np.int8))
    run_python(RUN, saved, inputs, results, check=True)
    executable = octavo.compile(model)
    want = [next(iter(executable(x).values())) for x in np.load(inputs)]
    np.testing.assert_array_equal(np.load(results), want)
