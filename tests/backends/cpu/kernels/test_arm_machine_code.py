"""What the kernels for ARM64 are compiled to, on any machine: their inner loops multiply, load, and spill nothing."""

import re
from functools import cache

import pytest
import tvm
from conv2d_cases import Layers
from kernel_runner import Compiled

from octavo.backends.cpu.kernels import ARM_DOTPROD, ARM_I8MM, ARM_NEON

LAYERS = {
    "pointwise": ((14, 14), (96, 64)),
    "3x3": ((14, 14), (64, 64), (3, 3)),
}
PRODUCTS = {ARM_NEON: r"smull2?|smlal2?", ARM_DOTPROD: "sdot", ARM_I8MM: "usmmla"}
FEWEST = {ARM_NEON: 32, ARM_DOTPROD: 64, ARM_I8MM: 32}
"""Products in a turn of an inner loop."""

CPUS = {
    ARM_NEON: ("cortex-a76", "neoverse-n1"),
    ARM_DOTPROD: ("cortex-a76", "neoverse-n1", "neoverse-v1"),
    ARM_I8MM: ("neoverse-v1",),
}

JUMP = r"(?:b\.\w+|cbn?z\t\w+,|tbn?z\t\w+, #\d+,)"


@cache
def loop_of(isa: str, cpu: str, layer: str) -> str:
    """The longest piece from a label to a jump back to it, with no other label between, that multiplies."""
    size, channels, *kernel = LAYERS[layer]
    layers = Layers(41)
    func = layers.case(layers.spec(size, channels, *kernel), isa, w_zero_point=0).kernel.func
    target = tvm.target.Target({"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": cpu})
    text = Compiled({"kernel": func}, target).code.inspect_source("asm")
    loops = re.findall(rf"^(\.LBB\w+):((?:(?!^\.LBB)[\s\S])*?\n\t{JUMP}\s*\1$)", text, re.MULTILINE)
    return max((body for _, body in loops if count(PRODUCTS[isa], body)), key=len)


def count(names: str, code: str) -> int:
    return len(re.findall(rf"\b(?:{names})\b", code))


@pytest.mark.parametrize(("isa", "cpu"), [(isa, cpu) for isa, cpus in CPUS.items() for cpu in cpus])
@pytest.mark.parametrize("layer", LAYERS)
def test_inner_loops_multiply_and_spill_nothing(isa: str, cpu: str, layer: str) -> None:
    loop = loop_of(isa, cpu, layer)
    products = count(PRODUCTS[isa], loop)
    assert products >= FEWEST[isa]
    assert "[sp" not in loop
    # A register of weights or pixels serves some products; one of zeros would mean that an accumulator starts anew.
    assert count("ldr|ldp|ldur", loop) <= products * 0.8
    assert not count("movi|dup", loop)
