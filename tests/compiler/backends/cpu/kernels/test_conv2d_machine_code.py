"""What the compiled kernels are made of, whatever machine compiles them, and that they keep to their buffers.

Every target is named: LLVM writes code for a wider CPU than it runs on, so that an AVX2 machine checks AVX-512 kernels.
"""

import dataclasses
import itertools
import re
from collections.abc import Iterable, Set
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from conv2d_cases import Layers
from kernel_runner import Compiled

from child_python import run_python
from octavo.compiler.backends.cpu.kernels import (
    AVX2,
    AVX512_VNNI,
    AVX_VNNI,
    Bfloat16Conv2dSpec,
    bfloat16_conv2d,
    isas_of,
    scheduled,
    target_for,
)
from octavo.compiler.backends.cpu.peaks import integer_peak_loop

SAME = (1, 1, 1, 1)
LAYERS: dict[str, tuple[Any, ...]] = {
    "pointwise": ((14, 14), (96, 72)),
    "dense": ((1, 1), (512, 100)),
    "implicit gemm": ((14, 14), (64, 64), (3, 3), {"padding": SAME}),
    "grouped": ((14, 14), (64, 64), (3, 3), {"groups": 4}),
    "depthwise": ((14, 14), (96, 96), (9, 9), {"padding": (0, 4, 0, 4), "groups": 96}),
    "depthwise 3x3": ((28, 28), (64, 64), (3, 3), {"padding": SAME, "groups": 64}),
    "padded with zeros": ((28, 28), (64, 64), (3, 3), {"padding": SAME, "input_zero_point": 0}),
    "dilated": ((14, 14), (64, 64), (3, 3), {"padding": (2, 2, 2, 2), "dilation": (2, 2)}),
    "strassen": ((28, 28), (256, 256)),
}
OF_AVX2 = ("dilated", "strassen")
"""With AVX2 other layers of 3x3 are minimal filters, those of 1x1 plain products; other ISAs have one loop for all of them."""

STRAIGHT = "depthwise 3x3"
"""All taps of a strip in one piece of code that has no loop, sums and results."""

LOOPS = [name for name in LAYERS if name != STRAIGHT]

WEIGHT_ZERO_POINTS = (0, 3)


def cpu(name: str, **options: Any) -> tvm.target.Target:
    return tvm.target.Target({"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": name, **options})


TARGETS = {
    "cascadelake": (cpu("cascadelake"), AVX512_VNNI),
    "znver4": (cpu("znver4"), AVX512_VNNI),
    "alderlake": (cpu("alderlake"), AVX_VNNI),
    "cascadelake in 256 bits": (cpu("cascadelake"), AVX_VNNI),
    "haswell": (cpu("haswell"), AVX2),
    "znver3": (scheduled(cpu("znver3")), AVX2),
    "znver4 without AVX-512": (scheduled(target_for(AVX2, cpu("znver4"))), AVX2),
    "cascadelake without AVX-512": (target_for(AVX2, cpu("cascadelake")), AVX2),
}
"""Name -> the target, and the ISA whose kernels are compiled for it."""

AS_ZEN2 = ("znver3", "znver4 without AVX-512")
"""Targets whose code LLVM orders for another CPU."""

LIKE_OTHERS = {
    "cascadelake": 0,
    "znver4": 1,
    "cascadelake in 256 bits": 0,
    "znver3": 1,
    "cascadelake without AVX-512": 0,
    "znver4 without AVX-512": 0,
}
"""Targets whose kernels another target has, too: each layer is compiled for them with one zero point of the weights, the first or
the second for the first layer, and by turns. Every kernel is compiled for some target, every layer for every target."""

PRODUCT = {AVX512_VNNI: "vpdpbusd", AVX_VNNI: "vpdpbusd", AVX2: "vpmaddwd"}
FEWEST = {AVX512_VNNI: 12, AVX_VNNI: 12, AVX2: 10}
"""Products in an inner loop that hide each other's latency."""

