"""`octavo search`: which activations to keep float, and how to range the others, for an accuracy that is asked for."""

from __future__ import annotations

import argparse
import importlib.util
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

from ..compiler.text_table import markdown_table
from ..profiling.model_profile import Profile
from ..quantizer.search import Candidate, SearchResult, search, search_on_ray
from ..runtime.executable import Executable
from .options import Subcommands, add_command, add_json, add_model, add_recipe, add_target, positive_seconds
from .progress import progress_bar
from .samples import read_samples
from .sources import UsageError, load_model, recipe_of, shape_options


def add_to(commands: Subcommands) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "search",
        call,
        example="octavo search m.onnx --profile profile.json --max-drop 0.01 -o search\n"
        "  octavo quantize m.onnx --plan search/c003.plan.json -o m.int8.onnx",
    )
    add_model(parser, help="float model file: .onnx or .tflite")
    parser.add_argument(
        "--profile", type=Path, metavar="FILE", required=True, help="its profile, with the samples that it keeps (--keep-samples)"
    )
    parser.add_argument(
        "--data", type=Path, metavar="FILE", help="samples to compare models on: .npy or .npz (default: the profile's)"
    )
    parser.add_argument(
        "--evaluate",
        metavar="FILE.py:FUNCTION",
        help="what a model is worth: your function of an octavo.Executable that returns a number, greater for better",
    )
    parser.add_argument(
        "--max-drop", type=float, metavar="D", help="by how much less than the float model's that number may be (default: any)"
    )
    parser.add_argument("--seconds", type=positive_seconds, default=600.0, metavar="S", help="time to spend (default: 600)")
    parser.add_argument("--candidates", type=int, default=24, metavar="N", help="how many to try at most (default: 24)")
    parser.add_argument(
        "-o", "--output", type=Path, required=True, metavar="FOLDER", help="folder for the plans; a search found there goes on"
    )
    parser.add_argument(
        "--ray",
        nargs="?",
        const="",
        metavar="ADDRESS",
        help="measure candidates on a Ray cluster, the one at ADDRESS or one started here; the same result (pip install "
        "'octavo[ray]')",
    )
    add_target(parser)
    add_json(parser)
    add_recipe(parser)


def call(args: argparse.Namespace) -> int:
    """Run the command."""
    if args.plan is not None:
        raise UsageError("a plan leaves nothing to search; give --profile alone")
    evaluate = None if args.evaluate is None else _function(args.evaluate)
    profile = Profile.load(args.profile)
    data = None if args.data is None else read_samples(args.data)
    if args.ray is None:
        run = partial(search, load_model(args))
    else:
        run = partial(search_on_ray, args.model, address=args.ray or None, **shape_options(args))
    with progress_bar("search", args.candidates, "candidate") as advance:
        result = run(
            profile,
            data,
            evaluate=evaluate,
            max_drop=args.max_drop,
            seconds=args.seconds,
            candidates=args.candidates,
            target=args.target,
            recipe=recipe_of(args),
            folder=args.output,
            progress=lambda _: advance(1),
        )
    print(json.dumps(result.to_json(), indent=2) if args.json else _table(result))
    return 0


def _function(text: str) -> Callable[[Executable], float]:
    """Return the function that FILE.py:FUNCTION names; UsageError."""
    file, _, name = text.rpartition(":")
    spec = importlib.util.spec_from_file_location("evaluation", file) if file.endswith(".py") and Path(file).is_file() else None
    if spec is None or spec.loader is None:
        raise UsageError(f"--evaluate {text}: no such file of Python; give FILE.py:FUNCTION")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if not callable(getattr(module, name, None)):
        raise UsageError(f"--evaluate {text}: {file} has no function {name!r}")
    function: Callable[[Executable], float] = getattr(module, name)
    return function


def _table(result: SearchResult) -> str:
    best, front = result.best, result.front
    word = "best" if result.max_drop is None or result.is_enough(best) else "nearest"
    rows = [_cells(result, each, mark=word if each is best else "") for each in front or (best,)]
    table = markdown_table(("candidate", "metric", "drop", "SQNR dB", "cost", "in float", ""), rows)
    float_metric = "" if result.float_metric is None else f"; the float model's metric is {result.float_metric:.4g}"
    ended = "" if result.finished else "; not finished: the same command goes on from here"
    file = best.path or "no candidate was measured"
    said = f"best: {file}"
    if best.metric is not None and result.max_drop is not None and not result.is_enough(best):
        wanted = "" if result.min_sqnr is None else f" with the {result.min_sqnr:g} dB of --min-sqnr"
        said = f"none is within --max-drop {result.max_drop:g}{wanted}; the most accurate: {file}"
    cut = f"\nfor want of time: {'; '.join(result.cut)}" if result.cut else ""
    return f"{table}\n\n{len(front)} of {len(result.candidates)} candidates are worth having{float_metric}{ended}{cut}\n{said}"


def _cells(result: SearchResult, candidate: Candidate, *, mark: str) -> tuple[str, ...]:
    drop = result.drop(candidate)
    return (
        candidate.name,
        "" if candidate.metric is None else f"{candidate.metric:.4g}",
        "" if drop is None else f"{drop:.4g}",
        "" if candidate.sqnr_db is None else f"{candidate.sqnr_db:.1f}",
        f"{100 * candidate.cost:.1f}%",
        str(len(candidate.float_tensors)),
        mark,
    )
