"""`octavo bench`: time a model against other runtimes."""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

from ..errors import CompileError
from ..evaluation.bench.bench import BenchReport, bench
from ..evaluation.bench.peers import PEERS
from ..evaluation.bench.roofline import roofline
from ..export.onnx import export_onnx
from ..export.tflite import export_tflite
from ..export.tflite import quantize as quantize_for_tflite
from ..ir.graph import Model
from ..profiling import Profile
from ..quantizer.quantize import quantize
from ..report import bench_page
from .options import (
    Subcommands,
    add_command,
    add_json,
    add_model,
    add_precision,
    add_recipe,
    add_target,
    one_of,
    positive_seconds,
    thread_counts,
)
from .outputs import check_output, write_file
from .progress import progress_bar
from .sources import is_downcast, load_to_compile


def add_to(commands: Subcommands) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "bench",
        call,
        example="octavo bench m.tflite --against litert,onnxruntime,openvino,tvm --threads 1,2 --html bench.html",
    )
    add_model(parser)
    parser.add_argument(
        "--against",
        type=one_of(tuple(PEERS)),
        default=("tvm",),
        metavar="NAMES",
        help=f"peers, comma-separated: {', '.join(PEERS)} (default: tvm)",
    )
    parser.add_argument(
        "--threads", type=thread_counts, default=(1,), metavar="1,2", help="thread counts, comma-separated (default: 1)"
    )
    parser.add_argument(
        "--seconds",
        type=positive_seconds,
        default=2.0,
        metavar="S",
        help="time spent on each runtime and thread count (default: 2)",
    )
    parser.add_argument(
        "--profile",
        type=Path,
        metavar="FILE",
        help="quantize a float model first; the peers get the same, as a file in QDQ form or TFLite in integers",
    )
    parser.add_argument(
        "--layers", action="store_true", help="time each layer of Octavo's build instead, as a share of the core's measured peak"
    )
    parser.add_argument(
        "--html",
        type=Path,
        metavar="FILE",
        help="write a page, too: bars with the peers, and each layer's time against the core's peak",
    )
    add_precision(parser)
    add_target(parser)
    add_json(parser)
    add_recipe(parser)


def call(args: argparse.Namespace) -> int:
    """Run the command."""
    if args.html is not None:
        check_output(args.html, *(path for path in (args.model, args.profile, args.plan) if path is not None))
    model, profile, recipe = load_to_compile(args)
    if profile is not None and not is_downcast(args):
        # The peers read the same model in QDQ form, or as LiteRT takes it.
        if model.source_format == "tflite":
            model, profile = quantize_for_tflite(model, profile, recipe=recipe), None
        else:
            model, profile = quantize(model, profile, target=args.target, recipe=recipe), None
    if args.layers:
        measured = roofline(model, args.model.name, target=args.target, precision=args.precision, profile=profile)
        _write_page(args, layers=measured)
        print(json.dumps(measured.to_json(), indent=2) if args.json else measured.to_markdown())
        return 0
    report = _compared(args, model, profile)
    if args.html is not None:
        try:
            layers = roofline(model, args.model.name, target=args.target, precision=args.precision, profile=profile)
        except CompileError as error:
            _write_page(args, report=report, note=str(error))
        else:
            _write_page(args, report=report, layers=layers)
    print(json.dumps(report.to_json(), indent=2) if args.json else report.to_markdown())
    return 0


def _write_page(args: argparse.Namespace, **measured: Any) -> None:
    if args.html is not None:
        page = bench_page(args.model.name, **measured).encode()
        write_file(args.html, lambda file: file.write(page))


def _compared(args: argparse.Namespace, model: Model, profile: Profile | None) -> BenchReport:
    with tempfile.TemporaryDirectory() as folder:
        path: Path = args.model
        if (args.profile or args.plan) and not is_downcast(args):
            is_tflite = model.source_format == "tflite"
            path = Path(folder) / f"{path.stem}.int8{'.tflite' if is_tflite else '.onnx'}"
            (export_tflite if is_tflite else export_onnx)(model, path)
        with progress_bar("bench", len(args.threads), "thread count") as advance:
            return bench(
                model,
                path,
                against=args.against,
                threads=args.threads,
                seconds=args.seconds,
                target=args.target,
                precision=args.precision,
                profile=profile,
                progress=advance,
            )
