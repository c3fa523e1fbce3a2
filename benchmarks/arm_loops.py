"""Cycles of the inner loops of ARM64 kernels by llvm-mca's models of cores, against what the ports of their products allow.

    python benchmarks/arm_loops.py [--mca llvm-mca-22] [--litert ai_edge_litert-...-aarch64.whl --objdump llvm-objdump-22]

No ARM is needed: kernels are compiled here, and llvm-mca simulates one loop with all of its loads in the first-level cache. With
a wheel of LiteRT for ARM64 the fastest of the loops of its XNNPACK that compute the same are simulated alike, disassembled. Loops
of depthwise kernels end with requantization in both. Of int16 a product is two of bytes.
"""

from __future__ import annotations

import argparse
import re
import subprocess
from pathlib import Path

import numpy as np
import tvm

from litert_arm_loops import disassembled_loops
from octavo.compiler.backends.cpu.kernels import (
    ARM_BF16,
    ARM_DOTPROD,
    ARM_I8MM,
    ARM_NEON,
    Bfloat16Conv2dSpec,
    Conv2dSpec,
    FloatConv2dSpec,
    Kernel,
    bfloat16_conv2d,
    conv2d,
    float_conv2d,
)
from octavo.compiler.backends.cpu.kernels.language.isa import scheduled, target_for
from octavo.compiler.codegen.tir_passes import llvm_module
from octavo.ir.composites.outputs import Output
from octavo.ir.graph.kernel_attributes import KERNEL_ATTR

