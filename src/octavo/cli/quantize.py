"""`octavo quantize`: from a float ONNX model and its profile, or a plan, to an ONNX model in QDQ form."""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path

from ..evaluation import WORDS, better, doubts, level_of_agreement, level_of_sqnr
from ..pipeline import Profile, explain, export_onnx, quantize
from ..quantize import QuantizedModel
from ..quantize.encodings import FORMATS, read_encodings, write_encodings
from ..root_cause import FixResult, fix
from .options import Subcommands, add_command, add_model, add_output, add_recipe, add_target
from .outputs import check_output
from .sources import UsageError, load_model, load_to_compile, recipe_of


def add_to(commands: Subcommands) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "quantize",
        call,
        example="octavo quantize m.onnx --profile profile.json -o m.int8.onnx",
    )
    add_model(parser, help="float model file: .onnx")
    parser.add_argument("--profile", type=Path, metavar="FILE", help="what `octavo profile` wrote for this model")
    add_output(parser, help="quantized model to write, ONNX in QDQ form")
    add_target(parser)
    add_recipe(parser)
    parser.add_argument(
        "--fix",
        action="store_true",
        help="apply the remedies that `octavo causes` names, one by one, and keep those with which the outputs are nearer to the "
        "float model's on the samples that the profile keeps; with --plan, give the profile too",
    )
    group = parser.add_argument_group("plans and other tools' parameters")
    group.add_argument("--save-plan", type=Path, metavar="FILE", help="plan to write, JSON: to be edited, and applied by --plan")
    group.add_argument(
        "--encodings", type=Path, metavar="FILE", help="take the scales and zero points of AIMET's encodings or TensorRT's cache"
    )
    group.add_argument("--save-encodings", type=Path, metavar="FILE", help="parameters to write as another tool keeps them")
    group.add_argument("--encodings-format", choices=FORMATS, help=f"how (default: {FORMATS[1]})")


def call(args: argparse.Namespace) -> int:
    """Run the command."""
    if not args.profile and not args.plan:
        raise UsageError("quantize needs --profile FILE, which `octavo profile` writes, or --plan FILE")
    if args.fix and not args.profile:
        raise UsageError("--fix measures on the samples that a profile keeps: give --profile FILE too")
    if args.encodings_format and not args.save_encodings:
        raise UsageError("--encodings-format says how to write --save-encodings FILE; give that too")
    if args.output.suffix.lower() == ".tflite":
        raise UsageError(f"{args.output}: quantize writes ONNX, and no TFLite: give a name that ends in .onnx")
    sources = [path for path in (args.model, args.profile, args.plan, args.encodings) if path]
    outputs = [path for path in (args.output, args.save_plan, args.save_encodings) if path]
    for place, path in enumerate(outputs):
        check_output(path, *sources)
        if path in outputs[:place]:
            raise UsageError(f"{path} is to be written twice; give each output a file of its own")
    # With --plan the profile is for --fix alone.
    only_plan = argparse.Namespace(**{**vars(args), "profile": None}) if args.plan and args.fix else args
    model, profile, recipe = load_to_compile(only_plan)
    quantized = model if profile is None else quantize(model, profile, target=args.target, recipe=recipe)
    assert isinstance(quantized, QuantizedModel), "a profile or a plan was given"
    if args.encodings:
        encoded = read_encodings(args.encodings, quantized.plan)
        for line in encoded.unmatched:
            print(f"{args.encodings}: not taken: {line}", file=sys.stderr)
        if encoded.kept:
            print(f"{args.encodings}: says nothing of {len(encoded.kept)} tensors: {', '.join(encoded.kept)}", file=sys.stderr)
        quantized = quantize(load_model(args), plan=encoded.plan, target=args.target)
    fixed = _fixed(args, quantized) if args.fix else None
    quantized = quantized if fixed is None else fixed.quantized
    export_onnx(quantized, args.output)
    if args.save_plan:
        quantized.plan.save(args.save_plan)
    if args.save_encodings:
        for line in write_encodings(quantized.plan, args.save_encodings, args.encodings_format or FORMATS[1]):
            print(f"{args.save_encodings}: {line}", file=sys.stderr)
    said = [explain(quantized).summary, quantized.plan.corrections.summary]
    widths = quantized.plan.widths
    if len(widths) > 1:
        said.insert(1, ", ".join(f"{count:,} weights of {bits} bits" for bits, count in widths.items()))
    print(f"{args.output}: {'; '.join(each for each in said if each)}")
    if fixed is not None:
        print("\n".join(_steps(fixed)))
    print(_verdict(args, quantized))
    if profile is not None:
        for doubt in doubts(model, profile):
            print(f"warning: {doubt}")
    return 0


def _verdict(args: argparse.Namespace, quantized: QuantizedModel) -> str:
    """Say how good the model is by what quantizing measured, and what to do next."""
    measured = quantized.plan.corrections
    after = f"octavo evaluate {args.model} {args.output} --data FILE"
    if measured.sqnr_db == math.inf:
        return f"verdict: not measured here; {after} says how good it is"
    agreement = measured.agreement
    level = level_of_sqnr(measured.sqnr_db)
    said = f"its worst output keeps {measured.sqnr_db:.1f} dB"
    if agreement is not None:
        level = better(level, level_of_agreement(agreement))
        said = f"{100 * agreement:.1f}% of the samples keep their class, {said}"
    more = f"{after} says it of others"
    if level != "good":
        more = f"octavo causes {args.model} --profile FILE says why, --fix applies what helps; {more}"
    words = WORDS[level].replace("the reference", "the float model")
    return f"verdict: {words} on samples that it was calibrated on: {said}; {more}"


def _fixed(args: argparse.Namespace, quantized: QuantizedModel) -> FixResult:
    recipe = None if args.plan else recipe_of(args)
    return fix(load_model(args), quantized, Profile.load(args.profile), target=args.target or "cpu", recipe=recipe)


def _steps(fixed: FixResult) -> list[str]:
    """Return a line for each remedy that was tried, and what they brought together."""
    lines = [f"{'kept' if each.kept else 'left out'}: {each.source_name or each.id}: {each.said}" for each in fixed.steps]
    return [*lines, f"--fix: {fixed.summary}"]
