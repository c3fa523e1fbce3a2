"""What the kernels for ARM64 are compiled to, on any machine: their inner loops multiply, load, and spill nothing."""

import re
from collections.abc import Iterable
from functools import cache
from typing import TypeVar

import numpy as np
import pytest
import tvm
from conv2d_cases import Layers
from kernel_runner import Compiled

from octavo.compiler.backends.cpu.kernels import (
    ARM_BF16,
    ARM_DOTPROD,
    ARM_I8MM,
    ARM_NEON,
    Bfloat16Conv2dSpec,
    BlockMatmulSpec,
    Conv2dSpec,
    FloatConv2dSpec,
    FloatOutput,
    HalfCastSpec,
    LookupSpec,
    bfloat16_conv2d,
    block_matmul,
    conv2d,
    float_conv2d,
    half_cast,
    lookup,
)
from octavo.compiler.backends.cpu.kernels.language.isa import scheduled
from octavo.ir.composites.outputs import Output

LAYERS = {
    "pointwise": ((14, 14), (96, 64)),
    "3x3": ((14, 14), (64, 64), (3, 3)),
}
DEPTHWISE = {"3x3": ((3, 3), (1, 1)), "3x3, strides 2": ((3, 3), (2, 2)), "5x5": ((5, 5), (1, 1))}
WIDENING = r"smull2?|smlal2?"
PRODUCTS = {ARM_NEON: WIDENING, ARM_DOTPROD: "sdot", ARM_I8MM: "usmmla"}
FEWEST = {ARM_NEON: 32, ARM_DOTPROD: 64, ARM_I8MM: 48}
"""Products in a turn of an inner loop."""

CPUS = {
    ARM_NEON: ("cortex-a53", "cortex-a76", "neoverse-n1"),
    ARM_DOTPROD: ("cortex-a55", "cortex-a76", "neoverse-n1", "neoverse-v1"),
    ARM_I8MM: ("neoverse-v1",),
}

IN_ORDER = ("cortex-a53", "cortex-a55")
"""For these LLVM reads ahead in long loops until it spills some."""

Pair = tuple[int, int]
Other = TypeVar("Other")
JUMP = r"(?:b\.\w+|cbn?z\t\w+,|tbn?z\t\w+, #\d+,)"


def by_turns(isas: Iterable[str], others: Iterable[Other]) -> list[tuple[str, str, Other]]:
    """Every ISA with each of its CPUs, and each of these with one of the others, so that every ISA of several CPUs meets all."""
    turns = list(others)
    return [(isa, cpu, turns[number % len(turns)]) for isa in isas for number, cpu in enumerate(CPUS[isa])]


EACH = pytest.mark.parametrize(("isa", "cpu"), [(isa, cpu) for isa, cpus in CPUS.items() for cpu in cpus])


@cache
def loop_of(isa: str, cpu: str, products: str, size: Pair, channels: Pair, kernel: Pair = (1, 1), **window: object) -> str:
    """Of the pieces from a label to a jump back to it, with no other label between, the one with most sums of products."""
    layers = Layers(41)
    return loop_in(layers.case(layers.spec(size, channels, kernel, **window), isa, w_zero_point=0).kernel.func, cpu, products)


def loop_in(func: tvm.tirx.PrimFunc, cpu: str, products: str) -> str:
    target = scheduled(tvm.target.Target({"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": cpu}))
    text = Compiled({"kernel": func}, target).code.inspect_source("asm")
    loops = re.findall(rf"^(\.LBB\w+):((?:(?!^\.LBB)[\s\S])*?\n\t{JUMP}\s*\1$)", text, re.MULTILINE)
    return max(
        (body for _, body in loops), key=lambda body: len(set(re.findall(rf"\b(?:{products}|sadalp|saddw)\s+(v\d+)", body)))
    )


def count(names: str, code: str) -> int:
    return len(re.findall(rf"\b(?:{names})\b", code))


