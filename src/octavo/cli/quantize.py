"""`octavo quantize`: from a float ONNX model and its profile to an ONNX model in QDQ form."""

from __future__ import annotations

import argparse
from pathlib import Path

from ..pipeline import explain, export_onnx
from .options import Subcommands, add_command, add_model, add_output, add_recipe, add_target
from .outputs import check_output
from .sources import load_quantized


def add_to(commands: Subcommands) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "quantize",
        call,
        example="octavo quantize m.onnx --profile profile.json -o m.int8.onnx",
    )
    add_model(parser, help="float model file: .onnx")
    parser.add_argument("--profile", type=Path, required=True, metavar="FILE", help="what `octavo profile` wrote for this model")
    add_output(parser, help="quantized model to write, ONNX in QDQ form")
    add_target(parser)
    add_recipe(parser)


def call(args: argparse.Namespace) -> int:
    """Run the command."""
    check_output(args.output, args.model, args.profile)
    quantized = load_quantized(args)
    export_onnx(quantized, args.output)
    print(f"{args.output}: {explain(quantized).summary}")
    return 0