STRAIGHT_FEWEST = {AVX512_VNNI: 48, AVX_VNNI: 48, AVX2: 96}
"""Products of a depthwise layer: two sides of the image, 24 or more each; with AVX2 six pairs of taps of 16 channels of four
pixels, for even rows and for odd ones."""

SPILLS = {("alderlake", "depthwise", 3)}
"""Target, layer and zero point of the weights whose accumulators don't all stay in the 16 registers of 256 bits."""

STRAIGHT_SPILLS = {("alderlake", STRAIGHT, 3)}


@cache
def assembly_of(target: str, name: str, w_zero_point: int) -> str:
    size, channels, *window = LAYERS[name]
    options = dict(window.pop()) if window and isinstance(window[-1], dict) else {}
    layers = Layers(40)
    point = options.pop("input_zero_point", None)
    spec = layers.spec(size, channels, *window, **options)
    spec = spec if point is None else dataclasses.replace(spec, input_zero_point=point)
    chosen, isa = TARGETS[target]
    func = layers.case(spec, isa, w_zero_point=w_zero_point).kernel.func
    return Compiled({"kernel": func}, chosen).code.inspect_source("asm")


def innermost_loops(assembly: str, instruction: str) -> list[str]:
    """Every piece from a label to a jump back to it, with no other label between, that has the instruction."""
    lines = assembly.splitlines()
    loops = []
    start = 0
    for number, line in enumerate(lines):
        if re.match(r"\.LBB\w+:", line):
            start = number
        elif (jump := re.match(r"\s+j\w+\s+(\.LBB\w+)$", line)) and lines[start] == f"{jump[1]}:":
            loops.append("\n".join(lines[start : number + 1]))
    return [loop for loop in loops if count(instruction, loop)]


def count(instruction: str, assembly: str) -> int:
    return len(re.findall(rf"\b{instruction}\b", assembly))


def spills(loop: str) -> list[str]:
    return re.findall(r"^\s+vmov\w+\s+%[xyz]mm\d+, .*\(%rsp\)", loop, re.MULTILINE)


def every_layer(names: Iterable[str], known: Set[tuple[str, str, int]] = frozenset()) -> list[Any]:
    """Target, layer and zero point of the weights; those that are `known` fail, and must."""
    reason = (
        "more accumulators than registers: the tile is chosen without those that hold weights, loaded ahead, and windows' sums"
    )
    return [
        pytest.param(
            *each, marks=[pytest.mark.xfail(strict=True, reason=reason)] if each in known else [], id="-".join(map(str, each))
        )
        for each in itertools.product(TARGETS, names, WEIGHT_ZERO_POINTS)
        if each[0] not in LIKE_OTHERS or WEIGHT_ZERO_POINTS[(list(LAYERS).index(each[1]) + LIKE_OTHERS[each[0]]) % 2] == each[2]
        if each[1] not in OF_AVX2 or TARGETS[each[0]][1] == AVX2
    ]


def test_the_targets_have_the_isas() -> None:
    assert all(isa in isas_of(target) for target, isa in TARGETS.values())


@pytest.mark.parametrize(("target", "name", "w_zero_point"), every_layer(LOOPS))
def test_inner_loops_are_integer_dot_products_alone(target: str, name: str, w_zero_point: int) -> None:
    isa = TARGETS[target][1]
    assembly = assembly_of(target, name, w_zero_point)
    inner = innermost_loops(assembly, PRODUCT[isa])
    most = max(inner, key=lambda loop: count(PRODUCT[isa], loop))
    # For Zen 2 LLVM repeats no short loop. One pixel's sums of words wait a cycle for each other, products for nothing.
    assert count(PRODUCT[isa], most) >= (6 if name == "dense" and target in AS_ZEN2 else FEWEST[isa])
    assert set(re.findall(rf"{PRODUCT[isa]}.*%(\wmm)", most)) == {"zmm" if isa == AVX512_VNNI else "ymm"}
    for body in inner:
        assert not re.search(r"\bv(mul|fn?m(add|sub)\d*|cvt)\w*[ps][sd]", body), body
    assert not count("vpmaddubsw", assembly), "it saturates pairs of products"
    assert (count("vpdpbusd", assembly) > 0) == (isa != AVX2)
    # The 256-bit instruction of AVX-VNNI has an encoding of its own.
    assert ("{vex}" in assembly) == (target == "alderlake")


