"""Models as C libraries: how large they are, whether their bytes are Python's, and how long a program takes to its first result.

    python benchmarks/c_libraries.py                        every quantized model of the shared folder
    python benchmarks/c_libraries.py --json libraries.json  and for measured_page.py
    python benchmarks/c_libraries.py --only dscnn,resnet8 --checks 10000

A program that reads an input file, runs the model once and writes the output is started again and again, Octavo's and a peer's
by turns, on one core: one of LiteRT's C API for TFLite files, of ONNX Runtime's for ONNX files (`c_programs/`, linked with
libraries in their wheels). With `--checks N`: N calls in one process, N in each of two threads, and some under valgrind, of code
for AVX2, which it knows.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

import accuracy
import datasets
import octavo
from octavo.compiler.text_table import markdown_table
from octavo.export.c_library import CFolder, export_c
from octavo.ir.graph import Model
from octavo.ir.graph.inputs import random_inputs

PROGRAMS = Path(__file__).with_name("c_programs")
PEERS = {".tflite": "litert", ".onnx": "onnxruntime"}
FLAGS = ("-O2", "-std=c11", "-Wall", "-Wextra", "-Werror")
ROUNDS = 15
VALGRIND_TARGET = "llvm -mcpu=x86-64-v3"
VALGRIND_CALLS = 3
Command = list[str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """A model: bytes of the library, its weights and its workspace; values that differ from Python's; ms to the first result."""

    model: str
    library: int
    weights: int
    workspace: int
    different: int
    octavo_ms: float
    peer: str
    peer_ms: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Files:
    """A model's input and output as files of raw values, and what the output must be."""

    given: Path
    wanted: Path
    made: Path

    @classmethod
    def of(cls, folder: Path, given: np.ndarray, expected: np.ndarray) -> Files:
        files = cls(given=folder / "input", wanted=folder / "expected", made=folder / "output")
        np.ascontiguousarray(given).tofile(files.given)
        np.ascontiguousarray(expected).tofile(files.wanted)
        return files


def build(compiler_input: Sequence[str], program: Path, folder: Path) -> Path:
    """Build a program in C."""
    subprocess.run(["gcc", *FLAGS, *compiler_input, "-o", str(program)], cwd=folder, check=True)
    return program


def peer_program(peer: str, folder: Path) -> Path:
    """Build a peer's program, linked with the library of its wheel."""
    if peer == "litert":
        library = _package("ai_edge_litert") / "libLiteRt.so"
    else:
        # It is looked for by its name without the minor version, under which the wheel has no file.
        (found,) = (_package("onnxruntime") / "capi").glob("libonnxruntime.so.*")
        library = folder / "libonnxruntime.so.1"
        library.unlink(missing_ok=True)
        library.symlink_to(found)
    linked = [str(PROGRAMS / f"{peer}.c"), str(library), f"-Wl,-rpath,{library.parent}"]
    return build(linked, folder / peer, folder)


def _package(name: str) -> Path:
    spec = importlib.util.find_spec(name)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


@contextmanager
def before_all_else() -> Generator[None]:
    """Let this process, and what it starts, run before others for as long as it wants to, where the system allows that."""
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    except PermissionError:
        yield
        return
    try:
        yield
    finally:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


def first_results(commands: Mapping[str, Command], rounds: int = ROUNDS) -> dict[str, float]:
    """Return the median time from a program's start to its end in ms, the programs by turns."""
    times: dict[str, list[float]] = {name: [] for name in commands}
    silent = [(os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0)]
    for number in range(rounds + 1):
        for name, command in commands.items():
            start = time.perf_counter()
            process = os.posix_spawn(command[0], command, os.environ, file_actions=silent)
            _, status = os.waitpid(process, 0)
            taken = 1e3 * (time.perf_counter() - start)
            if status:
                raise RuntimeError(f"{name} ended with {os.waitstatus_to_exitcode(status)}: {' '.join(command)}")
            if number:  # the first round fills the page cache
                times[name].append(taken)
    return {name: statistics.median(some) for name, some in times.items()}


