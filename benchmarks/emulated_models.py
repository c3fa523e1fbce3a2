"""Models compiled for ARM64 and RISC-V, run by QEMU, and for WebAssembly: their bytes against this machine's.

    python benchmarks/emulated_models.py                        every quantized model of the shared folder, as C libraries
    python benchmarks/emulated_models.py --python FOLDER        and in TVM's own runtime for ARM64 (set up in FOLDER)
    python benchmarks/emulated_models.py --only dscnn,resnet8 --levels neon,dotprod,i8mm,riscv64,riscv64-vector

Each cell: how many values differ from those of `octavo.compile` on this machine, of how many. A C library is linked with its
example by the CPU's cross compiler; in TVM's runtime the executable's file is loaded by `octavo.load_executable`. QEMU and the
compilers come by `make emulation`; for the levels of wasm32 install ziglang, which compiles and links for WASI, and wasmtime.
"""

from __future__ import annotations

import argparse
import importlib
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import accuracy
import datasets
import octavo
from arm64_python import Arm64Python, set_up
from octavo.compiler.text_table import markdown_table
from octavo.export.c_library import export_c
from octavo.ir.graph import Model
from octavo.ir.graph.inputs import random_inputs

Values = dict[str, np.ndarray]


@dataclass(frozen=True, kw_only=True, slots=True)
class Level:
    """A kind of CPU: the target of its code, what QEMU calls it, and the name of its machine."""

    target: str
    cpu: str
    machine: str = "aarch64"


LEVELS = {
    "neon": Level(target="cortex-a53", cpu="cortex-a53"),
    "dotprod": Level(target="cortex-a76", cpu="cortex-a76"),
    "i8mm": Level(target="llvm -mtriple=aarch64-linux-gnu -mattr=+dotprod,+i8mm", cpu="max"),
    "riscv64": Level(target="llvm -mtriple=riscv64-linux-gnu", cpu="rv64", machine="riscv64"),
    "riscv64-vector": Level(
        target="llvm -mtriple=riscv64-linux-gnu -mattr=+m,+a,+f,+d,+c,+v", cpu="rv64,v=true,vlen=128", machine="riscv64"
    ),
    "wasm32": Level(target="llvm -mtriple=wasm32-unknown-unknown", cpu="", machine="wasm32"),
    "wasm32-simd": Level(target="llvm -mtriple=wasm32-unknown-unknown -mattr=+simd128", cpu="", machine="wasm32"),
}
"""The first three are those of ARM64, with the kernels of `arm.neon`, `arm.dotprod` and `arm.i8mm`."""

RUN = """
import sys
import numpy as np
import octavo

for line in sys.stdin:
    file, given, made = line.split("\\t")
    outputs = octavo.load_executable(file)(dict(np.load(given)))
    np.savez(made.strip(), **outputs)
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """A file at a level: values that differ, by what ran it, of `values`; the ISAs of its kernels."""

    file: str
    level: str
    values: int
    isas: tuple[str, ...]
    different: dict[str, int] = field(default_factory=dict[str, int])


def differing(values: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray]) -> int:
    """Return how many values differ in a bit."""
    assert list(values) == list(expected)
    pairs = [(values[name], expected[name]) for name in expected]
    assert all((a.shape, a.dtype) == (b.shape, b.dtype) for a, b in pairs)
    return sum(int((_bits(a) != _bits(b)).any(axis=1).sum()) for a, b in pairs)


def _bits(value: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(value).reshape(-1, 1).view(np.uint8)


def c_library_values(model: Model, level: Level, inputs: Values, expected: Values, folder: Path) -> Values:
    """Build a model's C library and its example for a level, and run that."""
    made = export_c(model, folder / "library", target=level.target)
    given = [folder / f"input{number}" for number in range(len(inputs))]
    written = [folder / f"output{number}" for number in range(len(expected))]
    for path, value in zip(given, inputs.values(), strict=True):
        np.ascontiguousarray(value).tofile(path)
    if level.machine == "wasm32":
        _run_in_wasmtime(made.path, given + written)
    else:
        compiler = [f"{level.machine}-linux-gnu-gcc", "-static", "-Wall", "-Wextra", "-Werror"]
        subprocess.run([*compiler, "main.c", "libmodel.a", "-lm", "-o", "example"], cwd=made.path, check=True)
        emulator = [f"qemu-{level.machine}", "-cpu", level.cpu]
        subprocess.run([*emulator, str(made.path / "example"), *map(str, given + written)], check=True)
    return {
        name: np.fromfile(path, value.dtype).reshape(value.shape)
        for path, (name, value) in zip(written, expected.items(), strict=True)
    }


