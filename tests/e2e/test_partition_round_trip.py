"""A partitioned module is complete: saved or printed, and compiled in a new process, it gives the bytes of a direct compile."""

from pathlib import Path

import numpy as np
import pytest
import tvm

import octavo
from child_python import run_python

ELSEWHERE = """
import pathlib, sys, numpy as np, tvm, octavo
for name in sys.argv[1:]:
    saved = pathlib.Path(name)
    text = saved.read_text(encoding="utf-8")
    module = tvm.ir.load_json(text) if saved.suffix == ".json" else tvm.script.from_source(text)
    executable = octavo.compile(octavo.load(module))
    if saved.stem.startswith("imported"):
        results = [next(iter(executable(x).values())) for x in np.load(saved.with_name("x.npy"))]
        np.save(f"{saved}.npy", results)
    else:
        executable.save(saved.with_suffix(".so"))
"""
QUANTIZED = (
    "tflite/resnet8_cifar10_int8.tflite",
    "tflite/dscnn_kws_int8.tflite",
    "tflite/autoencoder_ad01_int8.tflite",
    "tflite/mobilenet_v1_0.25_128_uint8.tflite",
    "onnx/dscnn_kws_qoperator.onnx",
)
"""Small ones of every source and dtype, with additions, depthwise and dense layers: larger networks have the same ops."""
PRINTED = "tflite/resnet8_cifar10_int8.tflite"


@pytest.fixture(scope="module")
def inputs() -> np.ndarray:
    return np.random.default_rng(0).integers(-128, 128, (20, 1, 32, 32, 3)).astype(np.int8)


@pytest.fixture(scope="module", name="elsewhere")
def fixture_elsewhere(shared, inputs, tmp_path_factory) -> dict[str, Path]:
    """What another process makes of every file, of one that is printed, and of one before it is partitioned: its executable's
    file, or its results. One process, to import once."""
    folder = tmp_path_factory.mktemp("elsewhere")
    module = octavo.load(shared / "models" / PRINTED).bound()
    saved: dict[str, Path] = {name: folder / name for name in ("imported.json", "imported.py")}
    saved["imported.json"].write_text(tvm.ir.save_json(module), encoding="utf-8")
    saved["imported.py"].write_text(module.script(show_meta=True), encoding="utf-8")
    np.save(folder / "x.npy", inputs)
    for index, file in enumerate(QUANTIZED):
        partitioned = octavo.partition(octavo.load(shared / "models" / file))
        saved[file] = folder / f"{index}.json"
        saved[file].write_text(tvm.ir.save_json(partitioned), encoding="utf-8")
        if file == PRINTED:
            saved["printed"] = folder / "printed.py"
            saved["printed"].write_text(partitioned.script(show_meta=True), encoding="utf-8")
    run_python(ELSEWHERE, *saved.values(), check=True)
    return {name: Path(f"{path}.npy") if name.startswith("imported") else path.with_suffix(".so") for name, path in saved.items()}


@pytest.mark.parametrize("file", [*QUANTIZED, "printed"])
def test_a_saved_module_compiles_to_the_same_bytes_in_a_new_process(file, elsewhere, shared, tmp_path):
    octavo.compile(octavo.load(shared / "models" / (PRINTED if file == "printed" else file))).save(tmp_path / "here.so")
    assert elsewhere[file].read_bytes() == (tmp_path / "here.so").read_bytes()


@pytest.mark.parametrize("file", ["imported.json", "imported.py"])
def test_an_imported_module_keeps_its_roundings_in_a_new_process(file, elsewhere, inputs, shared):
    """LiteRT's additions round half up. Half to even changes the results of about every third of these inputs."""
    executable = octavo.compile(octavo.load(shared / "models" / PRINTED))
    np.testing.assert_array_equal(np.load(elsewhere[file]), [next(iter(executable(x).values())) for x in inputs])