@pytest.mark.parametrize(("target", "name", "w_zero_point"), every_layer(LOOPS, SPILLS))
def test_accumulators_stay_in_registers(target: str, name: str, w_zero_point: int) -> None:
    loops = innermost_loops(assembly_of(target, name, w_zero_point), PRODUCT[TARGETS[target][1]])
    assert [spill for loop in loops for spill in spills(loop)] == []


@pytest.mark.parametrize(("target", "name", "w_zero_point"), every_layer([STRAIGHT], STRAIGHT_SPILLS))
def test_depthwise_strips_keep_their_sums_in_registers(target: str, name: str, w_zero_point: int) -> None:
    product = PRODUCT[TARGETS[target][1]]
    assembly = assembly_of(target, name, w_zero_point)
    assert count(product, assembly) >= STRAIGHT_FEWEST[TARGETS[target][1]]
    blocks = [block for block in re.split(r"^\.LBB\w+:", assembly, flags=re.MULTILINE) if count(product, block)]
    if product == PRODUCT[AVX2]:  # four pixels are one turn of a loop
        blocks = innermost_loops(assembly, product)
        assert {count(product, block) for block in blocks} == {48}
    assert [spill for block in blocks for spill in spills(block)] == []


def test_the_peak_of_words_is_measured_on_registers() -> None:
    loop = integer_peak_loop(AVX2)
    assert loop is not None
    (inner,) = innermost_loops(Compiled({"peak": loop.func}, cpu("haswell")).code.inspect_source("asm"), "vpmaddwd")
    assert count("vpmaddwd", inner) % 10 == 0
    assert spills(inner) == []


@pytest.mark.parametrize("w_zero_point", WEIGHT_ZERO_POINTS)
@pytest.mark.parametrize("name", [name for name in LOOPS if name != "depthwise"])
def test_words_are_widened_before_the_loops(name: str, w_zero_point: int) -> None:
    loops = innermost_loops(assembly_of("haswell", name, w_zero_point), "vpmaddwd")
    is_dense = name == "dense" and w_zero_point == 0  # its weights are bytes: one pixel reads them
    for loop in loops:
        products = count("vpmaddwd", loop)
        assert count("vpaddd", loop) == products
        assert not re.search(r"\bvp(and|s[lr][la]|unpck|shuf|movzx)\w*", loop), loop
        assert count("vpmovsxbw", loop) == (products if is_dense else 0)
        # Of products, sums, activations, weights and the loop itself, most are products and sums.
        assert len(re.findall(r"^\s+[a-z]", loop, re.MULTILINE)) <= (4 if is_dense else 3) * products + 8


@pytest.mark.parametrize("target", ["haswell", "znver4 without AVX-512"])
@pytest.mark.parametrize("channels", [(16, 96), (32, 64)])
def test_weights_of_few_steps_are_not_spilled_to_the_stack(target: str, channels: tuple[int, int]) -> None:
    func = Layers(41).case(Layers(41).spec((14, 14), channels), AVX2, w_zero_point=0).kernel.func
    loops = innermost_loops(Compiled({"kernel": func}, TARGETS[target][0]).code.inspect_source("asm"), "vpmaddwd")
    assert loops
    for loop in loops:
        # Two pixels share a register of weights: read from the stack, those alone would be half of the products.
        assert len(re.findall(r"\(%rsp", loop)) < count("vpmaddwd", loop) / 2


@pytest.mark.parametrize("name", ["strassen", "implicit gemm"])
def test_weights_are_asked_for_before_they_are_read(name: str) -> None:
    assembly = assembly_of("haswell", name, 0)
    assert count("prefetcht0", assembly) > 0
    assert not any(count("prefetcht0", loop) for loop in innermost_loops(assembly, "vpmaddwd"))


