"""One small network for each kind of layer, timed against ONNX Runtime and OpenVINO: which kinds has nobody asked for yet?

    python benchmarks/layer_kinds.py                        all, worst first; one thread
    python benchmarks/layer_kinds.py --only conv,pool       those whose names hold one of these parts
    python benchmarks/layer_kinds.py --seconds 1            for each runtime of each row

Each network is one layer between two depthwise 1x1 convolutions (where it is no product itself), so that it reads and makes
integers as among other layers.
Octavo quantizes it (`preset="fast"`) and exports it; the peers run that very file, and the float file. Ratio is the fastest
peer's least time, of all four, over that of our int8: below 1 a peer is faster. All run in one process in alternating rounds.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper

import octavo
from layer_kind_networks import KINDS, Kind
from octavo.compiler.text_table import markdown_table
from octavo.evaluation.bench.bench import processor_name
from octavo.evaluation.bench.peers import PEERS, PeerTask
from octavo.evaluation.bench.timing import time_alternating

RIVALS = ("onnxruntime", "openvino")
FORMS = ("int8", "float")
CALIBRATION = 4
OPSET = 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One kind of layer.

    Parameters
    ----------
    times
        Least times in ms by runtime and form: "octavo int8".
    floats
        Ops that stay float in the quantized network.
    notes
        Why a peer is not there.
    """

    kind: str
    times: dict[str, float]
    floats: list[str]
    notes: dict[str, str]

    @property
    def ratio(self) -> float:
        """The fastest peer's time, in any form, over ours in int8."""
        return min((time for name, time in self.times.items() if not name.startswith("octavo")), default=np.inf) / self.ours

    @property
    def ours(self) -> float:
        """Our time in int8."""
        return self.times["octavo int8"]

    @property
    def said(self) -> str:
        """One line."""
        times = ", ".join(f"{name} {1e3 * time:.1f}" for name, time in self.times.items())
        return f"{self.kind}: {self.ratio:.2f} ({times} us); float: {' '.join(dict.fromkeys(self.floats)) or 'none'}"


def network(kind: Kind) -> onnx.ModelProto:
    """Return the float network of a kind, its weights seeded."""
    rng = np.random.default_rng(0)
    shape = ",".join(map(str, kind.shape))
    graph = onnx.parser.parse_graph(f"net (float[{shape}] input) => (float[] output) {{ {kind.nodes} }}")
    constants = {name: _constant(value, rng) for name, value in kind.constants.items()}
    if kind.stem:
        constants["stem"] = _of_channels(kind.shape, rng)
        graph.node.insert(0, helper.make_node("Conv", ["input", "stem"], ["x"], group=kind.shape[1]))
    else:
        for node in graph.node:
            node.input[:] = ["input" if name == "x" else name for name in node.input]
    graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in constants.items())
    result = [axis.dim_value for axis in _inferred(graph).graph.output[0].type.tensor_type.shape.dim]
    if kind.stem and len(result) > 2:
        for node in graph.node:
            node.output[:] = ["result" if name == "output" else name for name in node.output]
        graph.node.append(helper.make_node("Conv", ["result", "tail"], ["output"], group=result[1]))
        graph.initializer.append(numpy_helper.from_array(_of_channels(result, rng), "tail"))
    return _inferred(graph)


def _inferred(graph: onnx.GraphProto) -> onnx.ModelProto:
    """Return the model of a graph, with the shape of its output."""
    del graph.output[:]
    graph.output.append(helper.make_empty_tensor_value_info("output"))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=9)
    return onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True, data_prop=True)


def _of_channels(shape: Sequence[int], rng: np.random.Generator) -> np.ndarray:
    """Return weights of a depthwise convolution of tensors of a shape."""
    return rng.uniform(0.5, 1.5, (shape[1], 1, *(1,) * (len(shape) - 2))).astype(np.float32)