CORES = {
    "cortex-a53": (ARM_NEON,),
    "cortex-a55": (ARM_NEON, ARM_DOTPROD),
    "cortex-a76": (ARM_NEON, ARM_DOTPROD),
    "neoverse-n1": (ARM_NEON, ARM_DOTPROD),
    "neoverse-v1": (ARM_NEON, ARM_DOTPROD, ARM_I8MM),
}
POINTWISE = {"in_channels": 96, "out_channels": 64, "kernel": (1, 1)}
WINDOW = {"in_channels": 64, "out_channels": 64, "kernel": (3, 3), "padding": (1, 1, 1, 1)}
DEPTHWISE = {"in_channels": 64, "out_channels": 64, "groups": 64}
LAYERS = {
    "pointwise 14x14x96 to 64": POINTWISE,
    "3x3 14x14x64 to 64": WINDOW,
    "depthwise 3x3": {**DEPTHWISE, "kernel": (3, 3)},
    "depthwise 3x3, strides 2": {**DEPTHWISE, "kernel": (3, 3), "strides": (2, 2)},
    "depthwise 5x5": {**DEPTHWISE, "kernel": (5, 5)},
    "depthwise 5x5, strides 2": {**DEPTHWISE, "kernel": (5, 5), "strides": (2, 2)},
}
BYTES = {"sdot": 16, "usdot": 16, "sudot": 16, "smmla": 32, "usmmla": 32, "smull": 8, "smull2": 8, "smlal": 8, "smlal2": 8}
MACS = {
    "int8": BYTES,
    "int16": {name: macs // 2 for name, macs in BYTES.items()},  # two products of bytes each
    "float32": {"fmla": 4},
    "bfloat16": {"bfmmla": 16, "bfdot": 8, "bfmlalb": 4, "bfmlalt": 4},
}
"""Products of one instruction, by what is multiplied."""

PEERS = {
    ARM_NEON: r"\bsadalp\b",
    ARM_DOTPROD: r"\bsdot\b",
    ARM_I8MM: r"\bsmmla\b",
    "float32": r"\bfmla\s+v\d+\.4s, v\d+\.4s, v\d+\.s\[",
    "bfloat16": r"\b(?:bfmmla|bfdot|bfmlal[bt])\b",
}
"""What loops of XNNPACK's have that multiply matrices."""

SUMS = rf"\b(?:sdot|usdot|sudot|usmmla|sadalp|saddw2?|{'|'.join([*MACS['float32'], *MACS['bfloat16']])})\s+(v\d+)"
ITERATIONS = 200


def product_of(kind: str) -> str:
    """Return a pattern for the instructions that multiply."""
    return rf"\b({'|'.join(MACS[kind])})\b"


def kernel_of(isa: str, layer: dict[str, object], kind: str) -> Kernel:
    """Return the kernel of a layer of 14 x 14 pixels."""
    rng, sizes = np.random.default_rng(0), {"batch": 1, "in_height": 14, "in_width": 14, **layer}
    shape = (*layer["kernel"], layer["in_channels"] // layer.get("groups", 1), layer["out_channels"])
    if kind in ("float32", "bfloat16"):
        operands = {"weight": rng.normal(size=shape).astype(np.float32), "bias": np.zeros(shape[3], np.float32)}
        if kind == "float32":
            return float_conv2d(FloatConv2dSpec(**sizes), **operands, isa=isa)
        return bfloat16_conv2d(Bfloat16Conv2dSpec(**sizes), **operands, extension=ARM_BF16)
    weight, scale = rng.integers(-127, 128, shape), np.full(shape[3], 0.001, np.float32)
    if kind == "int16":
        spec = Conv2dSpec(**sizes, input_zero_point=0, output=Output(zero_point=0, qmin=-32768, qmax=32767), dtype="int16")
        operands = {"weight": weight.astype(np.int16), "bias": np.zeros(shape[3], np.int64)}
    else:
        spec = Conv2dSpec(**sizes, input_zero_point=3, output=Output(zero_point=5))
        operands = {"weight": weight.astype(np.int8), "bias": np.zeros(shape[3], np.int32)}
    return conv2d(spec, **operands, weight_zero_point=0, multiplier=scale, isa=isa)


def assembly(isa: str, core: str, layer: dict[str, object], kind: str) -> str:
    """Return the machine code of a layer's kernel for a core."""
    func = kernel_of(isa, layer, kind).func.with_attr(KERNEL_ATTR, "kernel")
    target = tvm.target.Target({"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": core})
    target = scheduled(target if isa == ARM_BF16 else target_for(isa, target))
    return str(llvm_module({"kernel": func}, target).inspect_source("asm"))


def product_loops(text: str, kind: str) -> list[str]:
    """Return the innermost loops that multiply, that of the largest tile first: the one with the most sums."""
    lines, start, found = text.splitlines(), 0, []
    for number, line in enumerate(lines):
        if re.match(r"\.LBB\w+:", line):
            start = number
        elif (jump := re.match(r"\s+(?:b\.\w+|cbn?z\s+\w+,|tbn?z\s+\w+, #\d+,)\s+(\.LBB\w+)", line)) and lines[start].startswith(
            f"{jump[1]}:"
        ):
            found.append("\n".join(each for each in lines[start + 1 : number] if re.match(r"\t[a-z]", each)))
    loops = [loop for loop in found if re.search(product_of(kind), loop)]
    return sorted(loops, key=lambda loop: len(set(re.findall(SUMS, loop))), reverse=True)


def simulated(code: str, core: str, mca: str, figure: str, turns: int = ITERATIONS) -> float:
    """Return a figure of llvm-mca's for so many turns of a loop, by its name."""
    command = [mca, "-mtriple=aarch64-linux-gnu", f"-mcpu={core}", "-mattr=+dotprod,+i8mm,+bf16", f"-iterations={turns}"]
    done = subprocess.run(
        [*command, "-instruction-info=0", "-resource-pressure=0"], input=code, capture_output=True, text=True, check=True
    )
    return float(re.search(rf"{figure}:\s+([\d.]+)", done.stdout)[1])


def cycles(loop: str, core: str, mca: str) -> float:
    """Return the cycles of one turn among many: without those in which the first one begins and the last one ends."""
    few, many = (simulated(loop, core, mca, "Total Cycles", turns) for turns in (ITERATIONS, 2 * ITERATIONS))
    return (many - few) / ITERATIONS


def bound(loop: str, core: str, mca: str, kind: str) -> float:
    """Return the cycles for which the loop's products, and the sums of those that only widen, occupy their ports."""
    kept = [line for line in loop.splitlines() if re.search(product_of(kind) + r"|\b(?:sadalp|saddw2?)\b", line)]
    return simulated("\n".join(kept), core, mca, "Block RThroughput")


def macs_of(loop: str, kind: str, taps: int = 0) -> int:
    """Count a loop's products: of a depthwise one those of its outputs, for windows may meet zeros."""
    if taps and (outputs := 4 * len(re.findall(r"\bfmul\s+v\d+\.4s", loop))):  # each is multiplied by its scale
        return outputs * taps
    return sum(MACS[kind][name] for name in re.findall(product_of(kind), loop))


def row(loop: str, core: str, mca: str, kind: str, taps: int) -> str:
    """Return the figures of one loop."""
    turn, least, macs = cycles(loop, core, mca), bound(loop, core, mca, kind), macs_of(loop, kind, taps)
    stack = len(re.findall(r"\[sp", loop))
    share = "" if taps else f"{100 * least / turn:.0f}%"
    return f"{macs} | {turn:.1f} | {macs / turn:.1f} | {share} | {stack}"


def fastest_peer(loops: list[str], isa: str, core: str, mca: str, kind: str, taps: int) -> str:
    """Return the MACs a cycle of the fastest loop of XNNPACK's that computes such a layer with this ISA, "" if there is none."""
    if taps:
        suited = [loop for loop in loops if "scvtf" in loop and len(re.findall(product_of(kind), loop)) == 2 * taps]
    else:
        name = PEERS.get(isa if kind == "int8" else kind, r"(?!)")
        suited = [loop for loop in loops if re.search(name, loop) and not re.search(r"\b(?:scvtf|and|shl|ushr|sshr)\b", loop)]
    return f"{max(macs_of(loop, kind) / cycles(loop, core, mca) for loop in suited):.1f}" if suited else ""


def rows_of(core: str, isa: str) -> list[tuple[str, str, dict[str, object], str]]:
    """Return (ISA, name, layer, what is multiplied) of the rows of a core: of float32 those of its best ISA alone."""
    rows = [(isa, name, layer, "int8") for name, layer in LAYERS.items()]
    rows.append((isa, "pointwise of int16", POINTWISE, "int16"))
    if isa == CORES[core][-1]:
        rows.append((isa, "pointwise of float32", POINTWISE, "float32"))
    if isa == ARM_I8MM:
        rows += [
            (ARM_BF16, f"{name} of bfloat16", layer, "bfloat16") for name, layer in (("pointwise", POINTWISE), ("3x3", WINDOW))
        ]
    return rows


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mca", default="llvm-mca")
    parser.add_argument("--litert", type=Path, help="a wheel of ai-edge-litert for aarch64")
    parser.add_argument("--objdump", default="llvm-objdump")
    options = parser.parse_args()
    mca, products = options.mca, "|".join(map(product_of, ("int8", "float32", "bfloat16")))
    peers = [] if options.litert is None else disassembled_loops(options.litert, options.objdump, products)
    print(subprocess.run([mca, "--version"], capture_output=True, text=True, check=True).stdout.strip().splitlines()[0])
    print("| core | ISA | layer | MACs a turn | cycles | MACs a cycle | share of the bound | stack | XNNPACK |")
    print("| --- | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    for core, known in CORES.items():
        for isa, name, layer, kind in (one for each in known for one in rows_of(core, each)):
            taps = int(np.prod(layer["kernel"])) if "groups" in layer else 0
            figures = row(product_loops(assembly(isa, core, layer, kind), kind)[0], core, mca, kind, taps)
            peer = fastest_peer(peers, isa, core, mca, kind, taps)
            print(f"| {core} | {isa} | {name} | {figures} | {peer} |", flush=True)


if __name__ == "__main__":
    main()
