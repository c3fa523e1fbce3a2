"""Vendors' code, Octavo's kernels and TVM's ops in one executable: whose op is whose, and that no symbol meets another."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest
import tvm_ffi

import octavo
from child_python import run_python
from vendors import Blob, Careless, Vendor, network, samples_of

PROGRAM = Path(__file__).parent / "run_executable.cpp"
PLAIN_TVM = """
import json, struct, sys, numpy as np, tvm
sys.modules["octavo"] = None
data = open("mixed.so", "rb").read()
library_size, constants_size, text_size, _, _ = struct.unpack("<QQQ32s16s", data[-72:])
text = json.loads(data[library_size + constants_size :][:text_size])
constants = tvm.runtime.tensor(np.frombuffer(data, np.uint8, constants_size, library_size))
workspace = tvm.runtime.empty((max(text["workspace"], 1),), "uint8")
run, results = tvm.runtime.load_module("mixed.so")["octavo_main"], []
for x, e in zip(np.load("x.npy"), np.load("e.npy")):
    outputs = [tvm.runtime.empty(each["shape"], each["dtype"]) for each in text["outputs"]]
    run(tvm.runtime.tensor(x), tvm.runtime.tensor(e), constants, workspace, *outputs)
    results.append(np.concatenate([each.numpy().reshape(-1) for each in outputs]))
np.save("y.npy", results)
"""


@pytest.fixture(scope="module", name="quantized")
def fixture_quantized():
    model = network()
    batches = samples_of(model)
    return octavo.quantize(model, octavo.profile(model, batches), target=Vendor("npu")), batches


@pytest.fixture(scope="module", name="want")
def fixture_want(quantized):
    """What Octavo's kernels alone compute."""
    model, batches = quantized
    return outputs_of(octavo.compile(model), batches)


@pytest.fixture(scope="module", name="mixed")
def fixture_mixed(quantized):
    """Convolutions in the vendor's code, other integers in Octavo's kernels, CumSum in TVM's."""
    executable = octavo.compile(quantized[0], target=Vendor("npu", "nn.conv2d"))
    assert set(takers_of(executable).values()) == {"npu", "cpu", "tvm"}
    return executable


def outputs_of(run, batches) -> np.ndarray:
    """All outputs of each batch, one behind the other."""
    return np.stack([np.concatenate([value.reshape(-1) for value in run(x).values()]) for x in batches])


def takers_of(executable) -> dict[str, str]:
    return {op.core or op.tensor: op.taker for op in octavo.explain(executable).ops}


def test_a_saved_executable_runs_without_octavo(quantized, mixed, want, tmp_path) -> None:
    _, batches = quantized
    mixed.save(tmp_path / "mixed.so")
    for name in "xe":
        np.save(tmp_path / f"{name}.npy", [sample[name] for sample in batches])
    run_python(PLAIN_TVM, cwd=tmp_path, check=True)
    np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), want)
    np.testing.assert_array_equal(outputs_of(mixed, batches), want)


def test_a_saved_executable_runs_in_a_cpp_program(quantized, mixed, want, tmp_path) -> None:
    _, batches = quantized
    mixed.save(tmp_path / "mixed.so")
    folder = Path(tvm_ffi.__file__).parent / "lib"
    headers = [f"-I{path}" for path in (tvm_ffi.libinfo.find_include_path(), tvm_ffi.libinfo.find_dlpack_include_path())]
    libraries = [f"-L{folder}", f"-Wl,-rpath,{folder}", "-Wl,--no-as-needed", "-ltvm_ffi"]
    subprocess.run(["g++", "-std=c++17", *headers, str(PROGRAM), "-o", str(tmp_path / "run"), *libraries], check=True)
    np.stack([np.concatenate([value.reshape(-1) for value in sample.values()]) for sample in batches]).tofile(tmp_path / "x.bin")
    subprocess.run(["./run", "./mixed.so", "x.bin", "y.bin", str(len(batches))], cwd=tmp_path, check=True)
    np.testing.assert_array_equal(np.fromfile(tmp_path / "y.bin", np.float32).reshape(want.shape), want)


def test_two_vendors_whose_functions_have_one_name(quantized, want, tmp_path) -> None:
    model, batches = quantized
    targets = [Careless("npu", "nn.conv2d", "mean"), Careless("dsp", "nn.conv2d", "add", "matmul"), "cpu"]
    executable = octavo.compile(model, target=targets)
    takers = takers_of(executable)
    assert {takers[name] for name in ("a_conv2d", "d_conv2d", "c_conv2d", "g")} == {"npu"}
    assert {takers[name] for name in ("s", "t", "y_matmul")} == {"dsp"}
    assert {takers[name] for name in ("m", "v", "k")} == {"cpu"}
    np.testing.assert_array_equal(outputs_of(executable, batches), want)
    executable.save(tmp_path / "two.so")
    np.testing.assert_array_equal(outputs_of(octavo.load_executable(tmp_path / "two.so"), batches), want)


def test_weights_of_all_ops_as_one_blob_of_bytes_and_object_code(quantized, want, tmp_path) -> None:
    model, batches = quantized
    growing = Blob("npu", "nn.conv2d", "matmul")
    executable = octavo.compile(model, target=growing)
    np.testing.assert_array_equal(outputs_of(executable, batches), want)
    whole = Blob("npu", "nn.conv2d", "matmul", compiled=growing.blob)
    shared = octavo.compile(model, target=whole)
    np.testing.assert_array_equal(outputs_of(shared, batches), want)
    assert whole.blob == growing.blob
    assert len(whole.blob) <= shared.weight_bytes < len(whole.blob) + 200 < executable.weight_bytes, "the blob is kept once"
    shared.save(tmp_path / "blob.so")
    np.testing.assert_array_equal(outputs_of(octavo.load_executable(tmp_path / "blob.so"), batches), want)
