"""Speed: every model, float and int8, by Octavo and its peers in the same process, in alternating rounds. The acceptance table.

    python benchmarks/speed.py FOLDER                               everything, 1 and 2 threads; FOLDER keeps the networks
    python benchmarks/speed.py FOLDER --only mobilenet --threads 1 --seconds 1
    python benchmarks/speed.py FOLDER --weights                     asymmetric against symmetric weights, ours alone

As on a CPU with AVX2 and no more; LiteRT cannot be limited, so it is left out:

    OCTAVO_TARGET=x86.avx2 ONEDNN_MAX_CPU_ISA=AVX2 python benchmarks/speed.py FOLDER --against openvino

Four kinds of rows: "float32" of the full-size networks (networks.py), "quantized" of the same, each runtime running what its own
quantizer made of them (Octavo; ONNX Runtime's quantize_static; NNCF for OpenVINO), and "int8" of the shared quantized files,
where all run the same file; with `--kinds bfloat16` the full-size networks again, downcast, against OpenVINO, the one peer that
has such a mode (on a CPU with AVX-512 BF16 it is its own choice for a float model). A cell is the median of one inference in ms;
ratio is the best peer's over ours: above 1, Octavo is faster. Spread is the middle half of our own times, as a share of the
median. Gain is our float32 over our int8.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

import datasets
import networks
import octavo
from octavo.compiler.text_table import markdown_table
from octavo.errors import OctavoError
from octavo.evaluation.bench.bench import OURS, processor_name
from octavo.evaluation.bench.peers import PEERS, PeerTask
from octavo.evaluation.bench.timing import Timing, time_alternating
from octavo.ir.graph.inputs import random_inputs

SHARED = (
    *("bench/mobilenet_v1_int8.tflite", "bench/mobilenet_v2_int8.tflite", "bench/resnet50_int8.tflite"),
    *("bench/inception_v3_int8.tflite", "tflite/mobilenet_v2_1.0_224_uint8.tflite"),
    *("tflite/mobilenet_v1_0.25_128_uint8.tflite", "tflite/resnet8_cifar10_int8.tflite", "tflite/dscnn_kws_int8.tflite"),
    *("tflite/mobilenet_v1_vww96_int8.tflite", "tflite/autoencoder_ad01_int8.tflite", "onnx/mobilenet_v2_1.0_224_qoperator.onnx"),
)
RIVALS = ("litert", "openvino", "onnxruntime")
CALIBRATION = 4
"""Samples: ranges decide no instruction, so a few serve."""

ASYMMETRY = 5
"""Zero point of the weights in `--weights`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One model at one thread count; times in ms by runtime."""

    model: str
    kind: str
    threads: int
    times: dict[str, float]
    spread: float
    notes: dict[str, str]

    @property
    def ours(self) -> float:
        """Our median."""
        return self.times[OURS]

    @property
    def ratio(self) -> float | None:
        """The best peer's median over ours; None without a peer."""
        peers = [time for name, time in self.times.items() if name != OURS]
        return min(peers) / self.ours if peers else None


def time_row(
    name: str,
    kind: str,
    threads: int,
    model: octavo.Model,
    files: dict[str, Path],
    seconds: float,
    *,
    precision: str = "float32",
) -> Row:
    """Time Octavo on `model` against each peer on its file."""
    inputs = {key: networks.sample(name, 0) for key in ("input",)} if name in networks.NETWORKS else random_inputs(model)
    calls: dict[str, Callable[[], object]] = {OURS: octavo.compile(model, threads=threads, precision=precision).bind(inputs).run}
    notes: dict[str, str] = {}
    for peer, path in files.items():
        try:
            task = PeerTask(path=path, model=model, inputs=inputs, threads=threads, precision=precision)
            calls[peer] = PEERS[peer].prepare(task).call
            calls[peer]()
        except (RuntimeError, ValueError) as error:  # a peer that cannot run the file is a note, not the end
            calls.pop(peer, None)
            notes[peer] = str(error).strip().splitlines()[0][:80]
    timings = time_alternating(calls, seconds=seconds)
    times = {key: timing.median_ms for key, timing in timings.items()}
    return Row(model=name, kind=kind, threads=threads, times=times, spread=_spread(timings[OURS]), notes=notes)


def _spread(timing: Timing) -> float:
    if len(timing.seconds) < 2:
        return 0.0
    low, middle, high = statistics.quantiles(timing.seconds, n=4)
    return (high - low) / middle


# ------------------------------------------------------------------------------------------------------- what is timed