def _constant(value: tuple[int, ...] | np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return an array as it is; of a shape, normal numbers that keep the spread of what they are multiplied by."""
    if isinstance(value, np.ndarray):
        return value
    deviation = np.prod(value[1:]) ** -0.5 if len(value) > 1 else 0.1
    return (deviation * rng.standard_normal(value)).astype(np.float32)


def looked_at(name: str, kind: Kind, seconds: float) -> Row:
    """Quantize a network of one kind of layer, and time it in both forms in each runtime."""
    rng = np.random.default_rng(1)
    samples = [{"input": rng.standard_normal(kind.shape).astype(np.float32)} for _ in range(CALIBRATION)]
    with tempfile.TemporaryDirectory() as folder:
        files = {form: Path(folder) / f"{form}.onnx" for form in FORMS}
        onnx.save(network(kind), files["float"])
        model = octavo.load(files["float"])
        quantized = octavo.quantize(model, octavo.profile(model, samples), preset="fast")
        octavo.export_onnx(quantized, files["int8"])
        calls: dict[str, Callable[[], object]] = {}
        for form, ours in zip(FORMS, (quantized, model), strict=True):
            calls[f"octavo {form}"] = octavo.compile(ours, threads=1).bind(samples[0]).run
        notes: dict[str, str] = {}
        for peer in RIVALS:
            for form in FORMS:
                task = PeerTask(path=files[form], model=model, inputs=samples[0], threads=1)
                try:
                    call = PEERS[peer].prepare(task).call
                    call()
                    calls[f"{peer} {form}"] = call
                except Exception as error:  # what a peer cannot run, whatever it raises, is a note and not the end
                    notes[f"{peer} {form}"] = str(error).strip().splitlines()[0][:80]
        timings = time_alternating(calls, seconds=seconds)
    times = {key: 1e3 * min(timing.seconds) for key, timing in timings.items()}
    floats = [op.op for op in quantized.plan.float_ops]
    return Row(kind=name, times=times, floats=floats, notes=notes)


def table(rows: Sequence[Row]) -> str:
    """Return the rows as Markdown, worst first, and how many are behind."""
    runtimes = [f"{runtime} {form}" for runtime in ("octavo", *RIVALS) for form in FORMS]
    ordered = sorted(rows, key=lambda row: row.ratio)
    cells = [
        (
            row.kind,
            *(f"{1e3 * row.times[each]:.1f}" if each in row.times else "-" for each in runtimes),
            f"{row.ratio:.2f}",
            " ".join(dict.fromkeys(row.floats)),
        )
        for row in ordered
    ]
    headers = ("kind", *(f"{each}, us" for each in runtimes), "ratio", "float ops")
    notes = [f"{row.kind}: {peer} does not run it: {note}" for row in ordered for peer, note in row.notes.items()]
    behind = sum(row.ratio < 1 for row in rows)
    body = markdown_table(headers, cells, numbers=tuple(range(1, len(headers) - 1)))
    return "\n".join([body, "", *notes, f"{len(rows)} kinds, {behind} behind the fastest peer"])


def chosen(parts: str | None) -> Iterator[tuple[str, Kind]]:
    """Yield the kinds whose names hold one of the parts, all without any."""
    for name, kind in KINDS.items():
        if parts is None or any(part in name for part in parts.split(",")):
            yield name, kind


def main(arguments: list[str] | None = None) -> int:
    """Time all that are chosen, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="comma-separated parts of names of kinds")
    parser.add_argument("--seconds", type=float, default=0.2, help="for each runtime of each row")
    parser.add_argument("--json", type=Path, help="write the rows to this file, too")
    options = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    rows: list[Row] = []
    for name, kind in chosen(options.only):
        try:
            rows.append(looked_at(name, kind, options.seconds))
        except octavo.OctavoError as error:
            print(f"{name}: refused: {error}", flush=True)
            continue
        print(rows[-1].said, file=sys.stderr, flush=True)
    print(f"{processor_name()}\n\n{table(rows)}")
    if options.json:
        options.json.write_text(json.dumps([{**asdict(row), "ratio": row.ratio} for row in rows], indent=1), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
