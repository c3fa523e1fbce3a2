"""Damaged files of every format that is read: does each load, or give one line, within ten seconds and little memory?

    python benchmarks/damaged_files.py [FORMAT ...] [--count 2000] [--seed 1] [--folder OTHER_TFLITE_FILES]

Formats: onnx, tflite, profile, plan, executable. Sound files are damaged as tests/conformance does it, and by bytes: those of
every ONNX node case of the installed package and of networks in four forms, of the TFLite cases of every op, of loops,
variables and layers, and those of a folder. A model that loads is compiled, one in four; a plan is applied, an executable is
called. Processes of their own do so, some hundred files each: one that ends takes only the file with it that it was at. A line
for each fault; exits with 1 where there was one.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import io
import itertools
import multiprocessing
import os
import random
import resource
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import tflite

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "conformance"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "frontends" / "tflite"))

import onnx_mutants
import test_flatten
import test_onnx_mutants
import tflite_cases
import tflite_mutants
from tflite_case import write as write_tflite

import octavo
import onnx_suite
from octavo.compiler.codegen import tir_passes

_CHUNK = 100
_MOST_SECONDS, _MOST_BYTES = 10.0, 2 << 30
_HANGS = 60
"""Seconds after which a process is ended."""
_LARGEST = 64 << 10
"""Bytes of a sound file: what is larger is mostly constants, whose damage nobody notices."""
_COMPILED = 4

Look = tuple[str, str, float, int]
"""How a file ended (loads, runs, refused, raw, lines), what there is to say, seconds, bytes of memory that it took."""


def mixed(data: bytes, rng: random.Random) -> bytes:
    """Cut a file, change a few of its bytes, cut something out, or repeat something."""
    kind = rng.randrange(4)
    start, end = sorted((rng.randrange(len(data)), rng.randrange(len(data))))
    if kind == 0:
        return data[:start]
    if kind == 1:
        return onnx_mutants.flipped(data, rng)
    return data[:start] + data[end:] if kind == 2 else data[:end] + data[start:]


def by_bytes(data: bytes, count: int, seed: int) -> Iterator[bytes]:
    for number in range(count):
        yield mixed(data, random.Random(seed * 100_003 + number))


def models(sound: Sequence[Any], mutants: Callable[..., Iterator[bytes]], count: int, seed: int) -> Iterator[bytes]:
    """Yield damaged models, four of each sound one in turns that are drawn anew for each seed."""
    order = random.Random(seed).sample(range(len(sound)), len(sound))
    rounds = itertools.chain.from_iterable(
        mutants(sound[place], 4, seed + 1009 * number) for number in itertools.count() for place in order
    )
    return itertools.islice(rounds, count)


def onnx_files() -> list[onnx.ModelProto]:
    rng = np.random.default_rng(0)
    networks = [test_onnx_mutants.network(rng, form) for form in test_onnx_mutants.FORMS]
    return networks * 20 + [case.model for case in onnx_suite.cases() if case.model.ByteSize() <= _LARGEST]


def tflite_files(folder: Path | None) -> list[bytes]:
    files = [make() for make in test_flatten.CASES.values()] + [test_flatten.two_signatures()]
    for op in tflite_cases.SUITE:
        cases = list(tflite_cases.cases(op))
        files += [write_tflite([cases[0]]), write_tflite([cases[-1]]), write_tflite(cases[:3])]
    for path in sorted(folder.rglob("*")) if folder is not None else ():
        if path.is_file() and path.stat().st_size <= _LARGEST and path.read_bytes()[4:8] == b"TFL3":  # some are damaged already
            files.append(path.read_bytes())
    return [data for data in files if has_ops(data)]


def has_ops(data: bytes) -> bool:
    model = tflite.Model.GetRootAs(data, 0)
    return model.SubgraphsLength() > 0 and model.Subgraphs(0).OperatorsLength() > 0


def small_network() -> Any:
    return octavo.load(test_onnx_mutants.network(np.random.default_rng(0), "float"))


def samples() -> np.ndarray:
    return np.random.default_rng(1).normal(size=(6, *test_onnx_mutants.SHAPE[1:])).astype(np.float32)


def load_model(path: Path, number: int) -> str:
    model = octavo.load(path)
    if number % _COMPILED != _COMPILED - 1:  # the others are cut, or have bytes changed
        return "loads"
    octavo.compile(model)
    return "runs"


def files_of(kind: str, count: int, seed: int, folder: Path | None, here: Path) -> tuple[Iterator[bytes], Callable[..., str]]:
    """Return damaged files of a format, and what is done with each."""
    if kind == "onnx":
        return models(onnx_files(), onnx_mutants.mutants, count, seed), load_model
    if kind == "tflite":
        return models(tflite_files(folder), tflite_mutants.mutants, count, seed), load_model
    model, path = small_network(), here / "sound"
    profile = octavo.profile(model, [samples()])
    if kind == "profile":
        profile.save(path)
        return by_bytes(path.read_bytes(), count, seed), lambda path, number: octavo.Profile.load(path) and "loads"
    quantized = octavo.quantize(model, profile)
    if kind == "plan":
        quantized.plan.save(path)
        return by_bytes(path.read_bytes(), count, seed), lambda path, number: octavo.quantize(model, plan=path) and "runs"
    octavo.compile(quantized).save(path)

    def run(path: Path, number: int) -> str:
        octavo.load_executable(path)(samples()[:1])
        return "runs"

    return by_bytes(path.read_bytes(), count, seed), run


def look(path: Path, number: int, read: Callable[..., str]) -> Look:
    """Read one file."""
    started, before = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    said, printed = "", io.StringIO()
    try:
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            kind = read(path, number)
    except octavo.OctavoError as error:
        kind, said = "refused", str(error)
        if any(ord(character) < 32 for character in said):
            kind, said = "lines", repr(said)
    except Exception as error:
        kind, said = "raw", f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[-1]}"
    if printed.getvalue():
        kind, said = "lines", repr(printed.getvalue())
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    return kind, said[:300], time.process_time() - started, grown * 1024


def run(files: Sequence[bytes], read: Callable[..., str], path: Path) -> Iterator[Look]:
    """Yield what became of each file."""
    context = multiprocessing.get_context("fork")  # what is imported and prepared need not be so again
    position = 0
    while position < len(files):
        receiver, sender = context.Pipe(duplex=False)

        def work(first: int = position, sender: Any = sender) -> None:
            warnings.simplefilter("ignore")
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # LLVM's and TVM's own words
            for number in range(first, min(first + _CHUNK, len(files))):
                path.write_bytes(files[number])
                sender.send(look(path, number, read))

        worker = context.Process(target=work)
        worker.start()
        sender.close()
        end = min(position + _CHUNK, len(files))
        try:
            while position < end:
                if not receiver.poll(_HANGS * 10):
                    yield "hangs", f"not done in {_HANGS * 10} s", float("inf"), 0
                    position += 1
                    break
                yield receiver.recv()
                position += 1
        except EOFError:
            worker.join()
            yield "crashed", f"exit code {worker.exitcode}", 0.0, 0
            position += 1
        worker.kill()
        worker.join()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kinds = ("onnx", "tflite", "profile", "plan", "executable")
    parser.add_argument("formats", nargs="*", choices=[*kinds, []], default=[])
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--keep", type=Path, help="folder for files at which something was wrong")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    tir_passes.KERNEL_LEVEL = 0  # the same code, compiled sooner
    faults = 0
    for kind in options.formats or kinds:
        counts: collections.Counter[str] = collections.Counter()
        slowest, most = 0.0, 0
        with tempfile.TemporaryDirectory() as here:
            made, read = files_of(kind, options.count, options.seed, options.folder, Path(here))
            files = list(made)
            for number, (end, said, seconds, size) in enumerate(run(files, read, Path(here) / f"damaged.{kind}")):
                counts[end] += 1
                slowest, most = max(slowest, seconds), max(most, size)
                if end in ("loads", "runs", "refused") and seconds <= _MOST_SECONDS and size <= _MOST_BYTES:
                    continue
                faults += 1
                print(f"{kind} {number}: {end} {said} [{seconds:.1f} s, {size >> 20} MiB]", flush=True)
                if options.keep is not None:
                    options.keep.mkdir(exist_ok=True)
                    (options.keep / f"{options.seed}-{number}.{kind}").write_bytes(files[number])
        shown = ", ".join(f"{count} {name}" for name, count in counts.most_common())
        print(f"{kind}: {len(files)} files: {shown}; slowest {slowest:.1f} s, most memory {most >> 20} MiB", flush=True)
    return int(faults > 0)


if __name__ == "__main__":
    sys.exit(main())