def float_rows(name: str, folder: Path, threads: Sequence[int], seconds: float, rivals: Sequence[str] = RIVALS) -> Iterator[Row]:
    """Yield the rows of a full-size network: float32, then quantized by each runtime's own quantizer."""
    path = networks.network_file(name, folder)
    model = octavo.load(path)
    quantizers = {"onnxruntime": quantized_by_onnxruntime, "openvino": quantized_by_nncf}
    peers = [peer for peer in quantizers if peer in rivals]
    for count in threads:
        yield time_row(name, "float32", count, model, dict.fromkeys(peers, path), seconds)
    quantized = quantized_by_octavo(name, model, folder)
    files = {peer: quantizers[peer](name, path, folder) for peer in peers}
    for count in threads:
        yield time_row(name, "quantized", count, quantized, files, seconds)


def bfloat16_rows(name: str, folder: Path, threads: Sequence[int], seconds: float) -> Iterator[Row]:
    """Yield the rows of a full-size network downcast to bfloat16."""
    path = networks.network_file(name, folder)
    model = octavo.load(path)
    for count in threads:
        yield time_row(name, "bfloat16", count, model, {"openvino": path}, seconds, precision="bfloat16")


def shared_rows(file: str, threads: Sequence[int], seconds: float, rivals: Sequence[str] = RIVALS) -> Iterator[Row]:
    """Yield the rows of a shared quantized model: every peer that reads it."""
    path = datasets.shared_folder() / "models" / file
    model = octavo.load(path)
    files = {peer: path for peer in rivals if path.suffix in PEERS[peer].suffixes}
    for count in threads:
        yield time_row(path.stem, "int8", count, model, files, seconds)


def samples(name: str) -> list[np.ndarray]:
    """Return what quantizers see."""
    return [networks.sample(name, number) for number in range(1, CALIBRATION + 1)]


def quantized_by_octavo(name: str, model: octavo.Model, folder: Path) -> octavo.Model:
    """Quantize with the default recipe; the profile is kept in `folder`."""
    file = folder / f"{name}.profile.json"
    try:
        profile = octavo.Profile.load(file)
    except OctavoError:  # none yet, or one of an older version
        profile = octavo.profile(model, samples(name))
        profile.save(file)
    return octavo.quantize(model, profile)


def quantized_by_onnxruntime(name: str, path: Path, folder: Path) -> Path:
    """Quantize with quantize_static: uint8 activations, int8 weights per channel, QDQ, as ONNX Runtime advises for VNNI."""
    from onnxruntime import quantization

    class Reader(quantization.CalibrationDataReader):
        def __init__(self) -> None:
            self._feeds = iter([{"input": value} for value in samples(name)])

        def get_next(self) -> dict[str, np.ndarray]:
            return next(self._feeds, {})

    target = folder / f"{name}.onnxruntime.onnx"
    if not target.exists():
        types = {"activation_type": quantization.QuantType.QUInt8, "weight_type": quantization.QuantType.QInt8}
        prepared = folder / f"{name}.prepared.onnx"
        quantization.quant_pre_process(path, prepared, skip_symbolic_shape=True)
        quantization.quantize_static(prepared, target, Reader(), per_channel=True, **types)
        prepared.unlink()
    return target


def quantized_by_nncf(name: str, path: Path, folder: Path) -> Path:
    """Quantize with NNCF for OpenVINO; as a transformer where it is one."""
    import nncf
    import openvino

    logging.getLogger("nncf").setLevel(logging.ERROR)
    target = folder / f"{name}.nncf.xml"
    if not target.exists():
        kind = nncf.ModelType.TRANSFORMER if name == "bert_base" else None
        dataset = nncf.Dataset([{"input": value} for value in samples(name)])
        made = nncf.quantize(openvino.Core().read_model(path), dataset, model_type=kind, subset_size=CALIBRATION)
        openvino.save_model(made, target, compress_to_fp16=False)
    return target


# ------------------------------------------------------------------------------------------------------------- reports


def geometric_mean(values: Sequence[float]) -> float:
    """Return the geometric mean."""
    return math.exp(statistics.fmean(math.log(value) for value in values))


