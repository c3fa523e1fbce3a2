"""A model compiled for ARM64 and linked there gives this machine's bytes under QEMU, at each level of features."""

from pathlib import Path

import numpy as np
import pytest
from emulated_kernels import DOTPROD, I8MM, NEON, Emulated, run_executable

import octavo
from octavo.errors import ExecutableError
from octavo.graph import Model

ISAS = {"arm.neon": NEON, "arm.dotprod": DOTPROD, "arm.i8mm": I8MM}


@pytest.fixture(scope="module")
def resnet(shared: Path) -> Model:
    return octavo.load(shared / "models" / "tflite" / "resnet8_cifar10_int8.tflite")


@pytest.fixture(scope="module")
def host(resnet: Model) -> octavo.Executable:
    return octavo.compile(resnet)


@pytest.mark.parametrize(("isa", "machine"), ISAS.items(), ids=ISAS)
def test_results_are_the_same(
    isa: str, machine: Emulated, resnet: Model, host: octavo.Executable, rng: np.random.Generator
) -> None:
    machine.skip_unless_installed()
    (x,) = host.inputs
    inputs = {x.source_name: rng.integers(-128, 128, x.shape).astype(np.int8)}
    compiled = octavo.compile(resnet, target=machine.llvm)
    assert isa in {op.isa for op in octavo.explain(compiled).ops}
    (expected,) = host(inputs).values()
    run_executable(compiled, inputs, expected, machine)


def test_a_cpu_by_its_name(resnet: Model) -> None:
    DOTPROD.skip_unless_installed()
    assert "arm.dotprod" in {op.isa for op in octavo.explain(resnet, target="cortex-a76").ops}
    compiled = octavo.compile(resnet, target="cortex-a76")
    assert "sdot" in compiled.assembly()
    with pytest.raises(ExecutableError, match="another machine: save it"):
        compiled(np.zeros(compiled.inputs[0].shape, np.int8))
