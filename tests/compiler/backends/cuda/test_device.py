"""A GPU as a target: compiled on any machine, saved, loaded and explained; run here by the emulator."""

from __future__ import annotations

import re

import numpy as np
import pytest
import tvm
from emulated_runner import emulated, emulation
from small_networks import dense_model
from tvm.script import ir as I
from tvm.script import relax as R

import octavo
from octavo.compiler.backends.cuda.backend import backend_of
from octavo.compiler.backends.cuda.driver import isa_for, runs_on
from octavo.compiler.backends.cuda.isa import ISAS
from octavo.compiler.partition.pipeline import partition_module
from octavo.compiler.target_choice import resolve_target
from octavo.errors import CompileError, ExecutableError, TargetError
from octavo.export.c_library import export_c
from octavo.runtime.executable import Executable

ISA = "cuda.sm_80"


@pytest.mark.parametrize("isa", ISAS)
def test_a_network_gives_the_bytes_of_the_cpu(rng, isa: str) -> None:
    model = dense_model(rng)
    x = rng.integers(-128, 128, (5, 24)).astype(np.int8)
    (expected,) = octavo.compile(model)(x).values()
    (found,) = emulation(model, isa)(x).values()
    assert np.array_equal(found, expected)


def test_a_saved_executable_is_the_same(rng, tmp_path) -> None:
    model = dense_model(rng)
    executable = octavo.compile(model, target=ISA)
    executable.save(tmp_path / "net.octavo")
    loaded = octavo.load_executable(tmp_path / "net.octavo")
    assert octavo.explain(loaded) == octavo.explain(executable)
    assert {op.isa for op in octavo.explain(loaded).ops} == {ISA}
    x = rng.integers(-128, 128, (5, 24)).astype(np.int8)
    found, expected = emulated(loaded)(x), emulated(executable)(x)
    assert all(np.array_equal(found[name], expected[name]) for name in expected)
    assert emulated(loaded).bind(x)().keys() == expected.keys()


def test_a_damaged_file_is_refused(rng, tmp_path) -> None:
    path = tmp_path / "net.octavo"
    octavo.compile(dense_model(rng), target=ISA).save(path)
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(ExecutableError, match="damaged"):
        octavo.load_executable(path)
    octavo.compile(dense_model(rng), target=ISA).save(path)
    with pytest.raises(ExecutableError, match=r"built for cuda\.sm_80: load it with octavo\.load_executable"):
        Executable.load(path)


@pytest.mark.needs_device("no gpu")
def test_without_a_gpu_calls_say_so(rng) -> None:
    executable = octavo.compile(dense_model(rng), target=ISA)
    with pytest.raises(ExecutableError, match=r"NVIDIA GPU.*: save the executable, and load it where there is one"):
        executable(np.zeros((5, 24), np.int8))
    with pytest.raises(
        TargetError, match=r"target 'cuda' is this machine's GPU: .*; to compile for another, name it: cuda\.sm_61"
    ):
        octavo.compile(dense_model(rng), target="cuda")


def test_unknown_gpus_are_refused() -> None:
    with pytest.raises(TargetError, match=r"unknown GPU 'cuda\.sm_70': choose from cuda\.sm_61"):
        resolve_target("cuda.sm_70")


@pytest.mark.parametrize(
    ("capability", "arch"),
    [(61, "sm_61"), (75, "sm_75"), (80, "sm_80"), (86, "sm_80"), (89, "sm_80"), (90, "sm_90a")],
)
def test_the_newest_code_that_a_gpu_runs(capability: int, arch: str) -> None:
    assert isa_for(capability).arch == arch


def test_a_gpu_that_no_code_is_for() -> None:
    assert not runs_on(ISAS["cuda.sm_90a"], 100)
    with pytest.raises(TargetError, match=r"compute capability 10\.0; there are kernels for"):
        isa_for(100)


@I.ir_module
class Plain:
    @R.function
    def main(x: R.Tensor((2, 4), "float32")) -> R.Tensor((2, 4), "float32"):
        with R.dataflow():
            y = R.nn.relu(x)
            R.output(y)
        return y


