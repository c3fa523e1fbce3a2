"""`octavo compile`: from a model, float or quantized, to an executable file, or to a folder with a C library."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from ..build.c_library import check_folder
from ..c_library import export_c
from ..graph import Model
from ..multiversion import compile_versions, save_versions
from ..pipeline import Executable, compile, explain, quantize
from .dump import add_dump_ir, dumping
from .options import Subcommands, add_command, add_model, add_output, add_precision, add_recipe, add_target, add_threads
from .outputs import check_output
from .sources import UsageError, is_downcast, load_to_compile


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
    add_output(parser, help="executable to write; with --emit c, a folder")
    parser.add_argument(
        "--emit",
        choices=("executable", "c"),
        default="executable",
        help="what to write: a file that Octavo runs (default), or a C library that needs nothing but libc",
    )
    parser.add_argument("--name", help="prefix of all that the C library defines (default: model)")
    parser.add_argument(
        "--multiversion",
        action="store_true",
        help="code for several levels of x86 CPUs in one file; the best that the CPU can run is taken when it is loaded",
    )
    add_precision(parser)
    parser.add_argument("--tuning", type=Path, metavar="FILE", help="what `octavo tune` measured on this machine")
    add_threads(parser)
    add_dump_ir(parser)
    add_target(parser)
    add_recipe(parser)


def call(args: argparse.Namespace) -> int:
    """Run the command."""
    sources = (args.model, *(path for path in (args.profile, args.plan, args.tuning) if path))
    if args.emit == "c":
        check_folder(args.output)
    elif args.name is not None:
        raise UsageError("--name is of a C library: give --emit c, too")
    else:
        check_output(args.output, *sources)
    if args.multiversion and (args.target is not None or args.tuning):
        raise UsageError("--multiversion compiles for several CPUs: leave out --target and --tuning")
    model, profile, recipe = load_to_compile(args)
    options: dict[str, Any] = {
        "target": args.target,
        "precision": args.precision,
        "profile": profile,
        "recipe": recipe,
        "tuning": args.tuning,
    }
    with dumping(args.dump_ir):
        return _emit_c(args, model, options) if args.emit == "c" else _emit_executable(args, model, options)


def _emit_executable(args: argparse.Namespace, model: Model, options: dict[str, Any]) -> int:
    if args.multiversion:
        executables = _versions(args, model, options)
        save_versions(executables, args.output)
        executable = executables[0]
    else:
        executable = compile(model, threads=args.threads, **options)
        executable.save(args.output)
    size = args.output.stat().st_size
    print(f"{args.output}: {explain(executable).summary}; {size:,} bytes, of them {executable.weight_bytes:,} of weights")
    return 0


def _versions(args: argparse.Namespace, model: Model, options: dict[str, Any]) -> list[Executable]:
    """Compile for several CPUs what is quantized once: for this machine, whose description they share."""
    rest = {key: value for key, value in options.items() if key != "target"}
    if rest["profile"] is not None and not is_downcast(args):
        model = quantize(model, rest["profile"], recipe=rest["recipe"])
        rest |= {"profile": None, "recipe": None}
    return compile_versions(model, threads=args.threads, **rest)


def _emit_c(args: argparse.Namespace, model: Model, options: dict[str, Any]) -> int:
    if args.threads not in (None, 1):
        raise UsageError("a C library runs on its caller's thread: leave out --threads")
    made = export_c(model, args.output, name=args.name or "model", multiversion=args.multiversion, **options)
    libraries = " and ".join(f"{path.name} ({path.stat().st_size:,} bytes)" for path in made.libraries)
    libraries = libraries or "source and objects; no C compiler for the target is on PATH to link them"
    print(f"{args.output}: {libraries}; workspace {made.workspace:,} bytes, constants {made.constants:,} bytes")
    return 0
