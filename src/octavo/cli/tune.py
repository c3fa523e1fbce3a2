"""`octavo tune`: measure how the kernels of a model run best on this machine, for `octavo compile --tuning`."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from ..compiler.tune import tune
from .options import Subcommands, add_command, add_json, add_model, add_output, add_recipe, add_target, positive_seconds
from .outputs import check_output
from .progress import progress_bar
from .sources import load_quantized


def add_to(commands: Subcommands) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "tune",
        call,
        example="octavo tune m.int8.onnx --seconds 60 -o tuning.json\n  octavo compile m.int8.onnx --tuning tuning.json -o m.so",
    )
    add_model(parser)
    parser.add_argument("--profile", type=Path, metavar="FILE", help="quantize a float model first, from its profile")
    parser.add_argument("--seconds", type=positive_seconds, default=60.0, metavar="S", help="time to spend, about (default: 60)")
    add_output(parser, help="tuning to write, JSON")
    add_target(parser)
    add_json(parser)
    add_recipe(parser)


def call(args: argparse.Namespace) -> int:
    """Run the command."""
    check_output(args.output, args.model, *(path for path in (args.profile, args.plan) if path))
    model = load_quantized(args)
    with progress_bar("tune", None, "schedule") as advance:
        report = tune(model, target=args.target, seconds=args.seconds, progress=advance)
    report.tuning.save(args.output)
    print(json.dumps(report.to_json(), indent=2) if args.json else report.to_markdown())
    return 0
