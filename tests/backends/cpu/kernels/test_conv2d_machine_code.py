"""What the compiled kernels are made of, and that they keep to their buffers."""

import dataclasses
import re
from pathlib import Path

import pytest
import tvm
from conv2d_cases import Layers
from kernel_runner import Compiled

from child_python import run_python
from octavo.backends.cpu.kernels import AVX512_VNNI, Conv2dSpec

LAYERS = Layers(40)
SPECS = {
    "pointwise": LAYERS.spec((14, 14), (96, 72)),
    "matmul": LAYERS.spec((1, 1), (512, 100)),
    "direct": LAYERS.spec((14, 14), (64, 64), (3, 3), padding=(1, 1, 1, 1)),
    "grouped": LAYERS.spec((14, 14), (64, 64), (3, 3), groups=4),
    "depthwise": LAYERS.spec((14, 14), (96, 96), (9, 9), padding=(0, 4, 0, 4), groups=96),
}
ZEROS_AROUND = dataclasses.replace(LAYERS.spec((28, 28), (64, 64), (3, 3), padding=(1, 1, 1, 1)), input_zero_point=0)
SPECS["padded with zeros"] = ZEROS_AROUND
VNNI_TARGET = tvm.target.Target({"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": "cascadelake"})


def innermost_loops(assembly: str) -> list[str]:
    """Every piece from a label to a jump back to it, with no other label between."""
    lines = assembly.splitlines()
    loops = []
    start = 0
    for number, line in enumerate(lines):
        if re.match(r"\.LBB\w+:", line):
            start = number
        elif (jump := re.match(r"\s+j\w+\s+(\.LBB\w+)$", line)) and lines[start] == f"{jump[1]}:":
            loops.append("\n".join(lines[start : number + 1]))
    return loops


def assembly_of(spec: Conv2dSpec, w_zero_point: int) -> str:
    """The assembly for a CPU with AVX-512 VNNI, which need not be this machine's."""
    func = LAYERS.case(spec, AVX512_VNNI, w_zero_point=w_zero_point).kernel.func
    return Compiled({"kernel": func}, VNNI_TARGET).code.inspect_source("asm")


@pytest.mark.parametrize("w_zero_point", [0, 3])
@pytest.mark.parametrize("name", SPECS)
def test_inner_loops_are_integer_dot_products_alone(name: str, w_zero_point: int) -> None:
    assembly = assembly_of(SPECS[name], w_zero_point)
    inner = [loop for loop in innermost_loops(assembly) if "vpdpbusd" in loop]
    assert inner
    for body in inner:
        assert not re.search(r"\bv(mul|fn?m(add|sub)\d*|cvt)\w*[ps][sd]", body), body
        stores = re.findall(r"^\s+vmov\w+\s+%zmm\d+, .*\(%rsp\)", body, re.MULTILINE)
        assert not stores, f"accumulators are spilled inside the loop: {stores}"


@pytest.mark.parametrize("w_zero_point", [0, 3])
def test_depthwise_strips_read_weights_where_they_are(w_zero_point: int) -> None:
    spec = LAYERS.spec((28, 28), (64, 64), (3, 3), padding=(1, 1, 1, 1), groups=64)
    operands = re.findall(r"vpdpbusd\s+(.+), %zmm\d+, %zmm\d+", assembly_of(spec, w_zero_point))
    assert sum("(%" in each for each in operands) >= 24
    assert not [each for each in operands if "(%rsp)" in each], "weights are loaded before the loop, and spilled"


def test_accumulators_are_no_memory_of_the_heap() -> None:
    func = LAYERS.case(ZEROS_AROUND, AVX512_VNNI, w_zero_point=0).kernel.func
    code = Compiled({"kernel": func}, VNNI_TARGET).code.inspect_source("ll")
    taken = re.findall(r"load ptr, ptr @__TVMBackendAllocWorkspace", code)
    assert len(taken) == 1, "the padded copy of the input, and nothing else"


def test_kernels_keep_to_their_buffers() -> None:
    run = run_python("import guarded_run; guarded_run.main()", cwd=Path(__file__).parent)
    assert run.returncode == 0, f"exit code {run.returncode} at {run.stdout.splitlines()[-1:]}: {run.stderr[-2000:]}"
