"""A back end through TVM's own passes: patterns of its registry, FuseOpsByPattern, MergeCompositeFunctions, RunCodegen."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
import tvm
import tvm_ffi
from tvm import relax
from tvm.relax.backend.pattern_registry import get_patterns_with_prefix
from tvm.relax.frontend.onnx import from_onnx

import octavo
import octavo.compiler.byoc
from child_python import run_python
from nets import residual_net
from octavo.compiler.backends import CodeGenerator
from octavo.ir.composites.attributes import read_composite
from vendors import Vendor

EXTENDING = Path(__file__).resolve().parents[3] / "docs" / "extending.md"
PROGRAM = Path(__file__).parent / "run_library.cpp"
PLAIN_TVM = """
import sys, numpy as np, tvm
from tvm import relax
sys.modules["octavo"] = None
machine = relax.VirtualMachine(tvm.runtime.load_module("mixed.so"), tvm.cpu())
results = [machine["main"](tvm.runtime.tensor(x)) for x in np.load("x.npy")]
np.save("y.npy", [(result if hasattr(result, "numpy") else result[0]).numpy() for result in results])
"""


@pytest.fixture(name="npu", scope="module")
def fixture_npu(tmp_path_factory) -> Iterator[CodeGenerator]:
    """The back end that docs/extending.md shows."""
    folder = tmp_path_factory.mktemp("npu")
    text = EXTENDING.read_text(encoding="utf-8").split("## Add a back end")[1].split("```python\n")[1].split("```")[0]
    (folder / "toynpu.py").write_text(text, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        patch.delitem(sys.modules, "toynpu", raising=False)
        import toynpu  # pyright: ignore[reportMissingImports]

        yield toynpu.ToyNpu()


@pytest.fixture(name="mixed", scope="module")
def fixture_mixed(npu, quantized, tmp_path_factory) -> Path:
    """The quantized model as a library, its convolutions from that back end."""
    octavo.compiler.byoc.register(npu)
    path = tmp_path_factory.mktemp("mixed") / "mixed.so"
    model, _ = quantized
    build(model.bound(), model.tensors).export_library(str(path))
    return path


@pytest.fixture(name="wanted", scope="module")
def fixture_wanted(quantized) -> np.ndarray:
    """What Octavo's own kernels give for the samples."""
    model, batches = quantized
    executable = octavo.compile(model)
    return np.stack([next(iter(executable(x).values())) for x in batches])


@pytest.fixture(name="quantized", scope="module")
def fixture_quantized():
    model, rng = residual_net(), np.random.default_rng(0)
    shape = model.tensors[model.input_ids[0]].shape
    batches = np.stack([rng.normal(size=shape).astype(np.float32) for _ in range(6)])
    profile = octavo.profile(model, list(batches))
    return octavo.quantize(model, profile, recipe=octavo.Recipe(activation_dtype="int8")), batches


def fused(module: tvm.IRModule) -> tvm.IRModule:
    module = octavo.compiler.byoc.duplicate_dequantize()(module)
    return relax.transform.FuseOpsByPattern(get_patterns_with_prefix("toynpu"))(module)


def composites(module: tvm.IRModule) -> list[relax.Function]:
    return [function for _, function in module.functions_items() if "Composite" in (function.attrs or {})]


def build(module: tvm.IRModule, ids=()):
    module = relax.transform.MergeCompositeFunctions()(fused(module))
    assert any("Codegen" in (function.attrs or {}) for _, function in module.functions_items())
    module = relax.transform.RunCodegen()(module)
    return tvm.compile(module, tvm.target.Target("llvm"), relax_pipeline=octavo.relax_pipeline(ids=ids, target="llvm"))


def test_the_library_runs_without_octavo_and_gives_the_cpu_s_values(mixed, quantized, wanted) -> None:
    _, batches = quantized
    np.save(mixed.parent / "x.npy", batches)
    run_python(PLAIN_TVM, cwd=mixed.parent, check=True)
    np.testing.assert_array_equal(np.load(mixed.parent / "y.npy"), wanted)


def test_the_library_runs_in_a_cpp_program(mixed, quantized, wanted, tmp_path) -> None:
    _, batches = quantized
    folders = [Path(package.__file__).parent / "lib" for package in (tvm, tvm_ffi)]
    headers = [f"-I{path}" for path in (tvm_ffi.libinfo.find_include_path(), tvm_ffi.libinfo.find_dlpack_include_path())]
    libraries = [word for folder in folders for word in (f"-L{folder}", f"-Wl,-rpath,{folder}")]
    words = ["g++", "-std=c++17", *headers, str(PROGRAM), "-o", str(tmp_path / "run"), *libraries]
    subprocess.run([*words, "-Wl,--no-as-needed", "-ltvm_ffi", "-ltvm_runtime"], check=True)
    batches.tofile(tmp_path / "x.bin")
    shape = map(str, batches.shape[1:])
    subprocess.run([str(tmp_path / "run"), str(mixed), "x.bin", "y.bin", str(len(batches)), *shape], cwd=tmp_path, check=True)
    np.testing.assert_array_equal(np.fromfile(tmp_path / "y.bin", np.float32).reshape(wanted.shape), wanted)


