"""`octavo report`: a profile, or what became of a model that was quantized, as one page for the browser."""

from __future__ import annotations

import argparse
from pathlib import Path

from ..compiler.target_choice import resolve_target
from ..errors import ProfileError
from ..export.tflite import is_of_tflite, target_of
from ..profiling import Profile
from ..quantizer.programs import Programs
from ..quantizer.quantize import by_profile, check_subject
from ..quantizer.recipe import Recipe
from ..report import profile_page, quantization_figures, quantization_page
from .options import Subcommands, add_command, add_output, add_recipe, add_shapes, add_target
from .outputs import check_output, write_file
from .samples import read_samples
from .sources import UsageError, by_plan, load_model, recipe_of


def add_to(commands: Subcommands) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "report",
        call,
        example="octavo report profile.json --model m.onnx -o report.html\n"
        "  octavo report m.onnx --profile profile.json --plan plan.json -o quantization.html",
    )
    parser.add_argument(
        "model", type=Path, metavar="FILE", help="what `octavo profile` wrote; with --profile a float model, .onnx or .tflite"
    )
    parser.add_argument(
        "--model",
        dest="profiled",
        type=Path,
        metavar="FILE",
        help="of a profile: the model that was profiled; the page has its name, and ranks no tensor that is never quantized",
    )
    parser.add_argument(
        "--profile", type=Path, metavar="FILE", help="the model's profile, with the samples that it keeps: shows it quantized"
    )
    parser.add_argument(
        "--data", type=Path, metavar="FILE", help="samples to compare on: .npy or .npz (default: those that the profile keeps)"
    )
    parser.add_argument("--search", type=Path, metavar="FOLDER", help="folder of an `octavo search`: shows its front")
    add_shapes(parser)
    add_output(parser, help="page to write, HTML; it opens without a network")
    add_target(parser)
    add_recipe(parser)


def call(args: argparse.Namespace) -> int:
    """Run the command."""
    inputs = (args.model, args.profiled, args.profile, args.plan, args.data)
    check_output(args.output, *(path for path in inputs if path is not None))
    return _of_profile(args) if args.profile is None else _of_model(args)


def _of_model(args: argparse.Namespace) -> int:
    if args.profiled is not None:
        raise UsageError("--model is for the page of a profile; of a model: octavo report MODEL --profile FILE")
    model, profile, recipe = load_model(args), Profile.load(args.profile), recipe_of(args)
    if args.plan is not None and recipe != Recipe():
        raise UsageError("--plan says all that is to be said of quantizing: leave out the options")
    if args.plan is not None:
        quantized = by_plan(model, args.plan, args.target)
        programs = Programs.of_model(model, quantized.plan)
    else:
        programs = Programs.of_model(model)  # what quantizing compiles, and is measured on, causes and errors by layer run, too
        checked = check_subject(model, profile, recipe)
        quantized = by_profile(resolve_target(args.target), model, checked, recipe, programs=programs)
    data = None if args.data is None else read_samples(args.data)
    # Plain quantization, which the page shows beside it, is for the same kernels.
    target = target_of(quantized.plan.recipe) if args.target is None and is_of_tflite(quantized.plan) else args.target
    figures = quantization_figures(model, quantized, profile, data=data, search=args.search, target=target, programs=programs)
    page = quantization_page(figures, title=args.model.name).encode()
    write_file(args.output, lambda file: file.write(page))
    print(f"{args.output}: {len(figures.layers)} tensors, {len(figures.causes)} roundings, {len(page) / 1e6:.1f} MB")
    return 0


def _of_profile(args: argparse.Namespace) -> int:
    named = {"--plan": args.plan, "--data": args.data, "--search": args.search, "--target": args.target}
    other = next((name for name, value in named.items() if value is not None), None)
    if (
        other is not None
        or ((args.shape or args.size or args.value or args.signature) and args.profiled is None)
        or recipe_of(args) != Recipe()
    ):
        raise UsageError(f"{other or 'how to quantize'} is for the page of a model: give --profile FILE too")
    try:
        profile = Profile.load(args.model)
    except ProfileError as error:
        if args.model.suffix.lower() not in (".onnx", ".tflite"):
            raise
        raise ProfileError(f"{error}; of a model, give --profile FILE too") from error
    shown: Path = args.profiled or args.model
    model = None if args.profiled is None else load_model(argparse.Namespace(**{**vars(args), "model": args.profiled}))
    page = profile_page(profile, title=shown.name, model=model).encode()
    write_file(args.output, lambda file: file.write(page))
    print(f"{args.output}: {len(profile)} tensors, {len(page) / 1e6:.1f} MB")
    return 0
