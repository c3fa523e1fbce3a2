"""Quantized networks on an NVIDIA GPU: are their bytes the CPU's, how long does a call take, does memory stay flat.

    python benchmarks/gpu.py prepare FOLDER                   compiles every quantized file of shared/models; needs no GPU
    python benchmarks/gpu.py prepare FOLDER --isas cuda.sm_90a --only resnet
    python benchmarks/gpu.py run FOLDER                       runs them; needs a GPU, NumPy and cuda-bindings, and no TVM
    python benchmarks/gpu.py run FOLDER --seconds 2 --calls 10000
    python benchmarks/gpu.py emulate FOLDER --only resnet8     compares what is prepared in the emulator, without a GPU

`prepare` writes for each model, ISA and input what `run` needs: the machine code with its plan, and arrays (constants, inputs,
and what the CPU's kernels make of these). `run` prints a table and writes it as gpu.md and gpu.json into FOLDER. Times are of a
call whose tensors lie on the GPU, medians; "call" also uploads and downloads.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

ISAS = ("cuda.sm_75", "cuda.sm_80", "cuda.sm_90a")
INPUTS = 3
"""Of each model: random ones, which reach the extremes of their dtype."""


@dataclass(frozen=True)
class Row:
    """One model on one GPU: values that differ from the CPU's, of how many; milliseconds; bytes that calls left behind."""

    model: str
    isa: str
    launches: int
    differing: int
    values: int
    run_ms: float
    call_ms: float
    leaked: int


def prepare(folder: Path, isas: Sequence[str], only: str) -> list[Path]:
    """Compile the quantized files of shared/models; return the plans written."""
    import octavo

    shared = Path(os.environ.get("OCTAVO_SHARED", Path(__file__).resolve().parents[2] / "shared"))
    files = [
        path for path in sorted((shared / "models").glob("*/*")) if path.suffix in (".tflite", ".onnx") and only in path.name
    ]
    folder.mkdir(parents=True, exist_ok=True)
    found: list[Path] = []
    for path in files:
        if "fp32" in path.name or "silero" in path.name or only not in path.name:  # the first two are float
            continue
        model = octavo.load(path)
        reference = octavo.compile(model)
        rng = np.random.default_rng(0)
        samples = [[_random(spec, rng) for spec in reference.inputs] for _ in range(INPUTS)]
        names = [spec.source_name for spec in reference.inputs]
        results = [list(reference(dict(zip(names, sample, strict=True))).values()) for sample in samples]
        arrays = {f"input{i}_{j}": array for i, sample in enumerate(samples) for j, array in enumerate(sample)}
        arrays |= {f"expected{i}_{j}": array for i, result in enumerate(results) for j, array in enumerate(result)}
        for isa in isas:
            code: Any = octavo.compile(model, target=isa).code
            plan = folder / f"{path.stem}.{isa}.plan"
            code.export(str(plan))
            np.savez(plan.with_suffix(".npz"), constants=code.constants, **arrays)
            found.append(plan)
            print(f"{plan.name}: {len(code.plan.launches)} launches, {code.constants.nbytes:,} bytes of constants", flush=True)
    return found


def _random(spec: Any, rng: np.random.Generator) -> np.ndarray:
    if spec.dtype == "float32":
        return rng.uniform(-1, 1, spec.shape).astype(np.float32)
    bounds = np.iinfo(spec.dtype)
    return rng.integers(bounds.min, bounds.max + 1, spec.shape).astype(spec.dtype)


def measure(plan: Path, seconds: float, calls: int) -> Row:
    """Run one plan on the first GPU."""
    from octavo.compiler.backends.cuda.driver import DeviceCall, LoadedModule
    from octavo.compiler.backends.cuda.plan_file import unpacked

    arrays = dict(np.load(plan.with_suffix(".npz")))
    stored = unpacked(plan.read_bytes(), arrays["constants"])
    module = LoadedModule(stored.plan, stored.cubins, stored.isa)
    call = DeviceCall(module)
    outputs = [np.empty(shape, dtype) for shape, dtype in stored.outputs]
    differing, values = 0, 0
    for i in range(INPUTS):
        call.run(_numbered(arrays, f"input{i}_"), outputs)
        for found, expected in zip(outputs, _numbered(arrays, f"expected{i}_"), strict=True):
            differing += int((found != expected).sum())
            values += expected.size
    sample = _numbered(arrays, "input0_")
    free = module.free_memory()
    for _ in range(calls):
        call.run(sample, outputs)
    return Row(
        model=plan.name.removesuffix(f".{stored.isa}.plan"),
        isa=stored.isa,
        launches=len(stored.plan.launches),
        differing=differing,
        values=values,
        run_ms=_median_ms(call.run_there, seconds),
        call_ms=_median_ms(lambda: call.run(sample, outputs), seconds),
        leaked=free - module.free_memory(),
    )


