"""`octavo evaluate`: whether a model is as good as another one, on samples, for people and for continuous integration."""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..compiler.text_table import markdown_table
from ..errors import DataError
from ..evaluation import TASKS, Evaluation, InferenceModel, TokenWindows, evaluate, has_scale_to_blame, load_inference_model
from .calibration import Source, Stream, add_data, open_data
from .options import Subcommands, add_command, add_json, add_shapes, add_state, add_target, add_threads, sample_limit
from .progress import progress_bar
from .samples import read_samples
from .sources import UsageError, shape_options
from .texts import read_tokens

_LAYERS = 8
"""Layers that are shown."""
EXIT_MISSED = 1


def add_to(commands: Subcommands) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "evaluate",
        call,
        example="octavo evaluate m.onnx m.int8.onnx --data x.npz\n"
        "  octavo evaluate m.onnx m.int8.onnx --data x.npz --labels y.npy --max-drop 0.01\n"
        "  octavo evaluate m.int8.tflite litert:m.int8.tflite --data x.npz --min-agreement 0.99\n"
        "  octavo evaluate m.onnx m.int8.onnx --data tokens.npy --task language --max-kl 0.01",
    )
    what = ".onnx, .tflite or an executable; onnxruntime:m.onnx or litert:m.tflite in that runtime, evaluated exactly"
    parser.add_argument("reference", metavar="FLOAT", help=f"what is taken for right: {what}")
    parser.add_argument("candidate", metavar="INT8", help="what is judged: the same kinds of file, or a plan of FLOAT, .json")
    add_data(parser)
    parser.add_argument(
        "--labels",
        type=Path,
        metavar="FILE",
        help="a class for each sample (.npy, .npz, or .txt with one a line), of a sequence for each step; of a detector rows of "
        "sample, class, left, top, right, bottom in pixels; of masks a class for each pixel; of images the images that they "
        "should be",
    )
    parser.add_argument(
        "--task",
        choices=TASKS,
        default="auto",
        metavar="TASK",
        help=f"how outputs are read: {', '.join(TASKS)} (default: auto, by their shapes)",
    )
    parser.add_argument(
        "--first-class",
        type=int,
        default=0,
        metavar="N",
        help="class of the network that label 0 stands for: 1 where its class 0 is the background (default: 0)",
    )
    add_state(parser)
    parser.add_argument(
        "--layers",
        type=sample_limit,
        metavar="N",
        help="samples that layers are compared on (default: 4 where outputs are not good; 0: none)",
    )
    add_shapes(parser)
    _add_demands(parser)
    add_target(parser)
    add_threads(parser)
    add_json(parser)


