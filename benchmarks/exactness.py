"""Exactness on a CPU with AVX2 and no more: each shared quantized file in each runtime against the exact evaluation of the file.

    python benchmarks/exactness.py                                  every file; minutes, most of them in the emulator
    python benchmarks/exactness.py --only dscnn --samples 400
    python benchmarks/exactness.py --no-emulation                   Octavo and OpenVINO alone

Exact is the framework's own evaluation on this CPU where it is exact, as `octavo evaluate` asks for it: of TFLite files LiteRT's,
whose kernels saturate on no CPU, of ONNX files ONNX Runtime's with `session.x64quantprecision`.

Octavo compiles for x86.avx2 and OpenVINO runs with ONEDNN_MAX_CPU_ISA=AVX2. ONNX Runtime and LiteRT take what the CPU has, so
they run in a process that QEMU emulates (`make emulation` installs it), whose CPU has AVX2 and no AVX-512; without it their cells
are "-", as are those of a runtime that doesn't read the file. All have one thread, their defaults, and the same few samples. Last
it prints whether a sum of two products that leaves 16 bits came out right in each: a runtime that multiplies by vpmaddubsw alone
saturates it, one on a CPU with VNNI does not.

Softmax is cut off TFLite files: of a thousand classes nearly all have 0 behind it, whatever was before. A cell says how many of
the output's values differ, by how many quantization steps at most, and top-1, or where there are no labels how often the class is
that of the exact evaluation.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

import accuracy
import octavo
from octavo.compiler.text_table import markdown_table
from octavo.evaluation.peers import PEERS

ISA = "x86.avx2"
MACS = 6e9
"""Multiply-accumulates of all samples of a file together: about a minute in the emulator."""

SAMPLES = (2, 200)
"""At least and at most so many of a file."""

EMULATOR = ("qemu-x86_64", "-cpu", "max")
RUNTIMES = {"litert": "LiteRT", "onnxruntime": "ONNX Runtime", "openvino": "OpenVINO"}
READS = {"litert": (".tflite",), "onnxruntime": (".onnx",), "openvino": (".onnx", ".tflite")}
EMULATED = ("litert", "onnxruntime")
OURS = "Octavo"


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """One runtime's values against the exact ones."""

    different: float
    largest: float
    top1: float | None
    agreement: float

    def __str__(self) -> str:
        classes = f"{self.agreement:.3f} agree" if self.top1 is None else f"{self.top1:.3f}"
        return f"{self.different:.2%}, {self.largest:.0f}, {classes}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One file; a runtime that could not run it has no cell."""

    file: str
    samples: int
    exact: Cell
    cells: dict[str, Cell]


def measure(case: accuracy.Case, *, limit: int | None = None, emulation: bool = True) -> Row:
    """Run one file in all runtimes."""
    path = accuracy.datasets.shared_folder() / "models" / case.file
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if path.suffix == ".tflite":
            path = without_softmax(path, folder / path.name)
        model = octavo.load(path)
        executable = octavo.compile(model, target=ISA)
        macs = sum(op.macs or 0 for op in octavo.explain(executable).ops)
        samples, labels = _samples(case, executable, limit or int(np.clip(MACS / macs, *SAMPLES)))
        step = output_step(model)
        run = PEERS["litert" if path.suffix == ".tflite" else "onnxruntime"](path, 1).run
        exact = np.stack([run([x])[0].reshape(-1) for x in samples])

        def cell(values: np.ndarray) -> Cell:
            return compare(values, exact, step, labels)

        ours = np.stack([next(iter(executable(x).values())).reshape(-1) for x in samples])
        cells = {OURS: cell(ours)}
        for runtime in RUNTIMES:
            values = peer_values(runtime, path, samples, folder, emulation=emulation)
            if values is not None:
                cells[runtime] = cell(values)
        return Row(file=case.file, samples=len(samples), exact=cell(exact), cells=cells)


def output_step(model: octavo.Model) -> float:
    """Return the quantization step of the output as the file gives it out: 1 for integers, else the scale it dequantizes by."""
    function = model.bound()["main"]
    values = {binding.var: binding.value for block in function.body.blocks for binding in block.bindings}
    last = values[function.body.body]
    return float(last.args[1].value.numpy()) if last.op.name == "relax.dequantize" else 1.0


def compare(values: np.ndarray, exact: np.ndarray, step: float, labels: np.ndarray | None) -> Cell:
    """Return a cell: values and exact ones in rows by sample."""
    steps = np.rint(np.abs(values.astype(np.float64) - exact.astype(np.float64)) / step)
    chosen = values.argmax(axis=1)
    return Cell(
        different=float(np.mean(steps > 0)),
        largest=float(steps.max()),
        top1=None if labels is None else float(np.mean(chosen == labels)),
        agreement=float(np.mean(chosen == exact.argmax(axis=1))),
    )


