"""Observers on random tensors of the final integer module of each shared quantized model: nothing changes, and they come off.

    python benchmarks/probes.py                     every quantized model
    python benchmarks/probes.py --model resnet8     models whose file name holds "resnet8"

For each model: lower it for the virtual machine, observe 20 random tensors (inputs of the model, too), run both modules
on random inputs and compare all outputs bit for bit; take the observers out and compare the modules structurally.
"""

from __future__ import annotations

import argparse
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm_ffi import structural_equal

import datasets
import octavo
from octavo.ir.graph.inputs import input_specs
from octavo.profiling.observers import ObservedValue
from octavo.runtime.llvm_host import host_target

QUANTIZED = ("int8", "uint8", "qoperator")


def final_module(model: octavo.Model) -> tvm.IRModule:
    """Return what Octavo's pipeline makes for TVM's virtual machine."""
    with host_target(), tvm.transform.PassContext(opt_level=3):
        return octavo.relax_pipeline(ids=model.tensors)(model.bound())


def tensors_of(module: tvm.IRModule) -> list[relax.Var]:
    """Return every variable that holds a tensor."""
    main = module["main"]
    bound = [binding.var for block in main.body.blocks for binding in block.bindings]
    return [var for var in (*main.params, *bound) if isinstance(var.ty, relax.TensorType)]


def outputs_of(module: tvm.IRModule, inputs: list[np.ndarray]) -> list[np.ndarray]:
    """Build and run a final module."""
    executable = relax.build(module, target=host_target(), relax_pipeline=None)
    results: Any = relax.VirtualMachine(executable, tvm.cpu())["main"](*(tvm.runtime.tensor(array) for array in inputs))
    return [results.numpy()] if isinstance(results, tvm.runtime.Tensor) else [result.numpy() for result in results]


def check(path: Path, count: int) -> bool:
    """Print one row; return whether the outputs are equal and the observers came off without a trace."""
    rng = np.random.default_rng(zlib.crc32(path.name.encode()))
    model = octavo.load(path)
    module = final_module(model)
    tensors = tensors_of(module)
    chosen = [tensors[index] for index in sorted(rng.choice(len(tensors), min(count, len(tensors)), replace=False))]
    seen: list[ObservedValue] = []
    observed = octavo.observe(module, chosen, seen.append)
    inputs = [_random(rng, spec.shape, spec.dtype) for spec in input_specs(model)]
    before, after = outputs_of(module, inputs), outputs_of(observed, inputs)
    is_equal = all(np.array_equal(a, b, equal_nan=a.dtype.kind == "f") for a, b in zip(before, after, strict=True))
    is_clean = bool(structural_equal(octavo.unobserve(observed), module))
    integers = [each for each in seen if each.raw.dtype.kind in "iu"]
    known = sum(each.real is not None for each in integers)
    outputs = "equal" if is_equal else "DIFFERENT"
    structure = "equal" if is_clean else "DIFFERENT"
    print(
        f"| {path.stem} | {len(tensors)} | {len(chosen)} | {len(seen)} | {known} of {len(integers)} | {outputs} | {structure} |",
        flush=True,
    )
    return is_equal and is_clean and len(seen) == len(chosen) and len(before) == len(after)


def _random(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    if dtype.startswith("float"):
        return rng.standard_normal(shape).astype(dtype)
    info = np.iinfo(dtype)
    return rng.integers(info.min, info.max, shape, dtype, endpoint=True)


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="", help="only models whose file name holds this")
    parser.add_argument("--tensors", type=int, default=20)
    args = parser.parse_args()
    folder = datasets.shared_folder() / "models"
    files = sorted(path for path in folder.rglob("*") if path.stem.endswith(QUANTIZED) and args.model in path.name)
    print("| model | tensors | observed | seen | integers dequantized | outputs | module after removal |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    results = [check(path, args.tensors) for path in files]
    return 0 if results and all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
