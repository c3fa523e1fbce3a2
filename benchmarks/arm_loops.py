"""Cycles of the inner loops of ARM64 kernels by llvm-mca's models of cores, against what the ports of their products allow.

    python benchmarks/arm_loops.py [--mca llvm-mca-22] [--litert ai_edge_litert-...-aarch64.whl --objdump llvm-objdump-22]

No ARM is needed: kernels are compiled here, and llvm-mca simulates one loop with all of its loads in the first-level cache. With
a wheel of LiteRT for ARM64 the fastest of the loops of its XNNPACK that compute the same are simulated alike, disassembled. Loops
of depthwise kernels end with requantization in both.
"""

from __future__ import annotations

import argparse
import re
import subprocess
from pathlib import Path

import numpy as np
import tvm

from litert_arm_loops import disassembled_loops
from octavo.backends.cpu.kernels import ARM_DOTPROD, ARM_I8MM, ARM_NEON, Conv2dSpec, Output, conv2d
from octavo.backends.cpu.kernels.isa import scheduled
from octavo.build import llvm_module
from octavo.graph.kernel_attributes import KERNEL_ATTR

CORES = {
    "cortex-a53": (ARM_NEON,),
    "cortex-a55": (ARM_DOTPROD,),
    "cortex-a76": (ARM_NEON, ARM_DOTPROD),
    "neoverse-n1": (ARM_NEON, ARM_DOTPROD),
    "neoverse-v1": (ARM_I8MM,),
}
DEPTHWISE = {"in_channels": 64, "out_channels": 64, "groups": 64}
LAYERS = {
    "pointwise 14x14x96 to 64": {"in_channels": 96, "out_channels": 64, "kernel": (1, 1)},
    "3x3 14x14x64 to 64": {"in_channels": 64, "out_channels": 64, "kernel": (3, 3), "padding": (1, 1, 1, 1)},
    "depthwise 3x3": {**DEPTHWISE, "kernel": (3, 3)},
    "depthwise 3x3, strides 2": {**DEPTHWISE, "kernel": (3, 3), "strides": (2, 2)},
    "depthwise 5x5": {**DEPTHWISE, "kernel": (5, 5)},
    "depthwise 5x5, strides 2": {**DEPTHWISE, "kernel": (5, 5), "strides": (2, 2)},
}
MACS = {"sdot": 16, "usdot": 16, "sudot": 16, "smmla": 32, "usmmla": 32, "smull": 8, "smull2": 8, "smlal": 8, "smlal2": 8}
PRODUCT = rf"\b({'|'.join(MACS)})\b"
SUMS = r"\b(?:sdot|usdot|sudot|usmmla|sadalp|saddw2?)\s+(v\d+)"
ITERATIONS = 200