def test_what_a_gpu_lacks_is_told(rng, tmp_path) -> None:
    model = dense_model(rng)
    with pytest.raises(TargetError, match=r"target cuda\.sm_80: there is a C library for CPUs alone"):
        export_c(model, tmp_path / "c", target=ISA)
    with pytest.raises(TargetError, match=r"target cuda\.sm_80: there is a 16-bit precision for CPUs alone"):
        octavo.compile(octavo.load(Plain), target=ISA, precision="float16")
    with pytest.raises(TargetError, match=r"there is a 16-bit precision for CPUs alone"):
        octavo.explain(octavo.load(Plain), target=ISA, precision="bfloat16")
    with pytest.raises(TargetError, match=r"target cuda\.sm_80: there is a pipeline for tvm\.compile for CPUs alone"):
        octavo.relax_pipeline(target=ISA)


@I.ir_module
class Floats:
    @R.function
    def main(x: R.Tensor((1, 8, 8, 8), "float32"), w: R.Tensor((3, 3, 8, 16), "float32")) -> R.Tensor((4, 4), "float32"):
        R.func_attr({"num_input": 1})
        with R.dataflow():
            c = R.nn.conv2d(x, w, padding=[1, 1, 1, 1], data_layout="NHWC", kernel_layout="HWIO")
            m = R.mean(R.nn.relu(c), axis=[1, 2])
            s = R.reshape(R.nn.softmax(m, axis=-1), (4, 4))
            y = R.nn.gelu(R.matmul(s, s))
            R.output(y)
        return y


def test_what_stays_float_is_compiled_by_tvm(rng) -> None:
    weights = {"w": tvm.runtime.tensor(rng.normal(size=(3, 3, 8, 16)).astype(np.float32))}
    model = octavo.load(tvm.relax.transform.BindParams("main", weights)(Floats))
    x = rng.normal(size=(1, 8, 8, 8)).astype(np.float32)
    (expected,) = octavo.compile(model)(x).values()
    executable = octavo.compile(model, target=ISA)
    (found,) = emulated(executable)(x).values()
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-7)
    assert all(op.kernel.startswith("tvm_") for op in octavo.explain(executable).ops)


@I.ir_module
class Normalized:
    @R.function
    def main(
        x: R.Tensor((2, 3, 4, 8), "float32"),
        a: R.Tensor((3,), "float32"),
        b: R.Tensor((3,), "float32"),
        v: R.Tensor((3,), "float32"),
        c: R.Tensor((8,), "float32"),
    ) -> R.Tuple(R.Tensor((2, 3, 4, 8), "float32"), R.Tensor((3,), "float32")):
        R.func_attr({"num_input": 1})
        with R.dataflow():
            seen = R.nn.batch_norm(x, a, b, b, v, axis=1, training=True)
            rows = R.nn.layer_norm(seen[0], c, c, axes=[3])
            given = R.nn.batch_norm(rows, b, a, a, v, axis=1, training=False)
            y = R.add(given[0], rows)
            mean = R.add(seen[1], a)
            R.output(y, mean)
        return (y, mean)


def test_float_ops_may_have_several_results(rng) -> None:
    values = {name: rng.uniform(0.5, 2, size).astype(np.float32) for name, size in (("a", 3), ("b", 3), ("v", 3), ("c", 8))}
    bound = tvm.relax.transform.BindParams("main", {name: tvm.runtime.tensor(each) for name, each in values.items()})
    model = octavo.load(bound(Normalized))
    x = rng.normal(size=(2, 3, 4, 8)).astype(np.float32)
    found, expected = emulated(octavo.compile(model, target=ISA))(x), octavo.compile(model)(x)
    assert len(expected) == 2
    for name, each in expected.items():
        np.testing.assert_allclose(found[name], each, rtol=1e-5, atol=1e-6)


def test_symbolic_shapes_are_refused() -> None:
    @I.ir_module
    class Open:
        @R.function
        def main(x: R.Tensor(("n", 4), "float32")) -> R.Tensor(("n", 4), "float32"):
            with R.dataflow():
                y = R.nn.relu(x)
                R.output(y)
            return y

    backend = backend_of(ISA)
    parts = partition_module(Open, backend.description, float_kernels=False)
    with pytest.raises(CompileError, match="x: its shape is symbolic; kernels for CUDA have static ones"):
        backend.lower(parts)


def test_the_machine_code_can_be_read(rng) -> None:
    assert re.search("IDP|IMMA", octavo.compile(dense_model(rng), target="cuda.sm_75").assembly())
