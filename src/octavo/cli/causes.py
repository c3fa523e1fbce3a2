"""`octavo causes`: why a quantized model's outputs are off, rounding by rounding, and what would help."""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import fields
from pathlib import Path
from typing import Any

from ..compiler.text_table import markdown_table
from ..errors import ProfileError
from ..ir.graph.inputs import input_specs
from ..profiling import Profile, samples_of
from ..quantizer.causes import RootCause, root_causes
from ..quantizer.quantize import quantize
from .options import Subcommands, add_command, add_json, add_model, add_recipe, add_target
from .sources import by_plan, load_model, recipe_of

SHOWN = 16


def add_to(commands: Subcommands) -> None:
    """Add the command."""
    parser = add_command(commands, "causes", call, example="octavo causes m.onnx --profile profile.json")
    add_model(parser)
    parser.add_argument(
        "--profile", type=Path, metavar="FILE", required=True, help="its profile, with the samples that it keeps (--keep-samples)"
    )
    parser.add_argument("--all", action="store_true", help=f"show every rounding, not only the first {SHOWN}")
    add_target(parser)
    add_json(parser)
    add_recipe(parser)


def call(args: argparse.Namespace) -> int:
    """Run the command."""
    model, profile = load_model(args), Profile.load(args.profile)
    samples = samples_of(model, profile)
    if not samples:
        raise ProfileError(f"{args.profile} keeps no samples to experiment with; profile the model with --keep-samples 64")
    if args.plan is not None:
        quantized = by_plan(model, args.plan, args.target)
    else:
        quantized = quantize(model, profile, target=args.target, recipe=recipe_of(args))
    names = [spec.source_name for spec in input_specs(model)]
    rows = root_causes(model, quantized, [dict(zip(names, arrays, strict=True)) for arrays in samples])
    shown = rows if args.all else rows[:SHOWN]
    if args.json:
        print(json.dumps([_plain(row) for row in shown], indent=2))
        return 0
    headers = ("tensor", "rounds", "alone dB", "share", "cause", "gain dB", "remedy")
    print(markdown_table(headers, [_cells(row) for row in shown], names=(0,)))
    print(f"\n{len(rows)} roundings; alone: what the worst output keeps where only this is rounded, on {len(samples)} samples")
    return 0


def _cells(row: RootCause) -> tuple[str, ...]:
    return (
        row.source_name or row.id,
        row.part,
        f"{row.sqnr_db:.1f}",
        f"{100 * row.share:.1f}%",
        row.cause or "",
        f"{row.gain_db:.2f}" if row.gain_db else "",
        row.remedy,
    )


def _plain(row: RootCause) -> dict[str, Any]:
    """Return a row as JSON has it, which knows no infinity."""
    said = {each.name: getattr(row, each.name) for each in fields(row) if each.name != "steps"}
    return {key: None if isinstance(value, float) and not math.isfinite(value) else value for key, value in said.items()}