def _add_demands(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("demands: exit code 1 where one is missed")
    group.add_argument("--min-agreement", type=float, metavar="SHARE", help="share of the same classes, boxes or masks, 0 to 1")
    group.add_argument("--min-sqnr", type=float, metavar="DB", help="signal to noise ratio of the worst output")
    group.add_argument("--max-drop", type=float, metavar="SHARE", help="what the metric by --labels may lose, 0 to 1")
    group.add_argument("--max-kl", type=float, metavar="NATS", help="KL divergence of the next token, of --task language")


def call(args: argparse.Namespace) -> int:
    """Run the command."""
    if args.max_drop is not None and args.labels is None and args.task != "language":
        raise UsageError("--max-drop bounds what is lost by labels: give --labels FILE")
    labels = None if args.labels is None else _read_labels(args.labels)
    state = dict(args.state)
    given: dict[str, Any] = {"target": args.target, "threads": args.threads, **shape_options(args)}
    first = load_inference_model(args.reference, **given)
    models = [first, load_inference_model(args.candidate, **given, float_model=first.model)]
    data = _data(args, models, state)
    with progress_bar("evaluate", data.runs, "sample") as advance:
        found = evaluate(
            models[0],
            models[1],
            data,
            labels=labels,
            task=args.task,
            first_class=args.first_class,
            state=state,
            layers=args.layers,
            progress=lambda _: advance(1),
        )
    demands = ("min_agreement", "min_sqnr", "max_drop", "max_kl")
    missed = found.missed(**{name: getattr(args, name) for name in demands})
    if args.json:
        print(json.dumps({**found.to_json(), "missed": list(missed)}, indent=2))
    else:
        print("\n\n".join(_text(found)))
        print("".join(f"\nmissed: {each}" for each in missed), end="\n" if missed else "")
    return EXIT_MISSED if missed else 0


def _data(args: argparse.Namespace, models: list[InferenceModel], state: dict[str, str]) -> Stream:
    """Open the samples for the model whose inputs they fit, the first where both do; tokens are made inputs of."""
    tokens = read_tokens(args.data) if args.task == "language" else None
    if tokens is not None:
        windows = TokenWindows(specs=models[0].specs)
        batches = [batch for each in tokens for batch in windows.batches(each, "tokens")]
        return Stream([Source(runs=len(batches), read=lambda: iter(batches), preprocessing="")])
    refused: DataError | None = None
    for model in models:
        try:
            return open_data(args, [spec for spec in model.specs if spec.source_name not in state.values()])
        except DataError as error:
            refused = refused or error
    assert refused is not None
    raise refused


def _read_labels(path: Path) -> npt.NDArray[Any]:
    if path.suffix in (".txt", ".csv"):
        try:
            return np.loadtxt(path, delimiter="," if path.suffix == ".csv" else None, dtype=np.int64, ndmin=1)
        except (OSError, ValueError) as error:
            raise DataError(f"{path}: cannot read the labels: {error}; write a whole number on each line") from error
    found = read_samples(path)
    if isinstance(found, dict):
        raise DataError(f"{path}: holds {len(found)} arrays ({', '.join(found)}); labels are one array: numpy.save(path, labels)")
    return found


def _text(found: Evaluation) -> list[str]:
    """Return the parts that people read."""
    parts = [f"{found.candidate} against {found.reference}, {found.samples} samples"]
    headers = ("output", "SQNR dB", "max error", "cosine", "decides", "agreement", "top-5", "PSNR dB", "KL divergence")
    rows = [
        (
            output.name,
            _decimals(output.sqnr_db, 2),
            f"{output.max_abs_error:.4g}",
            f"{output.cosine:.6f}",
            output.decides,
            _percent(output.agreement),
            _percent(output.top5_agreement),
            "" if output.psnr_db is None else _decimals(output.psnr_db, 2),
            "" if output.kl_divergence is None else f"{output.kl_divergence:.5f}",
        )
        for output in found.outputs
    ]
    kept = [column for column in range(len(headers)) if column < 4 or any(row[column] for row in rows)]
    cut = [tuple(row[column] for column in kept) for row in rows]
    numbers = [place for place, column in enumerate(kept) if column not in (0, 4)]
    parts.append(markdown_table([headers[column] for column in kept], cut, numbers=numbers, names=(0,)))
    if found.metric is not None:
        parts.append(_of_labels(found))
    parts.append(f"worst samples: {', '.join(map(_sample, _shown(found)))}" if _shown(found) else "every sample is equal")
    if found.layers:
        rows = [
            (row.source_name or str(row.id), row.op, _decimals(row.sqnr_db, 1), _decimals(row.local_sqnr_db, 1),
             f"{100 * row.inherited:.0f}%", "scale does not fit" if has_scale_to_blame(row) else "")
            for row in found.layers[:_LAYERS]
        ]  # fmt: skip
        headers = ("layer", "op", "SQNR dB", "arises here dB", "inherited", "")
        parts.append(markdown_table(headers, rows, numbers=(2, 3, 4), names=(0,)))
    parts.extend(f"note: {each}" for each in found.notes)
    parts.append("\n".join((f"verdict: {found.verdict.text}", *(f"  -> {each}" for each in found.verdict.advice))))
    return parts


def _shown(found: Evaluation) -> list[Any]:
    return [row for row in found.worst if row.sqnr_db != math.inf][:5]


def _of_labels(found: Evaluation) -> str:
    metric = found.metric
    assert metric is not None
    first, second, drop = (
        f"{value:.2f}{metric.unit}" if metric.unit else _percent(value)
        for value in (metric.reference, metric.candidate, metric.drop)
    )
    top5 = "" if found.top5 is None else f"; top-5 {_percent(found.top5[0])} and {_percent(found.top5[1])}"
    change = f"a {'rise' if metric.lower_is_better else 'drop'} of {drop}{top5}"
    source = "tokens" if found.task == "language" else "labels"
    return f"by {source}, {metric.name}: {first} of the reference, {second} of the candidate, {change}"


def _sample(row: Any) -> str:
    classes = f", class {row.candidate_class} for {row.reference_class}" if row.candidate_class != row.reference_class else ""
    return f"{row.number} ({_decimals(row.sqnr_db, 1)} dB{classes})"


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.2f}%"


def _decimals(value: float, places: int) -> str:
    return "equal" if value == math.inf else f"{value:.{places}f}"
