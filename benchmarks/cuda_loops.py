"""What NVIDIA GPUs run of each convolution and dense layer: tiles, registers, and the inner loop's instructions, by disassembly.

    python benchmarks/cuda_loops.py shared/models/bench/resnet50_int8.tflite [--bert 128,384] [--isa cuda.sm_80] [--json FILE]

No GPU is needed: NVRTC compiles each layer's kernel, nvdisasm shows its inner loop, the innermost one that multiplies. `share` is
that of its instructions that are matrix products (IMMA), or DP4A; for sm_61, which nvdisasm no longer reads, of PTX. A matrix
product keeps a tensor core for several clocks (8 of an A100's, 4 of the others', 64 one of four warps together: IGMMA).
"""

from __future__ import annotations

import argparse
import json
import re
import tempfile
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

import octavo
from octavo.compiler.backends.cuda.compiler import MachineCode, compile_kernels, disassembled, ptx
from octavo.compiler.backends.cuda.isa import ISAS, Isa
from octavo.compiler.backends.cuda.kernel import Kernel
from octavo.compiler.backends.cuda.kernels.conv.conv2d import conv2d
from octavo.compiler.backends.cuda.kernels.conv.spec import Conv2dSpec, conv2d_spec, matmul_spec, product_spec
from octavo.compiler.backends.cuda.kernels.matmuls.output import INTEGERS, Output
from octavo.ir.composites.attributes import read_composites
from octavo.ir.composites.weighted import Conv2dOp, MatmulOp

PRODUCTS = r"^(IMMA|IGMMA|IDP)\b|^dp4a\b"
BERT_BASE = {"query, key, value": (768, 768), "output": (768, 768), "up": (768, 3072), "down": (3072, 768)}
"""Inputs and outputs of the dense layers of one encoder."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One layer on one architecture; instructions are those of one turn of the inner loop."""

    model: str
    layer: str
    count: int
    isa: str
    kernel: str
    tile: str
    warps: str
    stages: int
    splits: int
    blocks: int
    registers: int
    spill_bytes: int
    shared_bytes: int
    instructions: int
    products: int

    @property
    def share(self) -> float:
        """Of the inner loop's instructions that multiply."""
        return self.products / max(self.instructions, 1)


def dense_spec(rows: int, inputs: int, outputs: int) -> Conv2dSpec:
    """Return a dense layer of random weights."""
    rng = np.random.default_rng(0)
    parameters = {"has_real_bias": False, "has_low": False, "has_high": False, "low": 0.0, "high": 0.0, "result": INTEGERS}
    parameters |= {"zero_point": 3, "qmin": -128, "qmax": 127}
    factors = np.full(outputs, 0.001, np.float32)
    return product_spec(
        rows,
        rng.integers(-127, 128, (inputs, outputs)).astype(np.int8),
        dtype="int8",
        x_zero_point=-5,
        bias=np.zeros(outputs, np.int32),
        weight_zero_point=np.zeros(outputs, np.int32),
        output=Output(dtype="int8", parameters=parameters, multiplier=factors, real_bias=0 * factors),
    )


def bert_layers(rows: int) -> dict[str, tuple[Conv2dSpec, int]]:
    """Return the dense layers of BERT-base on so many tokens, and how many of each there are."""
    counts = {"query, key, value": 36}
    return {
        f"{name}: {rows}x{inputs} to {outputs}": (dense_spec(rows, inputs, outputs), counts.get(name, 12))
        for name, (inputs, outputs) in BERT_BASE.items()
    }


def name_of(spec: Conv2dSpec) -> str:
    """Return a layer's sizes."""
    groups = f", {spec.groups} groups" if spec.groups > 1 else ""
    window = f"{spec.kernel[0]}x{spec.kernel[1]}" + (f" / {spec.strides[0]}" if max(spec.strides) > 1 else "")
    return f"{window}: {spec.in_height}x{spec.in_width}x{spec.in_channels} to {spec.out_channels}{groups}"


def model_layers(path: Path) -> dict[str, tuple[Conv2dSpec, int]]:
    """Return the convolutions but depthwise ones, and dense layers, of a quantized model, equal sizes once with their count."""
    module = octavo.partition(octavo.load(path))
    found: dict[str, tuple[Conv2dSpec, int]] = {}
    for composite in read_composites(module).values():
        if isinstance(composite.op, Conv2dOp):
            spec = conv2d_spec(composite.op)
        elif isinstance(composite.op, MatmulOp):
            spec = matmul_spec(composite.op)
        else:
            continue
        if spec.groups == 1 or spec.groups != spec.in_channels:
            name = name_of(spec)
            found[name] = found.get(name, (spec, 0))[0], found.get(name, (spec, 0))[1] + 1
    return found