@pytest.mark.parametrize(("isa", "cpu", "layer"), [*by_turns(CPUS, LAYERS), (ARM_I8MM, "neoverse-v1", "3x3")])
def test_loops_of_int16_multiply_bytes(isa: str, cpu: str, layer: str) -> None:
    """The loops are those of int8, below, over twice the bytes."""
    (size, channels, *kernel), window = LAYERS[layer], {"batch": 1, "input_zero_point": 0, "dtype": "int16"}
    kernel = kernel[0] if kernel else (1, 1)
    sizes = {"in_height": size[0], "in_width": size[1], "in_channels": channels[0], "out_channels": channels[1]}
    spec = Conv2dSpec(**sizes, kernel=kernel, output=Output(zero_point=0, qmin=-32768, qmax=32767), **window)
    operands = {"weight": np.ones((*kernel, *channels), np.int16), "weight_zero_point": 0, "multiplier": np.float32(1e-3)}
    loop = loop_in(conv2d(spec, **operands, bias=np.zeros(channels[1], np.int64), isa=isa).func, cpu, PRODUCTS[isa])
    assert count(PRODUCTS[isa], loop) >= FEWEST[isa]
    assert "[sp" not in loop
    assert count("ldr|ldur", loop) <= count(PRODUCTS[isa], loop) * 0.6
    assert not count("zip1|zip2|dup|saddw|sxtl", loop)


@pytest.mark.parametrize("kernel", [(1, 1), (3, 3)])
def test_loops_of_bfloat16_multiply_matrices(kernel: Pair) -> None:
    sizes = {"batch": 1, "in_height": 14, "in_width": 14, "in_channels": 96, "out_channels": 64}
    weight, bias = np.ones((*kernel, 96, 64), np.float32), np.zeros(64, np.float32)
    func = bfloat16_conv2d(Bfloat16Conv2dSpec(**sizes, kernel=kernel), weight=weight, bias=bias, extension=ARM_BF16).func
    loop = loop_in(func, "neoverse-v1", "bfmmla")
    assert count("bfmmla", loop) >= 32
    assert "[sp" not in loop
    assert count("ldr|ldur", loop) <= 0.65 * count("bfmmla", loop)
    assert not count("zip1|zip2|ins|mov", loop), "two pixels lie in memory as a product takes them"


@pytest.mark.parametrize("isa_cpu", [(ARM_NEON, "cortex-a53"), *((ARM_DOTPROD, cpu) for cpu in CPUS[ARM_DOTPROD])], ids=str)
def test_loops_of_float32_multiply_by_element(isa_cpu: tuple[str, str]) -> None:
    isa, cpu = isa_cpu
    sizes = {"batch": 1, "in_height": 14, "in_width": 15, "in_channels": 96, "out_channels": 64, "kernel": (1, 1)}
    weight, bias = np.ones((1, 1, 96, 64), np.float32), np.zeros(64, np.float32)
    loop = loop_in(float_conv2d(FloatConv2dSpec(**sizes), weight=weight, bias=bias, isa=isa).func, cpu, "fmla")
    assert len(re.findall(r"fmla\s.*\.s\[\d\]", loop)) == count("fmla", loop) >= 80
    assert "[sp" not in loop
    assert count("ldr|ldur", loop) <= 0.3 * count("fmla", loop)
    assert not count("ld1r|dup", loop)


