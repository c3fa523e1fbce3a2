"""`octavo profile check`: a model on new samples with checks on."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from ..compiler.text_table import markdown_table
from ..ir.graph.inputs import input_specs
from ..profiling import Profile
from ..profiling.range_checks import RangeCheck, check_ranges
from .calibration import add_data, open_data
from .options import Subcommands, add_command, add_json, add_model, add_threads
from .progress import progress_bar
from .sources import load_model


def add_to(commands: Subcommands) -> None:
    """Add the command."""
    parser = add_command(commands, "profile check", call, example="octavo profile check m.int8.onnx --data x.npz")
    add_model(parser, help="quantized model: .onnx in QDQ form or .tflite; or, with --profile, the float one")
    parser.add_argument("--profile", type=Path, metavar="FILE", help="profile of the float model, whose ranges are to hold")
    add_data(parser)
    add_threads(parser)
    add_json(parser)


def call(args: argparse.Namespace) -> int:
    """Run the command."""
    model = load_model(args)
    calibration = None if args.profile is None else Profile.load(args.profile)
    batches = open_data(args, input_specs(model))
    with progress_bar("check", batches.runs, "run") as advance:
        found = check_ranges(model, batches, calibration=calibration, threads=args.threads, progress=lambda _: advance(1))
    if args.json:
        print(json.dumps({"samples": found.samples, "tensors": [tensor.to_json() for tensor in found.tensors]}, indent=2))
        return 0
    if found.left:
        headers = ("tensor", "op", "range", "seen", "outside", "NaN or infinite")
        print(f"{markdown_table(headers, [_row(tensor) for tensor in found.left], numbers=(4, 5), names=(0,))}\n")
    print(f"{found.samples} samples: {len(found.left)} of {len(found.tensors)} tensors left their range")
    return 0


def _row(tensor: RangeCheck) -> tuple[str, ...]:
    return (
        tensor.source_name or str(tensor.id),
        tensor.op,
        f"[{tensor.low:.5g}; {tensor.high:.5g}]",
        f"[{tensor.minimum:.5g}; {tensor.maximum:.5g}]",
        f"{tensor.outside:.4%}",
        str(tensor.non_finite),
    )
