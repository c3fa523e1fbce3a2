"""Transformers in float32, int8 and weights of 4 bits: how fast, and how near the float model, beside ONNX Runtime and OpenVINO?

    python benchmarks/transformer_table.py bert.onnx --size b=1,s=16 --size b=1,s=128 [--bits 4] [--threads 1 2]
    python benchmarks/transformer_table.py --networks all --folder /tmp/networks [--layers 2] [--json table.json]

Networks of `NETWORKS` are made on the spot, and measured at the sizes that stand there; LLaMA's weights have 4 bits in blocks of
32. Each model is quantized (by the preset; on random samples) and compiled once for all sizes that its file leaves open ("open"),
and for each size alone. Of ONNX Runtime there are the float model, its dynamic and its static quantization with int8 weights per
channel, summed as its kernels do by default, or its MatMulNBits at accuracy level 4; of OpenVINO the float model in float32, and
that with int8 or int4 weights, whose activations it quantizes as it runs. Rows are measured in turn in one process, medians; dB
is the SQNR of all outputs beside ONNX Runtime's float model, on other random inputs; KL is of scores of next tokens, in nats.
"times" is the fastest peer's time over that of Octavo's quantized model of one size. "in float" is the share of time that it
spends in layers that compute in float, on one thread. A peer that can't run the model has no figure; the reason goes to stderr.
Octavo compiles for OCTAVO_TARGET, the peers use what the CPU has.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import tvm
from onnxruntime import quantization as ort_quantization

import octavo
from octavo.compiler.text_table import markdown_table
from octavo.evaluation.bench.roofline import roofline
from octavo.ir.graph.fixed_sizes import at_sizes
from octavo.ir.graph.inputs import input_specs
from octavo.numerics.statistics.metrics import sqnr_db
from open_sizes import Arrays, in_turn, inputs_of

Run = Callable[[Arrays], list[np.ndarray]]
Sizes = dict[str, int]
BLOCK, SAMPLES, SHORT = 32, 8, 64


@dataclass(frozen=True, kw_only=True)
class Network:
    """The bits of a network's weights, its sizes, and whether its first output is scores of next tokens."""

    bits: int = 8
    sizes: Sequence[Sizes] = ({},)
    has_scores: bool = False


_ROWS = (16, 128, 384)
NETWORKS = {
    "bert": Network(sizes=[{"s": rows} for rows in (*_ROWS, 1024)]),
    "gpt2": Network(sizes=[{"s": rows} for rows in (*_ROWS, 1024)], has_scores=True),
    "llama": Network(
        bits=4,
        sizes=[{"s": 1, "p": 128}, {"s": 1, "p": 1024}, *({"s": rows, "p": 1} for rows in (*_ROWS, 1024))],
        has_scores=True,
    ),
    "vit": Network(),
    "swin": Network(),
    "whisper_encoder": Network(),
    "whisper_decoder": Network(),
}


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


def static_onnx_runtime(path: Path, threads: int, samples: Sequence[Arrays]) -> Run:
    """Return the same of the model that it quantizes by samples."""

    class Reader(ort_quantization.CalibrationDataReader):
        def __init__(self) -> None:
            self._left = iter(samples)

        def get_next(self) -> Any:
            return next(self._left, None)

    with tempfile.TemporaryDirectory() as folder:
        prepared, quantized = Path(folder) / "prepared.onnx", Path(folder) / "static.onnx"
        ort_quantization.shape_inference.quant_pre_process(path, prepared, skip_symbolic_shape=True)
        int8 = ort_quantization.QuantType.QInt8
        ort_quantization.quantize_static(prepared, quantized, Reader(), per_channel=True, weight_type=int8)
        return onnx_runtime(quantized, threads)


def block_onnx_runtime(path: Path, threads: int) -> Run:
    """Return the same of the model whose weights it quantizes in blocks, of 4 bits, and computes with integers."""
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

    with tempfile.TemporaryDirectory() as folder:
        quantized = Path(folder) / "blocks.onnx"
        made = MatMulNBitsQuantizer(onnx.load(path), bits=4, block_size=BLOCK, is_symmetric=True, accuracy_level=4)
        made.process()
        made.model.save_model_to_file(str(quantized), use_external_data_format=True)
        return onnx_runtime(quantized, threads)


def openvino(path: Path, threads: int, bits: int = 32) -> Run:
    """Return the same of OpenVINO's model in float, or with weights of 8 or 4 bits and activations quantized at run time."""
    from openvino import Core

    core = Core()
    model: Any = core.read_model(path)
    config: dict[str, Any] = {"INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": "f32"}
    if bits < 32:
        import nncf

        modes = nncf.CompressWeightsMode
        how: dict[str, Any] = {"mode": modes.INT4_SYM, "group_size": BLOCK, "ratio": 1.0, "all_layers": True}
        model = nncf.compress_weights(model, **(how if bits == 4 else {"mode": modes.INT8_SYM}))
        config["DYNAMIC_QUANTIZATION_GROUP_SIZE"] = str(BLOCK if bits == 4 else 64)
    request = core.compile_model(model, "CPU", config).create_infer_request()
    return lambda inputs: [np.array(each) for each in request.infer(inputs).values()]


