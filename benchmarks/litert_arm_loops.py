"""The innermost loops of XNNPACK's ARM64 kernels, as LiteRT's wheel for that machine has them, disassembled."""

from __future__ import annotations

import re
import subprocess
import tempfile
import zipfile
from pathlib import Path

LIBRARY = "ai_edge_litert/libLiteRt.so"
LONGEST = 900  # instructions of a loop
JUMP = re.compile(r"(?:b\.\w+|cbn?z\s+\w+,|tbn?z\s+\w+, #\S+,)\s*0x([0-9a-f]+)")
LEAVES = re.compile(r"(?:b|b\.\w+|bl|blr|br|cbn?z|tbn?z|ret)\s")


def disassembled_loops(wheel: Path, objdump: str, product: str) -> list[str]:
    """Return every innermost loop with at least 8 instructions that match `product`, each once."""
    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(wheel) as archive:
        library = archive.extract(LIBRARY, folder)
        command = [objdump, "-d", "--no-show-raw-insn", "--mattr=+v8.6a,+fp16,+dotprod,+i8mm,+bf16", library]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    lines = [
        (int(found[1], 16), found[2].strip())
        for line in text.splitlines()
        if (found := re.match(r"\s*([0-9a-f]+):\s+(.*)", line))
    ]
    places = {address: number for number, (address, _) in enumerate(lines)}
    loops: dict[str, None] = {}
    for number, (_, line) in enumerate(lines):
        jump = JUMP.match(line)
        start = None if jump is None else places.get(int(jump[1], 16))
        if start is None or not start < number < start + LONGEST:
            continue
        body = [each for _, each in lines[start:number]]
        if not any(LEAVES.match(each) for each in body) and sum(bool(re.search(product, each)) for each in body) >= 8:
            loops["\n".join(body)] = None
    return list(loops)