def loops(text: str) -> list[list[str]]:
    """Return the loops of machine code as nvdisasm prints it, or of PTX: each as its instructions, without predicates."""
    lines, labels, found = text.splitlines(), dict[str, int](), []
    for number, line in enumerate(lines):
        if label := re.match(r"(\.?\$?L_\w+):", line):
            labels[label[1]] = number
        elif (jump := re.search(r"\b(?:BRA|bra)\b.*?(\.?\$?L_\w+)", line)) and jump[1] in labels:
            found.append(instructions("\n".join(lines[labels[jump[1]] + 1 : number + 1])))
    return found


def instructions(text: str) -> list[str]:
    """Return the instructions of machine code or PTX, without predicates."""
    return [each for each in map(_instruction, text.splitlines()) if each]


def _instruction(line: str) -> str:
    machine = re.match(r"\s*/\*[0-9a-f]+\*/\s*(?:@!?U?P\w+\s+)?(\S.*?)\s*;", line)
    text = re.match(r"\s+(?:@!?%p\d+\s+)?([a-z]\S.*?)\s*;", line)  # PTX
    return machine[1] if machine else text[1] if text else ""


def product_loop(text: str) -> list[str]:
    """Return the innermost loop that multiplies, that with the most products among several.

    A small kernel may be unrolled as a whole: then all its instructions.
    """
    multiplying = [loop for loop in loops(text) if products_of(loop)]
    innermost = [
        loop
        for loop in multiplying
        if not any(len(other) < len(loop) and "\n".join(other) in "\n".join(loop) for other in multiplying)
    ]
    return max(innermost, key=products_of, default=instructions(text))


def products_of(loop: Iterable[str]) -> int:
    """Count the instructions that multiply."""
    return sum(re.match(PRODUCTS, each) is not None for each in loop)


def text_of(kernel: Kernel, code: MachineCode, isa: Isa, folder: Path) -> str:
    """Return the machine code of a kernel, or its PTX where nvdisasm does not read the architecture's."""
    return disassembled(code.cubin, folder) if isa.capability >= 75 else ptx([kernel], isa)


def row_of(model: str, layer: str, spec: Conv2dSpec, count: int, isa: Isa) -> Row:
    """Compile a layer's first kernel and return what it takes."""
    kernel = conv2d(spec, isa)[0].kernel
    (code,) = compile_kernels([kernel], isa)
    with tempfile.TemporaryDirectory() as folder:
        loop = product_loop(text_of(kernel, code, isa, Path(folder)))
    usage, sizes = code.usage[kernel.symbol], kernel.parameters
    tiled = "tile_m" in sizes
    return Row(
        model=model,
        layer=layer,
        count=count,
        isa=isa.name,
        kernel=kernel.name,
        tile=f"{sizes['tile_m']}x{sizes['tile_n']}x{sizes['tile_k']}" if tiled else "",
        warps=f"{sizes['warps_m']}x{sizes['warps_n']}" if tiled else "",
        stages=int(sizes.get("stages", 0)),
        splits=int(sizes.get("splits", 1)),
        blocks=int(np.prod(kernel.grid)),
        registers=usage.registers,
        spill_bytes=usage.spill_bytes,
        shared_bytes=kernel.shared_bytes,
        instructions=len(loop),
        products=products_of(loop),
    )


def table(rows: Iterable[Row]) -> str:
    """Return rows as Markdown."""
    names = ("model", "layer", "count", "GPU", "tile", "warps", "stages", "splits", "blocks", "registers", "spills", "shared")
    lines = [f"| {' | '.join(names)} | loop | products | share |", "| --- | --- | ---: | --- | --- | --- |" + " ---: |" * 9]
    for row in rows:
        cells = [row.model, row.layer, row.count, row.isa, row.tile or row.kernel, row.warps, row.stages, row.splits, row.blocks]
        cells += [row.registers, row.spill_bytes, row.shared_bytes, row.instructions, row.products, f"{100 * row.share:.0f}%"]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", type=Path, help="quantized models")
    parser.add_argument("--bert", default="", help="numbers of tokens for which BERT-base's dense layers are compiled")
    parser.add_argument("--isa", action="append", choices=list(ISAS), help="all by default")
    parser.add_argument("--json", type=Path, help="write the rows here, too")
    options = parser.parse_args()
    layers = {path.stem: model_layers(path) for path in options.models}
    layers |= {f"BERT-base, {rows} tokens": bert_layers(int(rows)) for rows in options.bert.split(",") if rows}
    rows = [
        row_of(model, name, spec, count, ISAS[isa])
        for isa in options.isa or ISAS
        for model, found in layers.items()
        for name, (spec, count) in found.items()
    ]
    print(table(rows))
    print("\nkernels:", dict(Counter((row.isa, row.kernel) for row in rows)))
    if options.json:
        options.json.write_text(json.dumps([{**asdict(row), "share": row.share} for row in rows], indent=1) + "\n")


if __name__ == "__main__":
    main()
