"""`octavo quantize`: from a float model and its profile, samples, or a plan, to a quantized file of its format."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from ..evaluation import WORDS, better, calibration_warnings, level_of_agreement, level_of_sqnr
from ..export.encodings import FORMATS, read_encodings, write_encodings
from ..export.onnx import OPS, export_onnx
from ..export.tflite import EDGE_DTYPES, export_tflite, restricted, target_of
from ..export.tflite import quantize as quantize_for_tflite
from ..ir.graph import Model
from ..ir.graph.inputs import input_specs
from ..profiling.model_profile import Profile
from ..profiling.profile import profile
from ..quantizer.causes import FixResult, fix
from ..quantizer.compile import explain
from ..quantizer.plan.plan import QuantizationPlan, QuantizedModel
from ..quantizer.quantize import quantize
from ..quantizer.recipe import Recipe
from ..quantizer.referee import score_of
from .calibration import add_data, open_data
from .options import Subcommands, add_command, add_model, add_output, add_recipe, add_target, positive_seconds
from .outputs import check_output
from .progress import progress_bar, progress_steps
from .sources import UsageError, load_model, recipe_of

_STEPS = "octavo.quantizer.tune"
"""Who logs the steps of quantizing."""
_TFLITE = ".tflite"


def add_to(commands: Subcommands) -> None:
    """Add the command."""
    parser = add_command(commands, "quantize", call, example="octavo quantize m.onnx --profile profile.json -o m.int8.onnx")
    add_model(parser, help="float model file: .onnx or .tflite")
    parser.add_argument("--profile", type=Path, metavar="FILE", help="what `octavo profile` wrote for this model")
    add_data(parser, is_required=False)
    add_output(parser, help="quantized model to write: ONNX in QDQ form, of a .tflite file TFLite in integers")
    for name in ("inputs", "outputs"):
        parser.add_argument(
            f"--{name}",
            choices=EDGE_DTYPES,
            default="float32",
            help=f"dtype of the .tflite file's {name}: real numbers, or the integers that stand for them (default: float32)",
        )
    parser.add_argument(
        "--ops",
        choices=OPS,
        default=OPS[0],
        help="whose ops an .onnx file holds: ONNX's own, or ONNX Runtime's, which it runs faster, for dense layers whose "
        "activations are quantized when run (default: standard)",
    )
    add_target(parser)
    add_recipe(parser)
    parser.add_argument(
        "--seconds",
        type=positive_seconds,
        metavar="S",
        help="how long to look for better parameters; the best so far is taken then (default: as long as it takes)",
    )
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
    _check_options(args)
    sources = [path for path in (args.model, args.profile, args.plan, args.encodings, *(args.data or ())) if path]
    outputs = [path for path in (args.output, args.save_plan, args.save_encodings) if path]
    for place, path in enumerate(outputs):
        check_output(path, *sources)
        if path in outputs[:place]:
            raise UsageError(f"{path} is to be written twice; give each output a file of its own")
    model = load_model(args)
    if (model.source_format == "tflite") != _writes_tflite(args):
        suffix = ".onnx" if _writes_tflite(args) else _TFLITE
        raise UsageError(
            f"{args.output}: quantize writes the format that it reads, and {args.model} is {model.source_format}: give -o a name "
            f"that ends in {suffix}"
        )
    known = _profile_of(args, model)
    quantized = _quantized(args, model, known)
    if args.encodings:
        encoded = read_encodings(args.encodings, quantized.plan)
        for line in encoded.unmatched:
            print(f"{args.encodings}: not taken: {line}", file=sys.stderr)
        if encoded.kept:
            print(f"{args.encodings}: says nothing of {len(encoded.kept)} tensors: {', '.join(encoded.kept)}", file=sys.stderr)
        quantized = _by_plan(args, model, encoded.plan)
    fixed = _fixed(args, model, quantized, known) if args.fix and known is not None else None
    quantized = quantized if fixed is None else fixed.quantized
    if _writes_tflite(args):
        export_tflite(quantized, args.output, inputs=args.inputs, outputs=args.outputs)
    else:
        export_onnx(quantized, args.output, ops=args.ops)
    if args.save_plan:
        quantized.plan.save(args.save_plan)
    if args.save_encodings:
        for line in write_encodings(quantized.plan, args.save_encodings, args.encodings_format or FORMATS[1]):
            print(f"{args.save_encodings}: {line}", file=sys.stderr)
    _say(args, model, quantized, fixed, None if args.plan else known)
    return 0


def _check_options(args: argparse.Namespace) -> None:
    """Raise UsageError for options that make no sense together."""
    if not args.profile and not args.plan and not args.data:
        raise UsageError(
            "quantize needs --profile FILE, which `octavo profile` writes, --data FILE, samples to profile now, or --plan FILE"
        )
    if args.profile and args.data:
        raise UsageError("--data is profiled for want of a --profile; leave one out")
    if args.plan and recipe_of(args) != Recipe():
        raise UsageError("--plan says all that is to be said of quantizing: leave out the options that say how")
    if args.plan and (args.profile or args.data) and not args.fix:
        raise UsageError("--plan says all that is to be said of quantizing: leave out --profile and --data")
    if args.fix and not args.profile and not args.data:
        raise UsageError("--fix measures on the samples that a profile keeps: give --profile FILE too")
    if args.encodings_format and not args.save_encodings:
        raise UsageError("--encodings-format says how to write --save-encodings FILE; give that too")
    if _writes_tflite(args) and args.target:
        raise UsageError("--target: a .tflite file is quantized for LiteRT's kernels; leave it out")
    if _writes_tflite(args) and args.ops != OPS[0]:
        raise UsageError("--ops is of .onnx files; leave it out")
    if not _writes_tflite(args) and (args.inputs, args.outputs) != ("float32", "float32"):
        raise UsageError("--inputs and --outputs are of .tflite files; `octavo compile` has them for any model")


def _writes_tflite(args: argparse.Namespace) -> bool:
    return args.output.suffix.lower() == _TFLITE


def _profile_of(args: argparse.Namespace, model: Model) -> Profile | None:
    """Return the profile that is given, or made of --data here."""
    if args.profile:
        return Profile.load(args.profile)
    if not args.data:
        return None
    batches = open_data(args, input_specs(model))
    with progress_bar("profile", batches.runs, "run") as advance:
        return profile(model, batches, progress=lambda _: advance(1))


def _quantized(args: argparse.Namespace, model: Model, known: Profile | None) -> QuantizedModel:
    if args.plan:
        return _by_plan(args, model, QuantizationPlan.load(args.plan))
    recipe = recipe_of(args)
    if _writes_tflite(args):
        return quantize_for_tflite(model, known, recipe=recipe)
    with progress_steps("quantize", _STEPS):
        return quantize(model, known, target=args.target, recipe=recipe, seconds=args.seconds)


def _by_plan(args: argparse.Namespace, model: Model, plan: QuantizationPlan) -> QuantizedModel:
    if _writes_tflite(args):
        return quantize_for_tflite(model, plan=plan)
    return quantize(model, plan=plan, target=args.target)


def _say(
    args: argparse.Namespace, model: Model, quantized: QuantizedModel, fixed: FixResult | None, known: Profile | None
) -> None:
    """Print what was made, and how good it is."""
    said = [explain(quantized).summary, quantized.plan.journal.summary or quantized.plan.corrections.summary]
    widths = quantized.plan.widths
    if len(widths) > 1:
        said.insert(1, ", ".join(f"{count:,} weights of {bits} bits" for bits, count in widths.items()))
    print(f"{args.output}: {'; '.join(each for each in said if each)}")
    if fixed is not None:
        print("\n".join(_steps(fixed)))
    print(_verdict(args, model, quantized, known))
    if known is not None:
        for warning in calibration_warnings(model, known):
            print(f"warning: {warning}")


def _verdict(args: argparse.Namespace, model: Model, quantized: QuantizedModel, known: Profile | None) -> str:
    """Say how good the model is, and what to do next."""
    after = f"octavo evaluate {args.model} {args.output} --data FILE"
    journal = quantized.plan.journal
    sqnr_db, agreement, where = journal.sqnr_db, journal.agreement, f"{journal.held_back} samples held back from calibration"
    if sqnr_db is None and known is not None and (score := score_of(model, quantized, known)) is not None:
        sqnr_db, agreement, where = score.sqnr_db, score.agreement, "samples that it was calibrated on"
    if sqnr_db is None:
        return f"verdict: not measured here; {after} says how good it is"
    level = level_of_sqnr(sqnr_db)
    said = f"its worst output keeps {sqnr_db:.1f} dB"
    goal = quantized.plan.recipe.min_sqnr
    if goal is not None and sqnr_db < goal:
        said = f"{said}, less than the {goal:g} dB that --min-sqnr asks for"
    if agreement is not None:
        level = better(level, level_of_agreement(agreement))
        said = f"{100 * agreement:.1f}% of the samples keep their class, {said}"
    more = f"{after} says it of others"
    if level != "good":
        more = f"octavo causes {args.model} --profile FILE says why, --fix applies what helps; {more}"
    words = WORDS[level].replace("the reference", "the float model")
    return f"verdict: {words} on {where}: {said}; {more}"


def _fixed(args: argparse.Namespace, model: Model, quantized: QuantizedModel, known: Profile) -> FixResult:
    recipe = None if args.plan else recipe_of(args)
    target = args.target or "cpu"
    if _writes_tflite(args):
        recipe = restricted(model, recipe or quantized.plan.recipe)
        target = target_of(recipe)
    return fix(model, quantized, known, target=target, recipe=recipe)


def _steps(fixed: FixResult) -> list[str]:
    """Return a line for each remedy that was tried, and what they brought together."""
    lines = [f"{'kept' if each.kept else 'left out'}: {each.said}" for each in fixed.entries]
    return [*lines, f"--fix: {fixed.summary}"]