def _run_in_wasmtime(library: Path, files: Sequence[Path]) -> None:
    """Build the example from the library's source and objects, and run it; the files lie in one folder."""
    parts = [
        "main.c",
        "model.c",
        "model_constants.S",
        *sorted(f"objects/{path.name}" for path in (library / "objects").iterdir()),
    ]
    compiler = [sys.executable, "-m", "ziglang", "cc", "-target", "wasm32-wasi", "-O2", "-I."]
    subprocess.run([*compiler, *parts, "-lm", "-o", "example.wasm"], cwd=library, check=True)
    wasmtime: Any = importlib.import_module("wasmtime")
    store, linker = wasmtime.Store(engine := wasmtime.Engine()), wasmtime.Linker(engine)
    linker.define_wasi()
    system = wasmtime.WasiConfig()
    system.preopen_dir(str(files[0].parent), "/files")
    system.argv = ["example", *(f"/files/{path.name}" for path in files)]
    store.set_wasi(system)
    made = linker.instantiate(store, wasmtime.Module.from_file(engine, str(library / "example.wasm")))
    made.exports(store)["_start"](store)


def tvm_values(python: Arm64Python, level: Level, jobs: Sequence[tuple[Path, Path, Path]]) -> None:
    """Run executables on inputs (npz files) in one emulated process; each job's third file gets the outputs."""
    with tempfile.NamedTemporaryFile("w", suffix=".py") as script:
        script.write(RUN)
        script.flush()
        lines = "".join("\t".join(map(str, job)) + "\n" for job in jobs)
        python.run([script.name], level.cpu, text=lines)


def measure(files: Sequence[str], levels: Sequence[str], python: Arm64Python | None = None) -> list[Row]:
    """Run each file at each level; with a Python for ARM64 in TVM's runtime, too."""
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        jobs: dict[str, list[tuple[Path, Path, Path]]] = {level: [] for level in levels}
        wanted: list[Values] = []
        for file in files:
            model = octavo.load(datasets.shared_folder() / "models" / file)
            inputs = random_inputs(model)
            expected = octavo.compile(model)(inputs)
            np.savez(folder / f"{len(rows)}.npz", **inputs)
            given = folder / f"{len(rows)}.npz"
            for level in levels:
                isas = isas_of(octavo.explain(model, target=LEVELS[level].target))
                row = Row(file=file, level=level, values=sum(v.size for v in expected.values()), isas=isas)
                row.different["C library"] = differing(c_library_values(model, LEVELS[level], inputs, expected, folder), expected)
                if python is not None and LEVELS[level].machine == "aarch64":
                    paths = (folder / f"{len(rows)}.so", given, folder / f"{len(rows)}.out.npz")
                    octavo.compile(model, target=LEVELS[level].target).save(paths[0])
                    jobs[level].append(paths)
                rows.append(row)
                wanted.append(expected)
        if python is not None:
            for level, some in jobs.items():
                if some:
                    tvm_values(python, LEVELS[level], some)
            for number, (row, expected) in enumerate(zip(rows, wanted, strict=True)):
                if (path := folder / f"{number}.out.npz").exists():
                    row.different["TVM's runtime"] = differing(dict(np.load(path)), expected)
    return rows


def isas_of(explained: octavo.Explanation) -> tuple[str, ...]:
    """Return the ISAs of a model's kernels."""
    return tuple(sorted({op.isa for op in explained.ops if op.isa}))


def table(rows: Sequence[Row]) -> str:
    """Return the rows as Markdown."""
    kinds = list(dict.fromkeys(kind for row in rows for kind in row.different))
    cells = [
        (
            row.file,
            row.level,
            ", ".join(row.isas),
            *(f"{row.different[kind]} of {row.values}" if kind in row.different else "-" for kind in kinds),
        )
        for row in rows
    ]
    return markdown_table(("file", "CPU", "kernels", *kinds), cells, numbers=range(3, 3 + len(kinds)))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="comma-separated parts of file names")
    parser.add_argument(
        "--levels", default="neon,dotprod,i8mm", help=f"comma-separated, of {', '.join(LEVELS)} (default: ARM64's)"
    )
    parser.add_argument("--python", type=Path, metavar="FOLDER", help="run TVM's runtime for ARM64, too, which this folder gets")
    options = parser.parse_args(arguments)
    parts = options.only.split(",") if options.only else [""]
    files = [case.file for case in accuracy.CASES if any(part in case.file for part in parts)]
    python = None if options.python is None else set_up(options.python)
    rows = measure(files, options.levels.split(","), python)
    print(table(rows))
    return int(any(row.different[kind] for row in rows for kind in row.different))


if __name__ == "__main__":
    sys.exit(main())