def emulated(plan: Path) -> tuple[int, int]:
    """Run one plan on its first input in the emulator; return how many values differ from the CPU's, and of how many."""
    tests = Path(__file__).resolve().parents[1] / "tests/compiler/backends/cuda"
    if not tests.is_dir():
        raise SystemExit(f"the emulator is part of Octavo's tests, and there is no {tests}: run this in a checkout")
    sys.path += [str(tests), str(tests.parents[2])]
    from emulated_runner import EmulatedRunner

    from octavo.compiler.backends.cuda.plan_file import unpacked

    arrays = dict(np.load(plan.with_suffix(".npz")))
    stored = unpacked(plan.read_bytes(), arrays["constants"])
    results = EmulatedRunner(stored.plan, stored.outputs)(_numbered(arrays, "input0_"))
    pairs = list(zip((each.numpy() for each in results), _numbered(arrays, "expected0_"), strict=True))
    return sum(int((found != expected).sum()) for found, expected in pairs), sum(expected.size for _, expected in pairs)


def _numbered(arrays: dict[str, np.ndarray], start: str) -> list[np.ndarray]:
    return [np.ascontiguousarray(arrays[f"{start}{j}"]) for j in range(sum(name.startswith(start) for name in arrays))]


def _median_ms(run: Callable[[], None], seconds: float) -> float:
    times: list[float] = []
    end = time.perf_counter() + seconds
    while not times or time.perf_counter() < end:
        start = time.perf_counter()
        run()
        times.append(1000 * (time.perf_counter() - start))
    return statistics.median(times)


def table(rows: Sequence[Row]) -> str:
    """Return the rows as Markdown."""
    head = "| model | ISA | launches | values that differ | ms on the GPU | ms a call | bytes left |"
    lines: list[str] = []
    for row in rows:
        times = f"{row.run_ms:.3f}", f"{row.call_ms:.3f}"
        cells = row.model, row.isa, row.launches, f"{row.differing} of {row.values}", *times, row.leaked
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join([head, "| --- | --- | ---: | ---: | ---: | ---: | ---: |", *lines])


def run(folder: Path, seconds: float, calls: int) -> list[Row]:
    """Measure every plan in a folder that this machine's GPU can run; print and write the table."""
    from octavo.compiler.backends.cuda.driver import present_isa

    isa = present_isa().name
    plans = sorted(folder.glob(f"*.{isa}.plan"))
    if not plans:
        raise SystemExit(f"{folder} holds no plan for {isa}: python benchmarks/gpu.py prepare {folder} --isas {isa}")
    rows = [measure(plan, seconds, calls) for plan in plans]
    text = table(rows)
    print(text)
    (folder / "gpu.md").write_text(text + "\n")
    (folder / "gpu.json").write_text(json.dumps([asdict(row) for row in rows], indent=2) + "\n")
    return rows


def _emulate(plans: Sequence[Path]) -> int:
    total = 0
    for plan in plans:
        start = time.perf_counter()
        differing, values = emulated(plan)
        total += differing
        print(f"{plan.stem}: {differing} of {values} values differ, {time.perf_counter() - start:.0f} s", flush=True)
    return int(total > 0)


def main(words: Sequence[str] | None = None) -> int:
    """Run the benchmark; 1 where bytes differ."""
    from octavo.errors import OctavoError

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    actions = parser.add_subparsers(dest="action", required=True)
    first = actions.add_parser("prepare")
    first.add_argument("folder", type=Path)
    first.add_argument("--isas", default=",".join(ISAS))
    first.add_argument("--only", default="")
    second = actions.add_parser("run")
    second.add_argument("folder", type=Path)
    second.add_argument("--seconds", type=float, default=1.0)
    second.add_argument("--calls", type=int, default=1000)
    third = actions.add_parser("emulate")
    third.add_argument("folder", type=Path)
    third.add_argument("--only", default="")
    args = parser.parse_args(words)
    try:
        if args.action == "prepare":
            return 0 if prepare(args.folder, args.isas.split(","), args.only) else 1
        if args.action == "emulate":
            return _emulate([plan for plan in sorted(args.folder.glob("*.plan")) if args.only in plan.name])
        return int(any(row.differing for row in run(args.folder, args.seconds, args.calls)))
    except OctavoError as error:
        print(f"gpu.py: error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    raise SystemExit(main())