def _samples(case: accuracy.Case, executable: octavo.Executable, count: int) -> tuple[list[np.ndarray], np.ndarray | None]:
    if case.data is None:
        return accuracy.random_inputs(executable, min(count, accuracy.RANDOM_SAMPLES)), None
    samples, labels = case.data(count)
    return samples, labels + case.first_class


def peer_values(runtime: str, path: Path, samples: Sequence[np.ndarray], folder: Path, *, emulation: bool) -> np.ndarray | None:
    """Return a runtime's outputs, in rows by sample; None where it can't be asked, and where it fails, which it says then."""
    if path.suffix not in READS[runtime]:
        return None
    if runtime in EMULATED and not (emulation and shutil.which(EMULATOR[0])):
        return None
    given, made = folder / "samples.npy", folder / "values.npy"
    np.save(given, np.stack(samples))
    emulator = EMULATOR if runtime in EMULATED else ()
    script = Path(__file__).with_name("peer_values.py")
    command = [*emulator, sys.executable, str(script), runtime, str(path), str(given), str(made)]
    environment = {**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX2", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        print(f"{RUNTIMES[runtime]} cannot run {path.name}:\n{done.stderr[-500:]}", file=sys.stderr)
        return None
    return np.load(made)


def without_softmax(path: Path, target: Path) -> Path:
    """Write a TFLite file anew whose output is what its last op, a softmax, reads; return `path` where there is none."""
    from ai_edge_litert import schema_py_generated as schema

    data = bytearray(path.read_bytes())
    model = schema.Model.GetRootAsModel(data, 0)
    graph = model.Subgraphs(0)
    last = graph.Operators(graph.OperatorsLength() - 1)
    if model.OperatorCodes(last.OpcodeIndex()).BuiltinCode() != schema.BuiltinOperator.SOFTMAX:
        return path
    output = np.frombuffer(data, np.int32, 1, graph._tab.Vector(graph._tab.Offset(8)))  # "outputs", the third field
    assert output[0] == last.Outputs(0)
    output[0] = last.Inputs(0)
    target.write_bytes(data)
    return target


def saturates(runtime: str, *, emulation: bool = True) -> bool | None:
    """Say whether a convolution's sum of 255 x 127 and 255 x 127 comes out wrong; None where the runtime can't be asked."""
    body = "q = QuantizeLinear(x, one, z) d = DequantizeLinear(q, one, z) k = DequantizeLinear(w, one, wz) c = Conv(d, k) "
    body += "r = QuantizeLinear(c, s, z) y = DequantizeLinear(r, s, z)"
    graph = onnx.parser.parse_graph(f"g (float[1, 64, 4, 4] x) => (float[1, 64, 4, 4] y) {{ {body} }}")
    values = {"one": np.float32(1), "s": np.float32(2**13), "z": np.uint8(0), "wz": np.int8(0)}
    values["w"] = np.full((64, 64, 1, 1), 127, np.int8)
    graph.initializer.extend(numpy_helper.from_array(np.asarray(value), name) for name, value in values.items())
    made = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 13)], ir_version=8)
    with tempfile.TemporaryDirectory() as name:
        onnx.save(made, Path(name, "m.onnx"))
        sample = np.full((1, 64, 4, 4), 255, np.float32)
        values_of = peer_values(runtime, Path(name, "m.onnx"), [sample], Path(name), emulation=emulation)
    exact = np.rint(255 * 127 * 64 / 2**13) * 2**13
    return None if values_of is None else bool((values_of != exact).any())


def table(rows: Sequence[Row]) -> str:
    """Return the rows as Markdown."""
    headers = ("file", "samples", "exact", OURS, *RUNTIMES.values())
    lines: list[tuple[str, ...]] = []
    for row in rows:
        exact = "" if row.exact.top1 is None else f"{row.exact.top1:.3f}"
        lines.append((row.file, str(row.samples), exact, *(str(row.cells.get(each, "-")) for each in (OURS, *RUNTIMES))))
    return markdown_table(headers, lines, numbers=(1, 2))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="comma-separated parts of file names")
    parser.add_argument("--samples", type=int, help="of each file (default: as many as fit into a minute of emulation)")
    parser.add_argument("--no-emulation", action="store_true", help="leave out what needs QEMU")
    options = parser.parse_args(arguments)
    parts = options.only.split(",") if options.only else [""]
    emulation = not options.no_emulation
    rows: list[Row] = []
    for case in accuracy.CASES:
        if any(part in case.file for part in parts):
            rows.append(measure(case, limit=options.samples, emulation=emulation))
    print(table(rows), end="\n\nA sum of two products beyond 16 bits: ")
    answers = {True: "saturates", False: "is exact", None: "was not asked"}
    print(", ".join(f"{RUNTIMES[each]} {answers[saturates(each, emulation=emulation)]}" for each in ("onnxruntime", "openvino")))
    return 0


if __name__ == "__main__":
    sys.exit(main())
