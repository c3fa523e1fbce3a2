"""A partitioned module is complete: saved or printed, and compiled in a new process, it gives the bytes of a direct compile."""

from pathlib import Path

import numpy as np
import pytest
import tvm

import octavo
from child_python import run_python

COMPILE = """
import pathlib, sys, tvm, octavo
for name in sys.argv[1:]:
    saved = pathlib.Path(name)
    text = saved.read_text(encoding="utf-8")
    module = tvm.ir.load_json(text) if saved.suffix == ".json" else tvm.script.from_source(text)
    octavo.compile(octavo.load(module)).save(saved.with_suffix(".so"))
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


PRINTED = "tflite/resnet8_cifar10_int8.tflite"


@pytest.fixture(scope="module", name="elsewhere")
def fixture_elsewhere(shared, tmp_path_factory) -> dict[str, bytes]:
    """The bytes of every file, and of one that is printed, as another process compiles them: one process, to import once."""
    folder = tmp_path_factory.mktemp("elsewhere")
    saved: dict[str, Path] = {}
    for index, file in enumerate(QUANTIZED):
        partitioned = octavo.partition(octavo.load(shared / "models" / file))
        saved[file] = folder / f"{index}.json"
        saved[file].write_text(tvm.ir.save_json(partitioned), encoding="utf-8")
        if file == PRINTED:
            saved["printed"] = folder / "printed.py"
            saved["printed"].write_text(partitioned.script(show_meta=True), encoding="utf-8")
    run_python(COMPILE, *saved.values(), check=True)
    return {name: path.with_suffix(".so").read_bytes() for name, path in saved.items()}


@pytest.mark.parametrize("file", [*QUANTIZED, "printed"])
def test_a_saved_module_compiles_to_the_same_bytes_in_a_new_process(file, elsewhere, shared, tmp_path):
    octavo.compile(octavo.load(shared / "models" / (PRINTED if file == "printed" else file))).save(tmp_path / "here.so")
    assert elsewhere[file] == (tmp_path / "here.so").read_bytes()


RUN = """
import sys, numpy as np, tvm, octavo
modules = [tvm.ir.load_json(open("imported.json").read()), tvm.script.from_source(open("imported.py").read())]
for index, module in enumerate(modules):
    executable = octavo.compile(octavo.load(module))
    np.save(f"{index}.npy", [next(iter(executable(x).values())) for x in np.load("x.npy")])
"""


def test_an_imported_module_keeps_its_roundings_in_a_new_process(rng, shared, tmp_path):
    """LiteRT's additions round half up. Half to even changes the results of about every third of these inputs."""
    model = octavo.load(shared / "models/tflite/resnet8_cifar10_int8.tflite")
    module = model.bound()
    (tmp_path / "imported.json").write_text(tvm.ir.save_json(module), encoding="utf-8")
    (tmp_path / "imported.py").write_text(module.script(show_meta=True), encoding="utf-8")
    inputs = rng.integers(-128, 128, (20, 1, 32, 32, 3)).astype(np.int8)
    np.save(tmp_path / "x.npy", inputs)
    run_python(RUN, cwd=tmp_path, check=True)
    executable = octavo.compile(model)
    want = [next(iter(executable(x).values())) for x in inputs]
    for index in range(2):
        np.testing.assert_array_equal(np.load(tmp_path / f"{index}.npy"), want)
