"""Compiling with the cache of machine code: found again, never mistaken, shared by processes, and never a reason to fail."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest
import tvm

import octavo
from child_python import child_python
from octavo.compiler.codegen import generate as codegen
from octavo.compiler.codegen import objects
from octavo.frontends import load
from octavo.runtime.code_cache import user_cache
from vendors import with_weights


@pytest.fixture
def own_folder(tmp_path, monkeypatch):
    """An empty cache of this test's own; its entries are under the folder returned."""
    monkeypatch.setenv("OCTAVO_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "objects-2"


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    """An integer network with two equal layers, which are convolutions by channel."""
    layers = (
        "a = Conv<group=8, pads=[1, 1, 1, 1]>(x, w1, b1) r = Relu(a) c = Conv<group=8, pads=[1, 1, 1, 1]>(r, w2, b2) s = Relu(c)"
        "f = Flatten(s) y = Gemm<transB=1>(f, w3, b3)"
    )
    rng = np.random.default_rng(0)
    weights = {"w1": (8, 1, 3, 3), "w2": (8, 1, 3, 3), "w3": (10, 128)}
    net = load(with_weights(f"net (float[1, 8, 4, 4] x) => (float[1, 10] y) {{ {layers} }}", weights, rng))
    path = tmp_path_factory.mktemp("cached") / "net.int8.onnx"
    samples = np.abs(rng.normal(size=(4, 8, 4, 4))).astype(np.float32)  # as all layers read: of zero point 0
    profile = octavo.profile(net, samples)
    octavo.export_onnx(octavo.quantize(net, profile), path)
    return path


@pytest.fixture(scope="module")
def model(file):
    return load(file)


@pytest.fixture
def batch(rng):
    return rng.normal(size=(1, 8, 4, 4)).astype(np.float32)


@pytest.fixture
def compilations(monkeypatch):
    """The functions that LLVM compiled."""
    seen = []
    compiled = objects._compiled
    monkeypatch.setattr(objects, "_compiled", lambda each, target: seen.append(each) or compiled(each, target))
    return seen


def entries(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("*/*") if path.is_file())


def test_what_was_compiled_once_is_found_again(model, batch, own_folder, compilations, monkeypatch):
    first = octavo.compile(model)
    built = [each.key for each in compilations]
    assert len(set(built)) == len(built), "a function was compiled twice"
    assert len(entries(own_folder)) == len(built) + 1, "functions, and the library that they are linked to"
    monkeypatch.setattr(codegen, "_linked", lambda *objects: pytest.fail("linked anew"))
    again = octavo.compile(model)
    assert len(compilations) == len(built)
    assert again._code.image == first._code.image
    np.testing.assert_array_equal(*first(batch).values(), *again(batch).values())


def test_a_lost_library_is_linked_anew_of_the_same_functions(model, own_folder, compilations):
    first = octavo.compile(model)
    count = len(compilations)
    library = next(path for path in entries(own_folder) if path.name not in {each.key for each in compilations})
    library.unlink()
    assert octavo.compile(model)._code.image == first._code.image
    assert len(compilations) == count
    assert library.exists()


def test_equal_layers_share_one_function(model, own_folder, compilations):
    executable = octavo.compile(model)
    kernels = [op for op in octavo.explain(executable).ops if op.kernel]
    depthwise = [each for each in compilations if "depthwise" in each.symbol]
    assert len(depthwise) == 1 < sum("depthwise" in op.kernel for op in kernels)


def test_another_target_is_other_code(model, batch, own_folder, compilations):
    first = octavo.compile(model)
    before = {each.key for each in compilations}
    older = octavo.compile(model, target="llvm -mcpu=x86-64")
    assert not before & {each.key for each in compilations[len(before) :]}
    np.testing.assert_array_equal(*first(batch).values(), *older(batch).values())


def test_other_passes_are_other_code(model, own_folder, compilations, monkeypatch):
    octavo.compile(model)
    count = len(compilations)
    monkeypatch.setattr(objects.inspect, "getsource", lambda module: "other passes")
    octavo.compile(model)
    assert len(compilations) == 2 * count


def test_damaged_entries_are_built_again(model, batch, own_folder, compilations):
    expected = octavo.compile(model)(batch)
    count = len(compilations)
    damaged = entries(own_folder)
    for path in damaged:
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 0xFF
        path.write_bytes(content)
    np.testing.assert_array_equal(*octavo.compile(model)(batch).values(), *expected.values())
    assert len(compilations) == 2 * count
    assert entries(own_folder) == damaged


def test_without_a_compiler_or_a_cache_the_bytes_are_the_same(model, batch, own_folder, monkeypatch, tmp_path):
    expected = octavo.compile(model)
    assert expected._code.image
    monkeypatch.setenv("CXX", str(tmp_path / "no-such-compiler"))
    broken = octavo.compile(model)
    monkeypatch.delenv("CXX")
    monkeypatch.setenv("PATH", str(tmp_path))
    none = octavo.compile(model)
    for executable in (broken, none):
        assert not executable._code.image
        np.testing.assert_array_equal(*executable(batch).values(), *expected(batch).values())


def test_two_processes_at_once_share_a_cache(file, own_folder):
    code = (
        "import sys, numpy as np, octavo;"
        "e = octavo.compile(octavo.load(sys.argv[1]));"
        "x = np.random.default_rng(0).normal(size=(1, 8, 4, 4)).astype(np.float32);"
        "print(next(iter(e(x).values())).tobytes().hex())"
    )
    command = child_python(code, file)
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    results = [process.communicate()[0] for process in running]
    assert [process.returncode for process in running] == [0, 0]
    assert results[0] == results[1] != ""
    cache = user_cache()
    assert all(cache.read(path.name) for path in entries(own_folder))
    assert not list(own_folder.glob("*/.*"))


def test_machine_code_does_not_depend_on_the_callers_pass_context(model, own_folder, compilations):
    octavo.compile(model)
    count = len(compilations)
    with tvm.transform.PassContext(opt_level=0, config={"tirx.disable_vectorize": True}):
        octavo.compile(model)
    assert len(compilations) == count