def test_lineage_through_the_flow_is_complete_and_right(npu, quantized) -> None:
    model, batches = quantized
    octavo.compiler.byoc.register(npu)
    passes = [octavo.compiler.byoc.duplicate_dequantize(), relax.transform.FuseOpsByPattern(get_patterns_with_prefix("toynpu"))]
    lineage = octavo.Lineage(model)
    with tvm.transform.PassContext(opt_level=3, instruments=[lineage]):
        module = tvm.transform.Sequential([*passes, relax.transform.MergeCompositeFunctions()])(model.bound())
    kinds = {name: lineage[name].kind for name in lineage.ids}
    assert set(kinds) == {str(name) for name in model.tensors}
    assert "gone" not in kinds.values(), kinds
    checks = octavo.verify_lineage(model, module, batches[0], lineage=lineage)
    assert [check.id for check in checks if check.is_compared and not check.is_right] == []
    assert sum(check.is_compared for check in checks) > 5


def test_patterns_find_what_partition_finds(npu, quantized) -> None:
    model, _ = quantized
    octavo.compiler.byoc.register(npu)
    found = [read_composite("", function) for function in composites(fused(model.bound()))]
    partitioned = octavo.partition(model, target=npu)
    wanted = [
        read_composite("", function)
        for function in composites(partitioned)
        if str(function.attrs["Composite"]) == "toynpu.conv2d"
    ]
    assert len(found) == len(wanted) > 1
    by_output = {each.quantize_info["output"]["id"]: each.quantize_info for each in wanted}
    for each in found:
        assert each.quantize_info == by_output[each.quantize_info["output"]["id"]]


def test_a_file_that_tvm_imports(npu, tmp_path) -> None:
    octavo.compiler.byoc.register(npu)
    path = tmp_path / "conv.onnx"
    constants = "float s = {0.05}, int8 z = {3}, float t = {0.1}, int8 u = {-2}, float v = {0.02}, int8 o = {0}"
    nodes = "q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) e = DequantizeLinear(w, v, o)"
    nodes += " c = Conv<pads=[1, 1, 1, 1]>(d, e) r = Relu(c) p = QuantizeLinear(r, t, u) y = DequantizeLinear(p, t, u)"
    graph = onnx.parser.parse_graph(f"g (float[1, 3, 8, 8] x) => (float[1, 4, 8, 8] y) <{constants}> {{ {nodes} }}")
    rng = np.random.default_rng(0)
    graph.initializer.append(onnx.numpy_helper.from_array(rng.integers(-127, 128, (4, 3, 3, 3)).astype(np.int8), "w"))
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 13)], ir_version=8), path)
    module = from_onnx(onnx.load(path))
    x = rng.normal(size=(5, 1, 3, 8, 8)).astype(np.float32)
    module = relax.transform.DecomposeOpsForInference()(module)
    assert [str(function.attrs["Composite"]) for function in composites(fused(module))] == ["toynpu.conv2d"]
    machine = relax.VirtualMachine(build(module), tvm.cpu())
    executable = octavo.compile(octavo.load(path))
    for each in x:
        np.testing.assert_array_equal(machine["main"](tvm.runtime.tensor(each)).numpy(), next(iter(executable(each).values())))


def test_what_the_back_end_raises_names_the_op(npu, quantized, monkeypatch) -> None:
    model, _ = quantized
    octavo.compiler.byoc.register(npu)

    def fail(_composite):
        raise ValueError("no such unit")

    monkeypatch.setattr(npu, "generate", fail)
    with pytest.raises(Exception, match=r"toynpu\.conv2d of .*: its back end raised ValueError: no such unit"):
        build(model.bound(), model.tensors)


def test_a_back_end_that_is_registered_again_replaces_its_patterns(npu) -> None:
    octavo.compiler.byoc.register(npu)
    count = len(get_patterns_with_prefix("toynpu"))
    octavo.compiler.byoc.register(npu)
    assert len(get_patterns_with_prefix("toynpu")) == count > 0


def test_a_back_end_that_takes_fewer_ops_leaves_no_patterns_of_the_others() -> None:
    left = []
    for ops in (("nn.conv2d", "add"), ("nn.conv2d",)):
        octavo.compiler.byoc.register(Vendor("fickle", *ops))
        left.append({str(each.name) for each in get_patterns_with_prefix("fickle.")})
    assert left[0] >= {"fickle.conv2d", "fickle.add"}
    assert "fickle.conv2d" in left[1] < left[0]
    assert "fickle.add" not in left[1]
