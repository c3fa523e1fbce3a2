"""Generate, build and run an int8 TFLite file on CMSIS-NN's C interface, and check every value of every sample.

    python examples/cmsisnn/run.py MODEL.tflite [--data SAMPLES.npz] [--limit 20]

SAMPLES.npz holds int8 samples by the input's name or as `x`; without it they are drawn at random. The generated C is compared
with the simulation of the description in Octavo's own kernels and, where ai-edge-litert is installed, with LiteRT's reference
kernels. The last line says how much of the work the C does and how many values differ. It exits with 1 if a single value differs.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from generator import CmsisNn

import octavo
from octavo.errors import OctavoError

Run = Callable[[np.ndarray], list[np.ndarray]]


def samples_of(model: octavo.Model, path: Path | None, limit: int) -> list[np.ndarray]:
    """Return batches as the model takes them."""
    if len(model.input_ids) != 1 or model.tensors[model.input_ids[0]].dtype != "int8":
        raise OctavoError("expected a model with one input, of int8: a quantized TFLite file")
    name = model.input_ids[0]
    shape = model.tensors[name].shape
    if path is None:
        rng = np.random.default_rng(0)
        return [rng.integers(-128, 128, shape).astype(np.int8) for _ in range(limit)]
    with np.load(path) as archive:
        stored = next((archive[key] for key in (str(name), model.tensors[name].source_name, "x") if key in archive.files), None)
    if stored is None:
        raise OctavoError(f"{path}: it holds neither {name!r} nor 'x'; save the samples under one of these names")
    if stored.dtype != np.int8 or stored.shape[1:] not in (tuple(shape), tuple(shape[1:])):
        raise OctavoError(f"{path}: samples are {stored.dtype} {stored.shape[1:]}, expected int8 {tuple(shape[1:])}")
    return [sample.reshape(shape) for sample in stored[:limit]]


def executed_by(executable: Any) -> Run:
    """Return what runs one batch and gives its outputs in order."""
    return lambda batch: list(executable(batch).values())


def reference_kernels(path: Path) -> Run | None:
    """Return what runs LiteRT's reference kernels; None where LiteRT is not installed."""
    try:
        from ai_edge_litert.interpreter import Interpreter, OpResolverType
    except ImportError:
        return None
    interpreter = Interpreter(str(path), num_threads=1, experimental_op_resolver_type=OpResolverType.BUILTIN_REF)
    interpreter.allocate_tensors()

    def run(batch: np.ndarray) -> list[np.ndarray]:
        interpreter.set_tensor(interpreter.get_input_details()[0]["index"], batch)
        interpreter.invoke()
        return [interpreter.get_tensor(detail["index"]) for detail in interpreter.get_output_details()]

    return run


def main() -> int:
    """Run the whole way and print one closing line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--limit", type=int, default=20, help="samples that are run (20)")
    args = parser.parse_args()

    vendor = CmsisNn()
    model = octavo.load(args.model)
    batches = samples_of(model, args.data, args.limit)
    executable = octavo.compile(model, target=vendor)
    ops = octavo.explain(executable).ops
    for op in ops:
        if op.isa != vendor.description.name and op.macs:
            print(f"not in CMSIS-NN: {op.op} {op.tensor}: {op.declined or op.reason}")
    share = sum(op.macs for op in ops if op.isa == vendor.description.name) / max(sum(op.macs for op in ops), 1)

    # The ops that the vendor leaves run in the same kernels on both sides, as they do without it.
    others = {"the simulation": executed_by(octavo.compile(model, target=[vendor.description, "cpu"]))}
    reference = reference_kernels(args.model)
    if reference is not None:
        others["LiteRT's reference kernels"] = reference
    found = [executed_by(executable)(batch) for batch in batches]
    total = sum(output.size for outputs in found for output in outputs)
    differ = {}
    for name, run in others.items():
        pairs = [pair for batch, outputs in zip(batches, found, strict=True) for pair in zip(outputs, run(batch), strict=True)]
        differ[name] = sum(int((got != want).sum()) for got, want in pairs)
    counts = ", ".join(f"{count} from {name}" for name, count in differ.items())
    print(f"{100 * share:.1f}% of MACs in CMSIS-NN's functions; of {total} values differ {counts} ({len(batches)} samples)")
    return int(any(differ.values()))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except OctavoError as error:
        sys.exit(f"run.py: error: {error}")