def measure(path: Path, folder: Path, *, rounds: int = ROUNDS) -> Row:
    """Write a model's C library, compare its bytes with Python's, and time programs of it and of its peer."""
    model = octavo.load(path)
    (name, value), *_ = random_inputs(model).items()
    ((output, expected),) = octavo.compile(model)({name: value}).items()
    files = Files.of(folder, value, expected)
    made = export_c(model, folder / "library")
    example = build(["main.c", "libmodel.a", "-lm"], folder / "example", made.path)
    peer = PEERS[path.suffix]
    ours = [str(example), str(files.given), str(files.made)]
    theirs = [str(peer_program(peer, folder)), str(path), str(files.given), str(folder / "theirs")]
    if peer == "onnxruntime":
        theirs += [name, output, str(expected.nbytes), *map(str, value.shape)]
    with before_all_else():
        times = first_results({"octavo": ours, peer: theirs}, rounds)
    got = np.fromfile(files.made, expected.dtype)
    return Row(
        model=path.stem,
        library=(made.path / "libmodel.so").stat().st_size,
        weights=made.constants,
        workspace=made.workspace,
        different=int((got.view(f"V{got.itemsize}") != expected.ravel().view(f"V{got.itemsize}")).sum()),
        octavo_ms=times["octavo"],
        peer=peer,
        peer_ms=times[peer],
    )


def check(model: Model, folder: Path, calls: int) -> list[str]:
    """Call a library often, from two threads, and under valgrind; return what was done, or raise CalledProcessError."""
    (value,) = random_inputs(model).values()
    (expected,) = octavo.compile(model)(value).values()
    files = Files.of(folder, value, expected)
    made = export_c(model, folder / "library")
    example = build(["main.c", "libmodel.a", "-lm"], folder / "example", made.path)
    subprocess.run([str(example), str(files.given), str(files.made), str(calls)], check=True)
    _same(files)
    both = build([str(PROGRAMS / "two_threads.c"), "-I.", "libmodel.a", "-lm", "-pthread"], folder / "both", made.path)
    subprocess.run([str(both), str(files.given), str(files.wanted), str(calls)], check=True)
    done = [f"{calls} calls", f"2 x {calls} calls of two threads"]
    if shutil.which("valgrind"):
        _under_valgrind(export_c(model, folder / "library", target=VALGRIND_TARGET), files, folder)
        done.append(f"{VALGRIND_CALLS} calls under valgrind")
    return done


def _under_valgrind(made: CFolder, files: Files, folder: Path) -> None:
    example = build(["main.c", "libmodel.a", "-lm"], folder / "example", made.path)
    valgrind = ["valgrind", "--quiet", "--error-exitcode=9", "--leak-check=full", "--show-leak-kinds=all"]
    command = [*valgrind, str(example), str(files.given), str(files.made), str(VALGRIND_CALLS)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert not done.stderr, done.stderr
    _same(files)


def _same(files: Files) -> None:
    assert files.made.read_bytes() == files.wanted.read_bytes(), "the library's bytes are Python's"


def table(rows: Sequence[Row]) -> str:
    """Return the rows as Markdown."""
    headers = ("model", "`.so`", "weights", "workspace", "values differing", "Octavo", "LiteRT", "ONNX Runtime")
    lines = [
        (
            row.model,
            *(f"{size:,}" for size in (row.library, row.weights, row.workspace)),
            str(row.different),
            f"{row.octavo_ms:.1f}",
            *("-" if row.peer != peer else f"{row.peer_ms:.1f}" for peer in PEERS.values()),
        )
        for row in rows
    ]
    return markdown_table(headers, lines, numbers=range(1, len(headers)))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="comma-separated parts of file names")
    parser.add_argument("--checks", type=int, metavar="CALLS", help="call libraries so often instead of timing them")
    parser.add_argument("--json", type=Path, help="write the rows here, too")
    options = parser.parse_args(arguments)
    parts = options.only.split(",") if options.only else [""]
    paths = [datasets.shared_folder() / "models" / case.file for case in accuracy.CASES]
    paths = [path for path in paths if any(part in path.name for part in parts)]
    rows: list[Row] = []
    for path in paths:
        with tempfile.TemporaryDirectory() as name:
            if options.checks:
                print(path.name + ":", ", ".join(check(octavo.load(path), Path(name), options.checks)), flush=True)
            else:
                os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
                rows.append(measure(path, Path(name)))
    if rows:
        print(table(rows))
        print("\nFrom a program's start to its end after one result, in ms, on one core: medians of programs by turns.")
    if options.json:
        options.json.write_text(json.dumps([asdict(row) for row in rows], indent=1), encoding="utf-8")
    return int(any(row.different for row in rows))


if __name__ == "__main__":
    sys.exit(main())
