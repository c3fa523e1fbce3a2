"""`octavo compile`: from a model, float or quantized, to an executable file."""

from __future__ import annotations

import argparse
from pathlib import Path

from ..pipeline import compile, explain
from .dump import add_dump_ir, dumping
from .options import Subcommands, add_command, add_model, add_output, add_precision, add_recipe, add_target, add_threads
from .outputs import check_output
from .sources import load_to_compile


def add_to(commands: Subcommands) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "compile",
        call,
        example="octavo compile m.int8.onnx -o m.so",
    )
    add_model(parser)
    parser.add_argument("--profile", type=Path, metavar="FILE", help="quantize a float model first, from its profile")
    add_output(parser, help="executable to write")
    add_precision(parser)
    parser.add_argument("--tuning", type=Path, metavar="FILE", help="what `octavo tune` measured on this machine")
    add_threads(parser)
    add_dump_ir(parser)
    add_target(parser)
    add_recipe(parser)


def call(args: argparse.Namespace) -> int:
    """Run the command."""
    check_output(args.output, args.model, *(path for path in (args.profile, args.plan, args.tuning) if path))
    model, profile, recipe = load_to_compile(args)
    with dumping(args.dump_ir):
        executable = compile(
            model,
            target=args.target,
            threads=args.threads,
            precision=args.precision,
            profile=profile,
            recipe=recipe,
            tuning=args.tuning,
        )
    executable.save(args.output)
    size = args.output.stat().st_size
    print(f"{args.output}: {explain(executable).summary}; {size:,} bytes, of them {executable.weight_bytes:,} of weights")
    return 0
