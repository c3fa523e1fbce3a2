"""`octavo compile`: from a model, float or quantized, to an executable file, or to a folder with a C library."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from ..export.c_library import check_folder, export_c
from ..export.multiversion import compile_versions, save_versions
from ..ir.graph import Model
from ..ir.interface import REAL_DTYPES, Preprocessing, with_interface
from ..quantizer.compile import compile, explain
from ..quantizer.quantize import quantize
from ..runtime.size import is_open
from .dump import add_dump_ir, dumping
from .options import (
    Subcommands,
    add_command,
    add_model,
    add_output,
    add_precision,
    add_recipe,
    add_state,
    add_target,
    add_threads,
)
from .outputs import check_output
from .sources import UsageError, is_downcast, load_to_compile


def add_to(commands: Subcommands) -> None:
    """Add the command."""
    parser = add_command(commands, "compile", call, example="octavo compile m.int8.onnx -o m.so")
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
    add_state(
        parser, help="of a C library: output that is the input IN of the next step; functions keep it in memory of the caller's"
    )
    parser.add_argument(
        "--multiversion",
        action="store_true",
        help="code for several levels of x86 CPUs in one file; the best that the CPU can run is taken when it is loaded",
    )
    parser.add_argument("--inputs", choices=REAL_DTYPES, help="dtype of what the model takes (default: the model's)")
    parser.add_argument("--outputs", choices=REAL_DTYPES, help="dtype of what the model gives (default: the model's)")
    parser.add_argument(
        "--preprocess",
        type=preprocessing,
        metavar="mean=M,std=S,size=HxW",
        help="take pictures, uint8 (n, height, width, channels): resize them where a size is given, subtract mean, divide by "
        "std, "
        "numbers from 0 to 255, of several channels joined by +",
    )
    add_precision(parser)
    parser.add_argument("--tuning", type=Path, metavar="FILE", help="what `octavo tune` measured")
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
    elif args.state:
        raise UsageError("--state is of a C library: give --emit c, too; of an executable give it to `octavo run`")
    else:
        check_output(args.output, *sources)
    if args.multiversion and (args.target is not None or args.tuning):
        raise UsageError("--multiversion compiles for several CPUs: leave out --target and --tuning")
    model, profile, recipe = load_to_compile(args)
    if profile is not None and not is_downcast(args) and (args.multiversion or _changes_interface(args)):
        model, profile, recipe = quantize(model, profile, target=args.target, recipe=recipe), None, None
    model = with_interface(model, inputs=args.inputs, outputs=args.outputs, preprocessing=args.preprocess)
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
        executables = compile_versions(model, threads=args.threads, **{key: options[key] for key in options if key != "target"})
        save_versions(executables, args.output)
        executable = executables[0]
    else:
        executable = compile(model, threads=args.threads, **options)
        executable.save(args.output)
    size = args.output.stat().st_size
    print(f"{args.output}: {explain(executable).summary}; {size:,} bytes, of them {executable.weight_bytes:,} of weights")
    return 0


def _changes_interface(args: argparse.Namespace) -> bool:
    return args.inputs is not None or args.outputs is not None or args.preprocess is not None


def preprocessing(text: str) -> Preprocessing:
    """Parse "mean=123.7+116.3+103.5,std=58.4,size=480x640"; ArgumentTypeError for anything else."""
    try:
        given = dict(part.split("=") for part in text.split(","))
        mean, std = (
            tuple(float(number) for number in given.pop(key, default).split("+"))
            for key, default in (("mean", "0"), ("std", "1"))
        )
        size = given.pop("size", None)
        height_width = None if size is None else tuple(int(number) for number in size.split("x"))
        if given or (height_width is not None and (len(height_width) != 2 or min(height_width) < 1)):
            raise ValueError(text)
    except ValueError as error:
        expected = "mean=M,std=S,size=HxW, of which any may be left out"
        raise argparse.ArgumentTypeError(f"expected {expected}, got {text!r}") from error
    return Preprocessing(mean=mean, std=std, size=None if height_width is None else (height_width[0], height_width[1]))


def _emit_c(args: argparse.Namespace, model: Model, options: dict[str, Any]) -> int:
    if args.threads not in (None, 1):
        raise UsageError("a C library runs on its caller's thread: leave out --threads")
    made = export_c(
        model, args.output, name=args.name or "model", multiversion=args.multiversion, carry=dict(args.state), **options
    )
    libraries = " and ".join(f"{path.name} ({path.stat().st_size:,} bytes)" for path in made.libraries)
    libraries = libraries or "source and objects; no C compiler for the target is on PATH to link them"
    print(f"{args.output}: {libraries}; workspace {_bytes(made.workspace)} bytes, constants {made.constants:,} bytes")
    return 0


def _bytes(size: int) -> str:
    return str(size) if is_open(size) else f"{size:,}"
