"""Every tensor of an exported QDQ file, asked for by its ONNX name in the quantize_info of the final module's kernels.

    python benchmarks/quantize_info.py                      every float ONNX model of the shared folder
    python benchmarks/quantize_info.py --model squeezenet   models whose file name holds "squeezenet"

For each model: profile it, quantize it, export it as ONNX QDQ, lower it to kernels. For each tensor that the file dequantizes:
the kernels that name it, and whether scale, zero_point, dtype, qmin and qmax are the file's. A kernel that clamps its result says
the clamp's bounds, within the dtype's: these are counted apart.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import tvm
from onnx import numpy_helper

import datasets
import octavo
from octavo.numerics import INTEGER_RANGE
from octavo.runtime.llvm_host import host_target

SAMPLES = {
    "squeezenet": (datasets.imagenet_normalized, 224),
    "mobilenet_v2": (datasets.plus_minus_one, 224),
    "yolox": (datasets.blue_first, 416),
}


def entries_of(module: tvm.IRModule) -> dict[str, list[tuple[str, Any]]]:
    """Return TensorId -> (role, entry) of every kernel that names it."""
    found: dict[str, list[tuple[str, Any]]] = {}
    for _, function in module.functions_items():
        info = function.attrs["quantize_info"] if function.attrs and "quantize_info" in function.attrs else {}
        for role, entry in info.items():
            if not isinstance(entry, str):
                found.setdefault(str(entry["id"]), []).append((str(role), entry))
    return found


def file_params(path: Path) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return TensorId -> scale and zero point of every tensor that a QDQ file quantizes, constants included.

    The export names what it adds by the TensorId: NAME_quantized are the integers, of a constant or of an activation.
    """
    graph = onnx.load(str(path)).graph
    constants = {item.name: numpy_helper.to_array(item) for item in graph.initializer}
    found: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    for node in graph.node:
        if node.op_type == "DequantizeLinear":
            # Biases have no zero point: int32 around 0.
            zero_point = constants[node.input[2]] if len(node.input) > 2 else np.zeros((), np.int32)
            found[node.input[0].removesuffix("_quantized")] = (constants[node.input[1]], zero_point)
    return found


def is_equal(entry: Any, scale: np.ndarray, zero_point: np.ndarray) -> bool:
    """Whether scale, zero point and dtype are the file's."""
    told_scale = np.atleast_1d(np.asarray(_numbers(entry["scale"]), np.float32))
    told_zero = np.atleast_1d(np.asarray(_numbers(entry["zero_point"]), np.int64))
    # One number may stand for each channel's.
    return (
        str(entry["dtype"]) == str(zero_point.dtype)
        and bool(np.all(told_scale == np.atleast_1d(scale)))
        and bool(np.all(told_zero == np.atleast_1d(zero_point.astype(np.int64))))
    )


def _numbers(value: Any) -> Any:
    return float(value) if isinstance(value, (int, float)) else [float(number) for number in value]


def check(path: Path) -> bool:
    """Print one row; return whether every tensor was found with the file's parameters."""
    preprocess, size = next(value for key, value in SAMPLES.items() if key in path.stem)
    model = octavo.load(path)
    batches, _ = datasets.images(preprocess, calibration=True, size=size, limit=4)
    profile = octavo.profile(model, batches)
    quantized = octavo.quantize(model, profile)
    with tempfile.TemporaryDirectory() as folder:
        octavo.export_onnx(quantized, Path(folder) / "q.onnx")
        params = file_params(Path(folder) / "q.onnx")
    with host_target(), tvm.transform.PassContext(opt_level=3):
        entries = entries_of(octavo.relax_pipeline(ids=quantized.tensors)(quantized.bound()))
    counts: Counter[str] = Counter()
    wrong: list[str] = []
    for name, (scale, zero_point) in params.items():
        told = entries.get(name, [])
        counts["tensors"] += 1
        counts["found"] += bool(told)
        low, high = INTEGER_RANGE[str(zero_point.dtype)]
        for role, entry in told:
            bounds = int(entry["qmin"]), int(entry["qmax"])
            counts["entries"] += 1
            counts["clamped"] += bounds != (low, high)
            if not is_equal(entry, scale, zero_point) or not (low <= bounds[0] <= bounds[1] <= high):
                wrong.append(f"{name} ({role}): {entry} in the module, {scale}, {zero_point} in the file")
        if not told:
            wrong.append(f"{name}: no kernel names it")
    row = (counts[key] for key in ("tensors", "found", "entries", "clamped"))
    print(f"| {path.stem} | {' | '.join(str(count) for count in row)} | {len(wrong)} |", flush=True)
    for line in wrong[:20]:
        print(f"    {line}")
    return not wrong


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="", help="only models whose file name holds this")
    args = parser.parse_args()
    files = sorted((datasets.shared_folder() / "models" / "onnx").glob("*fp32.onnx"))
    print("| model | tensors in the file | found | entries | of these with a clamp's bounds | wrong |")
    print("| --- | --- | --- | --- | --- | --- |")
    results = [check(path) for path in files if args.model in path.name]
    return 0 if results and all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