def peers_of(path: Path, threads: int, bits: int, samples: Sequence[Arrays]) -> dict[str, Run]:
    """Return the peers that can load the model."""
    makers: dict[str, Callable[[Path, int], Run]] = {"onnxruntime": onnx_runtime, "openvino": openvino}
    if bits == 4:
        makers["onnxruntime 4 bits"] = block_onnx_runtime
    else:
        makers["onnxruntime dynamic"] = dynamic_onnx_runtime
        makers["onnxruntime static"] = partial(static_onnx_runtime, samples=samples)
    makers[f"openvino int{bits}"] = partial(openvino, bits=bits)
    made: dict[str, Run] = {}
    for name, make in makers.items():
        try:
            made[name] = make(path, threads)
        except Exception as error:  # it may fail in any way
            print(f"{name}: {type(error).__name__}: {str(error).splitlines()[0]}", file=sys.stderr)
    return made


def _inputs(specs: Any, sizes: Sizes, seed: int) -> Arrays:
    """Return random inputs; positions go on behind the past."""
    made = inputs_of(specs, sizes, seed)
    for name, array in made.items():
        if name.startswith("position"):
            made[name] = np.broadcast_to(np.arange(array.shape[-1]) + sizes.get("p", 0), array.shape).astype(array.dtype)
    return made


class Ours:
    """A model in float and quantized: what quantizing was fitted to, executables of all sizes and of one."""

    def __init__(self, path: Path, network: Network, preset: Any) -> None:
        self._float: Any = octavo.load(path)
        self.specs = input_specs(self._float)
        self.bits = network.bits
        fewer = [{name: min(size, SHORT + 8 * number) for name, size in network.sizes[0].items()} for number in range(SAMPLES)]
        self.samples = [_inputs(self.specs, sizes, number) for number, sizes in enumerate(fewer)]
        profile = octavo.profile(self._float, self.samples)
        recipe = octavo.Recipe()
        if self.bits == 4:
            recipe = octavo.Recipe(weight_bits=4, weight_block=BLOCK, block_activations="int8")
        self._quantized: Any = octavo.quantize(self._float, profile, recipe=recipe, preset=preset)

    @property
    def name(self) -> str:
        """Of the quantized model."""
        return "octavo int8" if self.bits == 8 else f"octavo {self.bits} bits"

    def open_ones(self, threads: int) -> dict[str, Any]:
        """Return executables of all sizes; none where the file leaves none open."""
        if not self._float.sizes:
            return {}
        models = {"octavo float32, open": self._float, f"{self.name}, open": self._quantized}
        return {name: octavo.compile(model, threads=threads) for name, model in models.items()}

    def fixed(self, sizes: Sizes) -> Any:
        """Return the quantized model of one size."""
        model = self._quantized
        if not sizes:
            return model
        shapes = {name: array.shape for name, array in _inputs(self.specs, sizes, 0).items()}
        entries = {tensor_id: model.tensors[tensor_id] for tensor_id in model.input_ids}
        inputs = {tensor_id: replace(entry, shape=shapes[entry.source_name]) for tensor_id, entry in entries.items()}
        module = tvm.IRModule(at_sizes(dict(model.module.functions_items()), sizes))
        return replace(model, module=module, tensors={**model.tensors, **inputs}, sizes={})


def rows_of(path: Path, network: Network, threads: Sequence[int], preset: Any) -> list[dict[str, Any]]:
    """Return a row for each size and number of threads: milliseconds, dB and KL by name."""
    ours = Ours(path, network, preset)
    found: list[dict[str, Any]] = []
    for count in threads:
        opened, peers = ours.open_ones(count), peers_of(path, count, network.bits, ours.samples)
        for sizes in network.sizes:
            fixed = ours.fixed(sizes)
            executables = {**opened, ours.name: octavo.compile(fixed, threads=count)}
            row = _row(ours, executables, peers, _inputs(ours.specs, sizes, SAMPLES), has_scores=network.has_scores)
            said = ", ".join(f"{name}={size}" for name, size in sizes.items())
            in_float = _in_float(fixed, path.stem)
            found.append({"model": path.stem, "sizes": said, "threads": count, "in float": in_float, **row})
            print(json.dumps(found[-1]), file=sys.stderr, flush=True)
    return found