@pytest.mark.parametrize("cpu", ["cortex-a55", "cortex-a76", "neoverse-n1", "neoverse-v1"])
@pytest.mark.parametrize("layer", [((3, 3), (1, 1)), ((5, 5), (1, 1)), ((5, 5), (2, 2))], ids=str)
def test_float32_depthwise_loops_keep_sums_in_registers(cpu: str, layer: tuple[Pair, Pair]) -> None:
    kernel, strides = layer
    sizes = {"batch": 1, "in_height": 28, "in_width": 28, "in_channels": 64, "out_channels": 64, "groups": 64}
    spec = FloatConv2dSpec(**sizes, kernel=kernel, strides=strides, padding=(kernel[0] // 2,) * 4)
    operands = {"weight": np.ones((*kernel, 1, 64), np.float32), "bias": np.zeros(64, np.float32)}
    loop = loop_in(float_conv2d(spec, **operands, isa=ARM_NEON).func, cpu, "fmla")
    assert count("fmla", loop) >= 12 * kernel[1]
    assert "[sp" not in loop


@pytest.mark.parametrize(("widens", "cast"), [(True, "fcvtl2?"), (False, "fcvtn2?")])
def test_float16_is_cast_by_one_instruction(widens: bool, cast: str) -> None:
    func = half_cast(HalfCastSpec(size=4096, dtype="float16", widens=widens), isa=ARM_DOTPROD).func
    loop = loop_in(func, "cortex-a76", cast)
    assert count(cast, loop) == count("ldr|ldur", loop) == count("str|stur", loop) > 0
    assert not count("bl|fmul|ushll|shl", loop)


@pytest.mark.parametrize(("isa", "cpu"), [(ARM_DOTPROD, "neoverse-n1"), (ARM_I8MM, "neoverse-v1")])
def test_weights_of_4_bits_are_unpacked_in_registers(isa: str, cpu: str) -> None:
    spec = BlockMatmulSpec(rows=1, inputs=128, outputs=64, block=32, digits=1, output=FloatOutput())
    weight, scale = np.arange(128 * 64, dtype=np.uint8).reshape(128, 64) % 16, np.full((4, 64), 0.013, np.float32)
    points, bias = np.full(scale.shape, 8, np.int32), np.zeros(64, np.float32)
    loop = loop_in(
        block_matmul(spec, weight=weight, scale=scale, zero_point=points, bias=bias, isa=isa).func, cpu, PRODUCTS[ARM_DOTPROD]
    )
    # A word of 16 columns: four loads, eight products, and of each half a mask.
    assert [count(names, loop) for names in ("sdot", "and", "ushr", "ld1r")] == [8, 8, 4, 2]
    assert "[sp" not in loop


def test_lookups_keep_their_table_in_registers() -> None:
    func = lookup(LookupSpec(size=4096), table=np.arange(256, dtype=np.uint8), isa=ARM_NEON).func
    loop = loop_in(func, "cortex-a76", "tb[lx]")
    assert [count(name, loop) for name in ("tbl", "tbx", "ldr", "ldp|ldur|ldrb|ld1")] == [1, 3, 1, 0]


@EACH
@pytest.mark.parametrize("layer", LAYERS)
def test_inner_loops_multiply_and_spill_nothing(isa: str, cpu: str, layer: str) -> None:
    loop = loop_of(isa, cpu, PRODUCTS[isa], *LAYERS[layer])
    products = count(PRODUCTS[isa], loop)
    assert products >= FEWEST[isa]
    assert "[sp" not in loop
    # A register of weights or pixels serves some products; one of zeros would mean that an accumulator starts anew.
    assert count("ldr|ldur", loop) <= products * 0.6
    assert not count("ldp|movi|dup", loop), "two loads in one instruction leave no room between them"
    assert not count("zip1|zip2|ins|mov", loop), "two pixels lie in memory as a product takes them"


@EACH
@pytest.mark.parametrize("layer", DEPTHWISE)
def test_depthwise_loops_share_rows_and_columns(isa: str, cpu: str, layer: str) -> None:
    """Each with the instructions that its window takes at least, all of them of vectors, requantization included."""
    kernel, strides = DEPTHWISE[layer]
    dots = isa == ARM_I8MM or (isa == ARM_DOTPROD and layer == "3x3")
    product = ("usdot" if isa == ARM_I8MM else "sdot") if dots else WIDENING
    loop = loop_of(isa, cpu, product, (28, 28), (64, 64), kernel, groups=64, strides=strides)
    outputs, taps = len(re.findall(r"fmul\tv\d+\.4s", loop)) // 4, kernel[0] * kernel[1]
    assert outputs
    assert count("fcvtns|fmla|sqxtn", loop) == 0, "results of a few hundreds are rounded by a sum, which joins no product"
    assert count("scvtf", loop) == (0 if isa == ARM_I8MM else 4 * outputs)
    if dots:
        assert count(product, loop) <= outputs * taps * 4 / 2.25  # four taps each, some of them zeros: 9 of 12 at best
        assert count("zip1|zip2", loop) <= outputs * (4 if layer == "3x3" else 20)
        assert count("eor", loop) == (4 if isa == ARM_DOTPROD else 0)
    else:
        assert count(product, loop) == outputs * taps * 2
        assert count("saddw2?|saddl2?|add\tv\\d+.4s", loop) == outputs * -(-taps // 2) * 4  # sums of two products in 16 bits
        assert len(re.findall(r"\b(?:ldr|ldur|ldp)\t.*\[(?!sp)", loop)) <= outputs * taps * 1.5
    if cpu not in IN_ORDER:
        assert len(re.findall(r"\[sp", loop)) <= 6  # what tells LLVM not to read all weights before the loop, and two constants


@pytest.mark.parametrize(("isa", "cpu", "size"), by_turns((ARM_NEON, ARM_DOTPROD), [(13, 13), (28, 28)]), ids=str)
def test_long_windows_with_strides_read_weights_where_they_lie(isa: str, cpu: str, size: Pair) -> None:
    """However few turns a row has: LLVM knows those of two."""
    loop = loop_of(isa, cpu, WIDENING, size, (64, 64), (5, 5), groups=64, strides=(2, 2))
    assert count("str|stur|stp", loop) == count("scvtf", loop) // 4, "it stores outputs alone"
    assert len(re.findall(r"\[sp", loop)) <= 6
