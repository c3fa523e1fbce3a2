"""`octavo demo`: the whole path on real handwritten digits, with nothing to fetch."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from ..report import run_demo
from .options import Subcommands, add_command, add_json
from .progress import progress_bar

DATA = Path(__file__).parent / "demo_data"
MAX_LOSS = 0.01
"""By how much int8 may fall short of float: 1 point of top-1."""


def add_to(commands: Subcommands) -> None:
    """Add the command."""
    parser = add_command(commands, "demo", call, example="octavo demo -o octavo-demo")
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        default=Path("octavo-demo"),
        metavar="FOLDER",
        help="folder to write to (default: octavo-demo)",
    )
    add_json(parser)


def call(args: argparse.Namespace) -> int:
    """Run the command; exit code 1 if int8 is more than one point worse than float."""
    with progress_bar("demo", None, "digit") as advance:
        report = run_demo(DATA, args.output, progress=advance)
    print(json.dumps(report.to_json(), indent=2) if args.json else report.to_markdown())
    if report.top1_int8 < report.top1_float - MAX_LOSS:
        print(
            f"octavo: error: int8 top-1 {report.top1_int8:.4f} is over a point below float {report.top1_float:.4f}",
            file=sys.stderr,
        )
        return 1
    return 0
