"""Transformers in float32 and int8: how fast, and how near the float model, beside ONNX Runtime and OpenVINO?

    python benchmarks/transformer_speed.py bert.onnx --size b=1,s=16 --size b=1,s=128 [--threads 1,2] [--json table.json]

Each model is quantized by default (on random samples of many sizes) and compiled once for all sizes that its file leaves open.
Of ONNX Runtime there are the float model and its dynamic quantization with int8 weights per channel, summed as its kernels do by
default; of OpenVINO the float model in float32, and that with int8 weights, whose activations it quantizes as it runs. Rows are
measured in turn in one process, medians; dB is the SQNR of all outputs beside ONNX Runtime's float model, on other random inputs.
"times" is the fastest peer's time over that of Octavo's int8. A peer that can't run the model has no figure; the reason goes to
stderr.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from onnxruntime import quantization as ort_quantization

import octavo
from octavo.compiler.text_table import markdown_table
from octavo.numerics.statistics.metrics import sqnr_db
from open_sizes import Arrays, Subject, in_turn, inputs_of

Run = Callable[[Arrays], list[np.ndarray]]
SPAN = (1, 64)


def onnx_runtime(path: Path, threads: int) -> Run:
    """Return a function of the inputs: a session with everything that it optimizes by default."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return lambda inputs: session.run(None, inputs)


def dynamic_onnx_runtime(path: Path, threads: int) -> Run:
    """Return the same of the model that it quantizes dynamically."""
    with tempfile.TemporaryDirectory() as folder:
        quantized = Path(folder) / "dynamic.onnx"
        ort_quantization.quantize_dynamic(path, quantized, per_channel=True, weight_type=ort_quantization.QuantType.QInt8)
        return onnx_runtime(quantized, threads)


def openvino_float(path: Path, threads: int) -> Run:
    """Return the same of OpenVINO's float model."""
    return _openvino(path, threads, is_int8=False)


def openvino_int8(path: Path, threads: int) -> Run:
    """Return the same with int8 weights and activations that are quantized at run time."""
    return _openvino(path, threads, is_int8=True)


def _openvino(path: Path, threads: int, *, is_int8: bool) -> Run:
    import openvino

    core = openvino.Core()
    model: Any = core.read_model(path)
    config: dict[str, Any] = {"INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": "f32"}
    if is_int8:
        import nncf

        model = nncf.compress_weights(model, mode=nncf.CompressWeightsMode.INT8_SYM)
        config["DYNAMIC_QUANTIZATION_GROUP_SIZE"] = "64"
    request = core.compile_model(model, "CPU", config).create_infer_request()
    return lambda inputs: [np.array(each) for each in request.infer(inputs).values()]


PEERS = {
    "onnxruntime": onnx_runtime,
    "onnxruntime dynamic": dynamic_onnx_runtime,
    "openvino": openvino_float,
    "openvino int8": openvino_int8,
}


def peers_of(path: Path, threads: int) -> dict[str, Run]:
    """Return the peers that can load the model."""
    made: dict[str, Run] = {}
    for name, make in PEERS.items():
        try:
            made[name] = make(path, threads)
        except Exception as error:  # it may fail in any way
            print(f"{name}: {type(error).__name__}: {str(error).splitlines()[0]}", file=sys.stderr)
    return made


def rows_of(path: Path, given: list[dict[str, int]], threads: int) -> list[dict[str, Any]]:
    """Return a row for each size: milliseconds and dB by name."""
    kinds = {f"octavo {kind}": Subject(path, threads, SPAN, is_int8=kind == "int8").open for kind in ("float32", "int8")}
    peers = peers_of(path, threads)
    found: list[dict[str, Any]] = []
    for sizes in given:
        inputs = inputs_of(next(iter(kinds.values())).inputs, sizes, 1)
        calls: dict[str, Callable[[], Any]] = {name: each.bind(inputs).run for name, each in kinds.items()}
        values: dict[str, list[np.ndarray]] = {name: list(each(inputs).values()) for name, each in kinds.items()}
        for name, run in peers.items():
            try:
                values[name] = run(inputs)
            except Exception as error:
                print(f"{name}: {type(error).__name__}: {str(error).splitlines()[0]}", file=sys.stderr)
                continue
            calls[name] = lambda run=run, inputs=inputs: run(inputs)
        times = in_turn(calls)
        reference = values["onnxruntime"]
        decibels = {name: _sqnr(reference, each) for name, each in values.items() if name != "onnxruntime"}
        fastest = min(time for name, time in times.items() if name in peers)
        row = {"model": path.stem, "sizes": ", ".join(f"{name}={size}" for name, size in sizes.items()), "threads": threads}
        found.append({**row, "ms": times, "dB": decibels, "times": fastest / times["octavo int8"]})
    return found


def _sqnr(reference: list[np.ndarray], values: list[np.ndarray]) -> float:
    flat = [np.concatenate([np.asarray(each, np.float64).ravel() for each in some]) for some in (reference, values)]
    return float(sqnr_db(*flat))


def table_of(rows: list[dict[str, Any]]) -> str:
    """Return the table: a column for each name, milliseconds and dB."""
    names = list(dict.fromkeys(name for row in rows for name in row["ms"]))

    def cell(row: dict[str, Any], name: str) -> str:
        if name not in row["ms"]:
            return ""
        decibels = row["dB"].get(name)
        return f"{row['ms'][name]:.3f}" + (f" ({decibels:.1f})" if decibels is not None and np.isfinite(decibels) else "")

    body = [
        (row["model"], row["sizes"], str(row["threads"]), *(cell(row, name) for name in names), f"{row['times']:.2f}")
        for row in rows
    ]
    return markdown_table(("model", "sizes", "threads", *(f"{name}, ms (dB)" for name in names), "times"), body)


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", type=Path, nargs="+")
    parser.add_argument("--size", action="append", default=[], help="NAME=N,NAME=N ...: all dimensions that the files leave open")
    parser.add_argument("--threads", default="1", help="thread counts, comma-separated")
    parser.add_argument("--json", type=Path, help="write the rows there, too")
    args = parser.parse_args()
    given = [{name: int(size) for name, size in (each.split("=") for each in text.split(","))} for text in args.size] or [{}]
    rows: list[dict[str, Any]] = []
    for path in args.models:
        for threads in map(int, args.threads.split(",")):
            rows += rows_of(path, given, threads)
    print(f"octavo {octavo.__version__}, ONNX Runtime {onnxruntime.__version__}\n\n{table_of(rows)}")
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