def _row(ours: Ours, executables: dict[str, Any], peers: dict[str, Run], inputs: Arrays, *, has_scores: bool) -> dict[str, Any]:
    calls: dict[str, Callable[[], Any]] = {name: each.bind(inputs).run for name, each in executables.items()}
    values: dict[str, list[np.ndarray]] = {name: list(each(inputs).values()) for name, each in executables.items()}
    for name, run in peers.items():
        try:
            values[name] = run(inputs)
        except Exception as error:
            print(f"{name}: {type(error).__name__}: {str(error).splitlines()[0]}", file=sys.stderr)
            continue
        calls[name] = partial(run, inputs)
    times = in_turn(calls)
    reference = values.pop("onnxruntime")
    fastest = min(time for name, time in times.items() if name in peers)
    return {
        "ms": times,
        "dB": {name: _sqnr(reference, each) for name, each in values.items()},
        "KL": {name: _divergence(reference[0], each[0]) for name, each in values.items()} if has_scores else {},
        "times": fastest / times[ours.name],
    }


def _in_float(fixed: Any, name: str) -> float:
    """Return the share of time in layers that compute in float."""
    layers = roofline(fixed, name).layers
    return sum(each.microseconds for each in layers if not each.integer) / sum(each.microseconds for each in layers)


def _divergence(reference: np.ndarray, values: np.ndarray) -> float:
    """Return the mean KL divergence of the shares that scores stand for."""
    real, other = (_logarithms(np.asarray(each, np.float64)) for each in (reference, values))
    return float((np.exp(real) * (real - other)).sum(-1).mean())


def _logarithms(scores: np.ndarray) -> np.ndarray:
    below = scores - scores.max(-1, keepdims=True)
    return below - np.log(np.exp(below).sum(-1, keepdims=True))


def _sqnr(reference: list[np.ndarray], values: list[np.ndarray]) -> float:
    flat = [np.concatenate([np.asarray(each, np.float64).ravel() for each in some]) for some in (reference, values)]
    return float(sqnr_db(*flat))


def table_of(rows: list[dict[str, Any]]) -> str:
    """Return the table: a column for each name, milliseconds, dB and KL."""
    names = list(dict.fromkeys(name for row in rows for name in row["ms"]))

    def cell(row: dict[str, Any], name: str) -> str:
        if name not in row["ms"]:
            return ""
        decibels, divergence = row["dB"].get(name), row["KL"].get(name)
        said = [f"{decibels:.1f}"] if decibels is not None and np.isfinite(decibels) else []
        said += [f"{divergence:.4f}"] if divergence is not None else []
        return f"{row['ms'][name]:.3f}" + (f" ({', '.join(said)})" if said else "")

    body = [
        (
            *(row["model"], row["sizes"], str(row["threads"])),
            *(cell(row, name) for name in names),
            *(f"{row['times']:.2f}", f"{row['in float']:.0%}"),
        )
        for row in rows
    ]
    return markdown_table(("model", "sizes", "threads", *(f"{name}, ms (dB, KL)" for name in names), "times", "in float"), body)


def _networks(args: argparse.Namespace) -> list[tuple[Path, Network]]:
    """Return files and what is measured of them; networks that are named are made where they are not there."""
    given = [{name: int(size) for name, size in (each.split("=") for each in text.split(","))} for text in args.size]
    found = [(path, Network(bits=args.bits, sizes=given or [{}])) for path in args.models]
    named = [*NETWORKS] if args.networks == ["all"] else args.networks
    for name in named:
        path = args.folder / f"{name}.onnx"
        if not path.exists():
            from transformer_networks import make

            path.parent.mkdir(parents=True, exist_ok=True)
            make(name, path, args.layers)
        found.append((path, replace(NETWORKS[name], sizes=given or NETWORKS[name].sizes)))
    return found


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", type=Path, nargs="*")
    parser.add_argument("--networks", nargs="+", default=[], choices=("all", *NETWORKS), help="make and measure these, too")
    parser.add_argument("--folder", type=Path, default=Path(), help="where networks are made, unless they are there")
    parser.add_argument("--layers", type=int, help="of the networks that are made, at most")
    parser.add_argument("--bits", type=int, choices=(8, 4), default=8, help="of the weights of files that are given")
    parser.add_argument("--preset", choices=("fast", "balanced", "best"), default="fast", help="how quantize searches")
    parser.add_argument("--size", action="append", default=[], help="NAME=N,NAME=N ...: all dimensions that the files leave open")
    parser.add_argument("--threads", type=int, nargs="+", default=[1])
    parser.add_argument("--json", type=Path, help="write the rows there, too")
    args = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for path, network in _networks(args):
        rows += rows_of(path, network, args.threads, args.preset)
    versions = f"octavo {octavo.__version__}, ONNX Runtime {onnxruntime.__version__}"
    print(f"{versions}, target {os.environ.get('OCTAVO_TARGET', 'of this CPU')}\n\n{table_of(rows)}")
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
