"""`octavo profile export` and `octavo profile import`: ranges as ONNX Runtime, TensorRT and AIMET keep them."""

from __future__ import annotations

import argparse
from pathlib import Path

from ..profiling import FORMATS, Profile, from_table, write_table
from ..quantizer.ranges import QuantScheme, range_estimator
from .options import Subcommands, add_command, add_method, add_model, add_output
from .outputs import check_output
from .sources import load_model, method_of

_MAX_NAMED = 5


def add_to(commands: Subcommands) -> None:
    """Add both commands."""
    export = add_command(
        commands,
        "profile export",
        call_export,
        example="octavo profile export profile.json --format tensorrt -o calibration.cache",
    )
    export.add_argument("profile", type=Path, metavar="PROFILE", help="what `octavo profile` wrote")
    export.add_argument("--format", choices=FORMATS, required=True, help="whose table")
    add_method(export)
    add_output(export, help="table to write")
    take = add_command(
        commands, "profile import", call_import, example="octavo profile import m.onnx calibration.json -o profile.json"
    )
    add_model(take)
    take.add_argument("table", type=Path, metavar="TABLE", help="calibration table, calibration cache or encodings")
    add_output(take, help="profile to write, JSON; it holds ranges, no histograms")


def call_export(args: argparse.Namespace) -> int:
    """Run `profile export`."""
    check_output(args.output, args.profile)
    estimator, scheme = range_estimator(method_of(args)), QuantScheme(dtype="uint8")
    profile = Profile.load(args.profile)
    count = write_table(profile, args.output, args.format, range_of=lambda tensor: estimator.range_of(tensor, scheme))
    print(f"{args.output}: {count} tensors")
    return 0


def call_import(args: argparse.Namespace) -> int:
    """Run `profile import`."""
    check_output(args.output, args.model, args.table)
    model = load_model(args)
    profile, foreign = from_table(model, args.table)
    profile.save(args.output)
    within = sum(value.kind != "constant" for value in profile.values())
    print(f"{args.output}: ranges of {within} tensors")
    missing = [entry.source_name for key, entry in model.tensors.items() if entry.kind != "constant" and key not in profile]
    for names, what in ((missing, "the table lacks"), (foreign, "the model lacks")):
        if names:
            more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
            print(f"{what} {', '.join(names[:_MAX_NAMED])}{more}")
    return 0
