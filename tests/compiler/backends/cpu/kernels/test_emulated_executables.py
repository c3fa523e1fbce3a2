"""A model compiled for ARM64 and linked there gives this machine's bytes under QEMU, at each level of features.

What is compiled for this machine is not optimized.
"""

import re
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from emulated_kernels import DOTPROD, I8MM, NEON, Emulated, aarch64, results_of, run_executable
from tvm import relax

import octavo
import open_recognizer
import open_transformer
from nets import residual_net
from octavo.errors import ExecutableError
from octavo.export.c_library import export_c
from octavo.ir.graph import Model
from octavo.ir.graph.inputs import random_inputs
from octavo.runtime.size import Size
from plain_code import plain_code

ANY = aarch64("max")
"""Has all that QEMU knows."""


@pytest.fixture(scope="module")
def resnet(shared: Path) -> Model:
    return octavo.load(shared / "models" / "tflite" / "resnet8_cifar10_int8.tflite")


@pytest.fixture(scope="module")
def small() -> Model:
    model = residual_net()
    with plain_code():
        return octavo.quantize(model, octavo.profile(model, [random_inputs(model)]))


@pytest.fixture(scope="module")
def wide() -> Model:
    """One of int16 activations and int8 weights."""
    model = residual_net()
    recipe = octavo.Recipe(activation_dtype="int16", float_ops=())
    with plain_code():
        return octavo.quantize(model, octavo.profile(model, [random_inputs(model)]), recipe=recipe)


def plain_result(model: Model, inputs: dict[str, np.ndarray]) -> np.ndarray:
    """This machine's one result."""
    with plain_code():
        (result,) = octavo.compile(model)(inputs).values()
    return result


@pytest.mark.parametrize(
    ("isa", "machine", "net"),
    [
        ("arm.neon", NEON, "small"),
        ("arm.dotprod", DOTPROD, "wide"),
        ("arm.i8mm", I8MM, "wide"),
    ],
    ids=["neon", "int16 with dotprod", "int16 with i8mm"],
)
def test_results_are_the_same(isa: str, machine: Emulated, net: str, request: pytest.FixtureRequest) -> None:
    """Those of int8 with dotprod and i8mm, too, in the tests below: of a larger model, and of CPUs by name."""
    machine.skip_unless_installed()
    model = request.getfixturevalue(net)
    compiled = octavo.compile(model, target=machine.llvm)
    assert isa in {op.isa for op in octavo.explain(compiled).ops}
    inputs = random_inputs(model)
    run_executable(compiled, inputs, plain_result(model, inputs), machine)


def test_a_c_library_gives_the_same_bytes_and_refuses_a_lesser_cpu(resnet: Model, tmp_path: Path) -> None:
    DOTPROD.skip_unless_installed()
    made = export_c(resnet, tmp_path / "library", target="cortex-a76")
    assert {path.name for path in made.libraries} == {"libmodel.a", "libmodel.so"}
    assert {"dotprod", "lse"} <= set(made.features)
    inputs = random_inputs(resnet)
    expected = plain_result(resnet, inputs)
    (given,) = inputs.values()
    given.tofile(tmp_path / "input")
    build = [DOTPROD.compiler, "-static", "-Wall", "-Wextra", "-Werror", "main.c", "libmodel.a", "-lm", "-o", "example"]
    subprocess.run(build, cwd=made.path, check=True)
    run = [DOTPROD.emulator, "-cpu", DOTPROD.cpu, str(made.path / "example"), str(tmp_path / "input"), str(tmp_path / "output")]
    subprocess.run(run, check=True)
    assert (tmp_path / "output").read_bytes() == expected.tobytes()
    run[2] = NEON.cpu
    refused = subprocess.run(run, capture_output=True, text=True, check=False)
    assert (refused.returncode, refused.stderr) == (1, "model: built for a CPU with lse, which this one lacks\n")


@pytest.mark.parametrize(
    ("name", "isa"),
    [("cortex-a55", "arm.dotprod"), ("cortex-a76", "arm.dotprod"), ("neoverse-n1", "arm.dotprod"), ("neoverse-v1", "arm.i8mm")],
)
def test_a_cpu_by_its_name(small: Model, tmp_path: Path, name: str, isa: str) -> None:
    """Explained, compiled, saved and run there; not run here."""
    ANY.skip_unless_installed()
    assert isa in {op.isa for op in octavo.explain(small, target=name).ops}
    inputs = random_inputs(small)
    compiled = octavo.compile(small, target=name)
    assert re.search(r"\t(us|s)(dot|mmla)\t", compiled.assembly())
    run_executable(compiled, inputs, plain_result(small, inputs), ANY)
    with pytest.raises(ExecutableError, match="another machine: save it"):
        compiled(inputs)
    compiled.save(tmp_path / "m.so")
    with pytest.raises(ExecutableError, match="built for aarch64-linux-gnu, and this machine is"):
        octavo.load_executable(tmp_path / "m.so")


def transformer(_folder: Path) -> Model:
    """One with dense layers and products of activations in int8."""
    names = {open_transformer.BATCH: Size.parse("batch"), open_transformer.SEQUENCE: Size.parse("sequence")}
    return open_transformer.loaded(open_transformer.quantized("static", has_past=False), names)


def recognizer(folder: Path) -> Model:
    """Convolutions in int8, and recurrent layers."""
    onnx.save(open_recognizer.recognizer("GRU"), folder / "m.onnx")
    model = octavo.load(folder / "m.onnx")
    rng = np.random.default_rng(0)
    samples = [open_recognizer.draw(rng, 2, width) for width in (9, 20, 33, 40)]
    return octavo.quantize(model, octavo.profile(model, samples), preset="fast")


@pytest.mark.parametrize(
    ("machine", "make", "draw", "names"),
    [
        (DOTPROD, transformer, lambda rng, *sizes: open_transformer.draw(rng, *sizes, None), ("batch", "sequence")),
        (NEON, recognizer, open_recognizer.draw, ("batch", "width")),
    ],
    ids=["transformer", "recognizer"],
)
def test_open_sizes(
    machine: Emulated,
    make: Callable[[Path], Model],
    draw: Callable[..., dict[str, np.ndarray]],
    names: tuple[str, str],
    rng: np.random.Generator,
    tmp_path: Path,
) -> None:
    """One executable gives at each size this machine's bytes, which tests of open sizes compare with those of each size.

    And those of the executable of the last one, compiled for that machine.
    """
    machine.skip_unless_installed()
    with plain_code():
        model = make(tmp_path)
        here = octavo.compile(model)
    calls = []
    for values in ((1, 5), (2, 41), (3, 18)):
        inputs = draw(rng, *values)
        named = {spec.source_name: value for spec, value in zip(here.inputs, inputs.values(), strict=True)}
        calls.append((named, dict(zip(names, values, strict=True)), list(here(named).values())))
    found = results_of(octavo.compile(model, target=machine.llvm), calls, machine)
    for results, (_, _, like) in zip(found, calls, strict=True):
        assert [each.tobytes() for each in results] == [each.tobytes() for each in like]
    named, sizes, like = calls[-1]
    static = replace(model, module=relax.transform.BindSymbolicVars(sizes)(model.module), sizes={})
    [own] = results_of(octavo.compile(static, target=machine.llvm), [(named, {}, like)], machine)
    assert [each.tobytes() for each in own] == [each.tobytes() for each in like]