@pytest.mark.parametrize("name", ["implicit gemm", "padded with zeros"])
def test_transforms_are_vectors_in_registers(name: str) -> None:
    assembly = assembly_of("haswell", name, 0)
    transforms = innermost_loops(assembly, "vpsubw") + innermost_loops(assembly, "vpsubd")
    assert len(transforms) >= 4, "rows and columns of inputs and of sums"
    for loop in transforms:
        assert not re.search(r"\bvp(insr|extr)\w+|\bimul\w*|\bvpmullw\b", loop), loop
        assert spills(loop) == []
    assert any(count("vpmovzxbw", loop) for loop in transforms), "bytes are widened where they are read"


@pytest.mark.parametrize("w_zero_point", WEIGHT_ZERO_POINTS)
@pytest.mark.parametrize("target", [target for target, (_, isa) in TARGETS.items() if isa != AVX2])
def test_depthwise_strips_read_weights_where_they_are(target: str, w_zero_point: int) -> None:
    operands = re.findall(r"vpdpbusd\s+(.+), %[yz]mm\d+, %[yz]mm\d+", assembly_of(target, STRAIGHT, w_zero_point))
    assert sum("(%" in each for each in operands) >= 48
    assert not [each for each in operands if "(%rsp)" in each], "weights are loaded before the loop, and spilled"


def test_accumulators_are_no_memory_of_the_heap() -> None:
    layers = Layers(40)
    spec = dataclasses.replace(layers.spec((28, 28), (64, 64), (3, 3), padding=SAME), input_zero_point=0)
    func = layers.case(spec, AVX512_VNNI, w_zero_point=0).kernel.func
    code = Compiled({"kernel": func}, TARGETS["cascadelake"][0]).code.inspect_source("ll")
    taken = re.findall(r"load ptr, ptr @__TVMBackendAllocWorkspace", code)
    assert len(taken) == 1, "the padded copy of the input, and nothing else"


BFLOAT16 = {
    "pointwise": ((14, 14), (96, 72), (1, 1), {}),
    "dense": ((1, 1), (512, 100), (1, 1), {}),
    "implicit gemm": ((14, 14), (64, 64), (3, 3), {"padding": SAME}),
    "grouped": ((14, 14), (64, 64), (3, 3), {"groups": 4}),
}


@pytest.mark.parametrize("name", BFLOAT16)
@pytest.mark.parametrize("target", ["cooperlake", "znver4", "sapphirerapids"])
def test_inner_loops_of_bfloat16_multiply_pairs(target: str, name: str) -> None:
    (height, width), (inputs, outputs), kernel, options = BFLOAT16[name]
    sizes = {"batch": 1, "in_height": height, "in_width": width, "in_channels": inputs, "out_channels": outputs}
    spec = Bfloat16Conv2dSpec(**sizes, kernel=kernel, **options)
    rng = np.random.default_rng(0)
    weight = rng.normal(size=(*kernel, inputs // spec.groups, outputs)).astype(np.float32)
    func = bfloat16_conv2d(spec, weight=weight, bias=np.zeros(outputs, np.float32)).func
    assembly = Compiled({"kernel": func}, cpu(target)).code.inspect_source("asm")
    inner = innermost_loops(assembly, "vdpbf16ps")
    assert max(count("vdpbf16ps", loop) for loop in inner) >= FEWEST[AVX512_VNNI]
    for body in inner:
        assert not re.search(r"\bv(mul|fn?m(add|sub)\d*|cvt)\w*[ps][sd]", body), body
        assert spills(body) == []


GUARDED = "sys.path.append(sys.argv[1]); import guarded_run; guarded_run.main()"
"""Its modules of helpers lie in tests/, which a process of its own does not have on its path."""


def test_kernels_keep_to_their_buffers() -> None:
    run = run_python(GUARDED, Path(__file__).parents[4], cwd=Path(__file__).parent)
    assert run.returncode == 0, f"exit code {run.returncode} at {run.stdout.splitlines()[-1:]}: {run.stderr[-2000:]}"
