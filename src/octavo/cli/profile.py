"""`octavo profile`: from a model and samples to a profile file."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from ..ir.graph.inputs import input_specs
from ..profiling import KEEP_SAMPLES, Checkpoint, Profile, samples_path
from ..profiling.cluster import profile_on_ray
from ..profiling.profile import profile
from . import check, profiles, tables
from .calibration import Stream, add_data, open_data
from .options import Subcommands, add_command, add_model, add_output, add_state, add_threads, sample_count, sample_limit
from .profiles import check_profile_output
from .progress import progress_bar
from .sources import UsageError, load_model, shape_options

CHECKPOINT_SUFFIX = ".checkpoint"


def add_to(commands: Subcommands) -> None:
    """Add the command and its subcommands; a model file that is called like one is reached as "./merge"."""
    parser = add_command(commands, "profile", call, example="octavo profile m.onnx --data calib.npz -o profile.json")
    add_model(parser)
    add_data(parser)
    parser.add_argument(
        "--target",
        metavar="NAME",
        help='where the model runs and is observed: "cpu", this machine, or a GPU ("cuda", "cuda.sm_80") (default: cpu)',
    )
    parser.add_argument(
        "--tensors",
        action="append",
        metavar="PATTERN",
        help='profile only these: a TensorId, a name in the source or an op, "*" for any part of it (may be repeated)',
    )
    parser.add_argument(
        "--keep-samples",
        type=sample_limit,
        default=KEEP_SAMPLES,
        metavar="N",
        help="keep at most N of the samples themselves, in FILE.samples beside the output FILE, for stages that run the model "
        f"again; 0: none, where they are private (default: {KEEP_SAMPLES})",
    )
    parser.add_argument(
        "--checkpoint",
        type=sample_count,
        metavar="N",
        help="keep the profile so far in FILE.checkpoint, beside the output FILE: a kill loses at most N samples",
    )
    parser.add_argument(
        "--resume", type=Path, metavar="FILE", help="checkpoint of a run over the same --data; the samples in it are skipped"
    )
    parser.add_argument(
        "--ray",
        nargs="?",
        const="",
        metavar="ADDRESS",
        help="profile on a Ray cluster, the one at ADDRESS or one started here; the same bytes (pip install 'octavo[ray]')",
    )
    add_state(parser)
    add_output(parser, help="profile to write, JSON")
    add_threads(parser)
    parser.usage = "octavo profile MODEL --data FILE -o FILE [options]\n       octavo profile SUBCOMMAND ..."
    subcommands = parser.add_subcommands()
    for module in (profiles, tables, check):
        module.add_to(subcommands)


def call(args: argparse.Namespace) -> int:
    """Run the command."""
    check_profile_output(args.output, args.model, *args.data)
    if args.ray is not None and (args.checkpoint is not None or args.resume is not None):
        raise UsageError("--checkpoint and --resume go with one stream of samples; leave them out, or --ray")
    if args.ray is not None and args.state:
        raise UsageError("--state carries values from one sample to the next, which --ray would spread: leave one out")
    if args.ray is not None and args.target is not None:
        raise UsageError("--ray spreads samples over CPUs; leave it out, or --target")
    kept = None
    if args.checkpoint is not None:
        kept = Checkpoint(path=args.output.with_name(args.output.name + CHECKPOINT_SUFFIX), every=args.checkpoint)
        check_profile_output(kept.path, args.model, *args.data)
    model = load_model(args)
    specs = input_specs(model)
    state = dict(args.state)
    batches = open_data(args, [spec for spec in specs if spec.source_name not in state.values()])
    with progress_bar("profile", batches.runs, "run") as advance:
        if args.ray is not None:
            result = _on_ray(args, batches, advance)
        else:
            result = profile(
                model,
                batches,
                target=args.target,
                tensors=args.tensors,
                threads=args.threads,
                checkpoint=None if kept is None else kept.path,
                every=1 if kept is None else kept.every,
                resume=args.resume,
                progress=lambda _: advance(1),
                keep_samples=args.keep_samples,
                state=state,
            )
    if kept is None:
        result.save(args.output)
    else:
        kept.finish(result, args.output)
    where = f" in {samples_path(args.output)}" if result.kept_samples else ""
    print(f"{args.output}: {len(result.tensors)} tensors, {result.samples} samples, {len(result.kept_samples)} kept{where}")
    for entry in result.values():
        if entry.kind != "constant" and entry.non_finite_note:
            print(f"warning: {entry.non_finite_note}")
            break
    return 0


def _on_ray(args: argparse.Namespace, batches: Stream, advance: Callable[[int], None]) -> Profile:
    done = 0

    def note(samples: int) -> None:
        nonlocal done
        advance(samples - done)
        done = samples

    return profile_on_ray(
        args.model,
        batches,
        address=args.ray or None,
        **shape_options(args),
        tensors=args.tensors,
        threads=args.threads,
        progress=note,
        keep_samples=args.keep_samples,
    )