def assembly(isa: str, core: str, layer: dict[str, object]) -> str:
    """Return the machine code of a layer's kernel for a core."""
    spec = Conv2dSpec(batch=1, in_height=14, in_width=14, input_zero_point=3, output=Output(zero_point=5), **layer)
    shape = (*spec.kernel, spec.in_channels // spec.groups, spec.out_channels)
    weight = np.random.default_rng(0).integers(-127, 128, shape).astype(np.int8)
    constants = {"bias": np.zeros(spec.out_channels, np.int32), "multiplier": np.full(spec.out_channels, 0.001, np.float32)}
    kernel = conv2d(spec, weight=weight, weight_zero_point=0, **constants, isa=isa)
    target = scheduled(tvm.target.Target({"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": core}))
    return str(llvm_module({"kernel": kernel.func.with_attr(KERNEL_ATTR, "kernel")}, target).inspect_source("asm"))


def product_loops(text: str) -> list[str]:
    """Return the innermost loops that multiply, that of the largest tile first: the one with the most sums."""
    lines, start, found = text.splitlines(), 0, []
    for number, line in enumerate(lines):
        if re.match(r"\.LBB\w+:", line):
            start = number
        elif (jump := re.match(r"\s+(?:b\.\w+|cbn?z\s+\w+,|tbn?z\s+\w+, #\d+,)\s+(\.LBB\w+)", line)) and lines[start].startswith(
            f"{jump[1]}:"
        ):
            found.append("\n".join(each for each in lines[start + 1 : number] if re.match(r"\t[a-z]", each)))
    loops = [loop for loop in found if re.search(PRODUCT, loop)]
    return sorted(loops, key=lambda loop: len(set(re.findall(SUMS, loop))), reverse=True)


def simulated(code: str, core: str, mca: str, figure: str) -> float:
    """Return a figure of llvm-mca's for so many turns of a loop, by its name."""
    command = [mca, "-mtriple=aarch64-linux-gnu", f"-mcpu={core}", "-mattr=+dotprod,+i8mm", f"-iterations={ITERATIONS}"]
    done = subprocess.run(
        [*command, "-instruction-info=0", "-resource-pressure=0"], input=code, capture_output=True, text=True, check=True
    )
    return float(re.search(rf"{figure}:\s+([\d.]+)", done.stdout)[1])


def cycles(loop: str, core: str, mca: str) -> float:
    """Return the cycles of one turn."""
    return simulated(loop, core, mca, "Total Cycles") / ITERATIONS


def bound(loop: str, core: str, mca: str) -> float:
    """Return the cycles for which the loop's products, and the sums of those that only widen, occupy their ports."""
    kept = [line for line in loop.splitlines() if re.search(PRODUCT + r"|\b(?:sadalp|saddw2?)\b", line)]
    return simulated("\n".join(kept), core, mca, "Block RThroughput")


def macs_of(loop: str, taps: int = 0) -> int:
    """Count a loop's products of bytes: of a depthwise one those of its outputs, for windows may meet zeros."""
    if taps and (outputs := 4 * len(re.findall(r"\bscvtf\b", loop))):
        return outputs * taps
    return sum(MACS[name] for name in re.findall(PRODUCT, loop))


def row(loop: str, core: str, mca: str, taps: int) -> str:
    """Return the figures of one loop."""
    turn, least, macs = cycles(loop, core, mca), bound(loop, core, mca), macs_of(loop, taps)
    stack = len(re.findall(r"\[sp", loop))
    share = "" if taps else f"{100 * least / turn:.0f}%"
    return f"{macs} | {turn:.1f} | {macs / turn:.1f} | {share} | {stack}"


def fastest_peer(loops: list[str], isa: str, core: str, mca: str, taps: int) -> float:
    """Return the MACs a cycle of the fastest loop of XNNPACK's that computes such a layer with this ISA, or a lesser one."""
    if taps:
        suited = [loop for loop in loops if "scvtf" in loop and len(re.findall(PRODUCT, loop)) == 2 * taps]
    else:
        names = {ARM_NEON: "sadalp", ARM_DOTPROD: "sdot", ARM_I8MM: "smmla"}
        suited = [loop for loop in loops if names[isa] in loop and not re.search(r"\b(?:scvtf|and|shl|ushr|sshr)\b", loop)]
    return max(macs_of(loop) / cycles(loop, core, mca) for loop in suited)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mca", default="llvm-mca")
    parser.add_argument("--litert", type=Path, help="a wheel of ai-edge-litert for aarch64")
    parser.add_argument("--objdump", default="llvm-objdump")
    options = parser.parse_args()
    mca = options.mca
    peers = [] if options.litert is None else disassembled_loops(options.litert, options.objdump, PRODUCT)
    print(subprocess.run([mca, "--version"], capture_output=True, text=True, check=True).stdout.strip().splitlines()[0])
    print("| core | ISA | layer | MACs a turn | cycles | MACs a cycle | share of the bound | stack | XNNPACK |")
    print("| --- | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    for core, isas in CORES.items():
        for isa in isas:
            for name, layer in LAYERS.items():
                taps = int(np.prod(layer["kernel"])) if "groups" in layer else 0
                figures = row(product_loops(assembly(isa, core, layer))[0], core, mca, taps)
                peer = f"{fastest_peer(peers, isa, core, mca, taps):.1f}" if peers else ""
                print(f"| {core} | {isa} | {name} | {figures} | {peer} |", flush=True)


if __name__ == "__main__":
    main()