def table(rows: Sequence[Row]) -> str:
    """Return the rows, the geometric mean of each kind and thread count, and the gain of int8 over float32, as Markdown."""
    runtimes = [OURS, *(peer for peer in RIVALS if any(peer in row.times for row in rows))]
    cells = [
        (
            row.model,
            row.kind,
            str(row.threads),
            *(f"{row.times[runtime]:.3f}" if runtime in row.times else row.notes.get(runtime, "") for runtime in runtimes),
            "" if row.ratio is None else f"{row.ratio:.2f}",
            f"{row.spread:.0%}",
        )
        for row in rows
    ]
    headers = ("model", "kind", "threads", *runtimes, "ratio", "spread")
    lines = [markdown_table(headers, cells, numbers=tuple(range(2, len(headers)))), ""]
    for kind, threads in dict.fromkeys((row.kind, row.threads) for row in rows):
        ratios = [row.ratio for row in rows if (row.kind, row.threads) == (kind, threads) and row.ratio is not None]
        if ratios:
            lines.append(f"{kind}, {threads} threads: geometric mean {geometric_mean(ratios):.3f}, least {min(ratios):.2f}")
    floats = {(row.model, row.threads): row.ours for row in rows if row.kind == "float32"}
    for row in rows:
        if row.kind == "quantized" and (row.model, row.threads) in floats:
            lines.append(f"gain of {row.model}, {row.threads} threads: {floats[row.model, row.threads] / row.ours:.2f}")
    return "\n".join(lines)


def weights_table(names: Sequence[str], folder: Path, seconds: float) -> str:
    """Return the time of each network with asymmetric weights over that with symmetric ones, one thread."""
    lines: list[tuple[str, str, str, str]] = []
    for name in names:
        model = octavo.load(networks.network_file(name, folder))
        quantized = quantized_by_octavo(name, model, folder)
        inputs = {"input": networks.sample(name, 0)}
        calls = {
            label: octavo.compile(with_zero_points(quantized, folder / f"{name}.{label}.onnx", zero_point)).bind(inputs).run
            for label, zero_point in (("symmetric", 0), ("asymmetric", ASYMMETRY))
        }
        turns = time_alternating(calls, seconds=seconds, rounds=100)  # short ones: the two differ less than the machine drifts
        times = {label: timing.median_ms for label, timing in turns.items()}
        share = times["asymmetric"] / times["symmetric"] - 1
        lines.append((name, f"{times['symmetric']:.3f}", f"{times['asymmetric']:.3f}", f"{share:+.1%}"))
    return markdown_table(("model", "symmetric ms", "asymmetric ms", "slower by"), lines, numbers=(1, 2, 3))


def with_zero_points(model: octavo.Model, file: Path, zero_point: int) -> octavo.Model:
    """Return the quantized model, by way of ONNX, with another zero point of all weights: another function, the same shapes."""
    import onnx
    from onnx import numpy_helper

    octavo.export_onnx(model, file)
    graph = onnx.load(file).graph
    constants = {tensor.name: tensor for tensor in graph.initializer}
    for node in graph.node:
        stored = constants.get(node.input[0]) if node.op_type == "DequantizeLinear" else None
        if stored is None or stored.data_type != onnx.TensorProto.INT8 or len(node.input) < 3:
            continue
        zeros = constants[node.input[2]]
        moved = np.full_like(numpy_helper.to_array(zeros), zero_point)
        zeros.CopyFrom(numpy_helper.from_array(moved, zeros.name))
    made = onnx.load(file)
    made.graph.CopyFrom(graph)
    onnx.save(made, file)
    return octavo.load(file)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="keeps the networks and what quantizers made of them")
    parser.add_argument("--only", help="comma-separated parts of model names")
    parser.add_argument(
        "--kinds", default="float,shared", help="float, bfloat16: the full-size networks; shared: the quantized files"
    )
    parser.add_argument("--against", default=",".join(RIVALS), help="comma-separated peers; nothing times Octavo alone")
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--seconds", type=float, default=4.0, help="for each runtime of each row")
    parser.add_argument("--weights", action="store_true", help="asymmetric against symmetric weights instead")
    parser.add_argument("--json", type=Path, help="write the rows to this file, too")
    options = parser.parse_args(arguments)
    parts = options.only.split(",") if options.only else [""]
    names = [name for name in networks.NETWORKS if any(part in name for part in parts)]
    options.folder.mkdir(parents=True, exist_ok=True)
    if options.weights:
        print(weights_table(names, options.folder, options.seconds))
        return 0
    threads = [int(count) for count in options.threads.split(",")]
    rows: list[Row] = []
    kinds = options.kinds.split(",")
    rivals = [peer for peer in RIVALS if peer in options.against.split(",")]
    for name in names if "float" in kinds else ():
        rows.extend(float_rows(name, options.folder, threads, options.seconds, rivals))
    for name in names if "bfloat16" in kinds else ():
        rows.extend(bfloat16_rows(name, options.folder, threads, options.seconds))
    for file in SHARED if "shared" in kinds else ():
        if any(part in file for part in parts):
            rows.extend(shared_rows(file, threads, options.seconds, rivals))
    print(f"{processor_name()}\n\n{table(rows)}")
    if options.json:
        options.json.write_text(json.dumps([{**asdict(row), "ratio": row.ratio} for row in rows], indent=1), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
