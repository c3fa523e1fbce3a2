"""Profile, quantize, generate, build and run a float network on the toy NPU, and check every value that its C code computes.

    python examples/toynpu/run.py MODEL --data SAMPLES.npz [--calibrate 100] [--limit 200]

SAMPLES.npz holds one array of samples by the input's name or as `x`, as the network wants them but for the batch axis, and
labels `y` if there are any. The first samples calibrate, the next are run: through the vendor's C, and through the simulation of
the vendor's description in Octavo's own kernels. The last line says how much of the work runs on the NPU, how many values
differ, and top-1 beside float. It exits with 1 if a single value differs.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np
from generator import ToyNpu

import octavo
from octavo.errors import OctavoError

Arrays = list[np.ndarray]


def samples_of(model: octavo.Model, path: Path) -> tuple[Arrays, np.ndarray | None]:
    """Return batches of one sample as the model takes them, and their labels."""
    (name,) = model.input_ids
    shape, dtype = model.tensors[name].shape, model.tensors[name].dtype
    with np.load(path) as archive:
        stored = next((archive[key] for key in (str(name), model.tensors[name].source_name, "x") if key in archive.files), None)
        labels = archive["y"] if "y" in archive.files else None
    if stored is None:
        raise OctavoError(f"{path}: it holds neither {name!r} nor 'x'; save the samples under one of these names")
    if stored.shape[1:] not in (tuple(shape), tuple(shape[1:])):
        raise OctavoError(f"{path}: samples are {stored.shape[1:]}, expected {tuple(shape[1:])}")
    return [sample.reshape(shape).astype(dtype) for sample in stored], labels


def results(run: Any, batches: Arrays) -> Arrays:
    """Return the first output of each batch."""
    return [next(iter(run(batch).values())) for batch in batches]


def top1(outputs: Arrays, labels: np.ndarray) -> float:
    """Return the share of outputs whose largest value is the label's."""
    return float(np.mean([output.reshape(-1).argmax() == label for output, label in zip(outputs, labels, strict=True)]))


def main() -> int:
    """Run the whole way and print one closing line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--calibrate", type=int, default=100, help="samples that calibrate (100)")
    parser.add_argument("--limit", type=int, default=200, help="samples that are run (200)")
    args = parser.parse_args()

    npu = ToyNpu()
    model = octavo.load(args.model)
    batches, labels = samples_of(model, args.data)
    profile = octavo.profile(model, batches[: args.calibrate])
    quantized = octavo.quantize(model, profile, target=npu)
    explained = octavo.explain(quantized, target=npu)
    for op in explained.ops:
        if op.isa != npu.description.name and op.macs:
            print(f"not on the NPU: {op.op} {op.tensor}: {op.reason or op.isa}")
    macs = sum(op.macs for op in explained.ops)
    share = sum(op.macs for op in explained.ops if op.isa == npu.description.name) / macs

    chosen = batches[args.calibrate :][: args.limit] or batches[: args.limit]
    executed = results(octavo.compile(quantized, target=npu), chosen)
    simulated = results(octavo.compile(quantized), chosen)
    differ = sum(int((got != want).sum()) for got, want in zip(executed, simulated, strict=True))
    total = sum(output.size for output in executed)
    line = f"{100 * share:.1f}% of MACs on the NPU; {differ} of {total} values differ from the simulation ({len(chosen)} samples)"
    if labels is not None:
        truth = (labels[args.calibrate :] if len(batches) > args.calibrate else labels)[: len(chosen)]
        float_top1 = top1(results(octavo.compile(model), chosen), truth)
        line += f"; top-1 {top1(executed, truth):.4f}, float {float_top1:.4f}"
    print(line)
    return int(differ > 0)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except OctavoError as error:
        sys.exit(f"run.py: error: {error}")
