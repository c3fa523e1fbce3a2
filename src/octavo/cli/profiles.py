"""`octavo profile merge`, `diff` and `adequacy`: what is done with profiles once they are files."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from ..compiler.text_table import markdown_table
from ..errors import ProfileError
from ..profiling import Adequacy, Profile, ProfileDiff, TensorAdequacy, adequacy, check_same_model, diff, samples_path
from .options import Subcommands, add_command, add_json, add_output
from .outputs import check_output

_MAX_CHANNELS = 8


def add_to(commands: Subcommands) -> None:
    """Add the commands."""
    merge = add_command(
        commands, "profile merge", call_merge, example="octavo profile merge monday.json tuesday.json -o week.json"
    )
    merge.add_argument("first", type=Path, metavar="PROFILE", help="profile to merge")
    merge.add_argument("others", type=Path, nargs="+", metavar="PROFILE", help="profiles of other samples")
    add_output(merge, help="profile to write, JSON")
    compare = add_command(commands, "profile diff", call_diff, example="octavo profile diff monday.json tuesday.json")
    compare.add_argument("before", type=Path, metavar="PROFILE", help="profile to start from")
    compare.add_argument("after", type=Path, metavar="PROFILE", help="profile to compare with it")
    add_json(compare)
    check = add_command(
        commands,
        "profile adequacy",
        call_adequacy,
        example="octavo profile adequacy profile.json",
    )
    check.add_argument("profile", type=Path, metavar="PROFILE", help="what `octavo profile` wrote")
    add_json(check)


def check_profile_output(path: Path, *sources: Path) -> None:
    """Make sure that a profile and the file of its samples can be written; raises as `check_output`."""
    for each in (path, samples_path(path)):
        check_output(each, *sources)


def call_merge(args: argparse.Namespace) -> int:
    """Run `profile merge`; one profile is in memory beside the merged one at any time."""
    check_profile_output(args.output, args.first, *args.others)
    merged = Profile.load(args.first)
    for path in args.others:
        part = Profile.load(path)
        check_same_model(merged, part, (str(args.first), str(path)))
        try:
            merged = merged.merge(part)
        except ProfileError as error:
            raise ProfileError(f"{path}: {error}") from error
    merged.save(args.output)
    print(f"{args.output}: {len(merged)} tensors, {merged.samples} samples of {1 + len(args.others)} profiles")
    return 0


def call_diff(args: argparse.Namespace) -> int:
    """Run `profile diff`."""
    before, after = Profile.load(args.before), Profile.load(args.after)
    check_same_model(before, after, (str(args.before), str(args.after)))
    found = diff(before, after)
    if args.json:
        print(json.dumps(_to_json(before, after, found), indent=2))
        return 0
    changed = [change for change in found.changes if change.has_changed]
    if changed:
        headers = ("tensor", "op", "before", "after", "range moved", "values moved", "NaN or infinite")
        rows = [
            (
                each.source_name or str(each.id),
                each.op,
                f"[{each.before[0]:.5g}; {each.before[1]:.5g}]",
                f"[{each.after[0]:.5g}; {each.after[1]:.5g}]",
                f"{each.range_change:.2%}",
                f"{each.values_change:.2%}",
                f"{each.non_finite_before} -> {each.non_finite_after}" if each.non_finite_before or each.non_finite_after else "",
            )
            for each in changed
        ]
        print(f"{markdown_table(headers, rows, names=(0,))}\n")
    for path, alone in ((args.before, found.only_before), (args.after, found.only_after)):
        if alone:
            print(f"only {path} observes {len(alone)} tensors: {', '.join(alone[:5])}{' ...' if len(alone) > 5 else ''}")
    if before.preprocessing != after.preprocessing:
        print(f"samples preprocessed as: {before.preprocessing or 'unknown'} -> {after.preprocessing or 'unknown'}")
    for name in sorted({*before.tools, *after.tools}):
        versions = [", ".join(side.tools.get(name, ())) or "none" for side in (before, after)]
        if versions[0] != versions[1]:
            print(f"made with {name}: {versions[0]} -> {versions[1]}")
    print(f"{len(changed)} of {len(found.changes)} tensors moved; {before.samples} and {after.samples} samples")
    return 0


def call_adequacy(args: argparse.Namespace) -> int:
    """Run `profile adequacy`."""
    found = adequacy(Profile.load(args.profile))
    if args.json:
        listed = {"samples": found.samples, "tensors": [tensor.to_json() for tensor in found.tensors]}
        print(json.dumps(listed, indent=2))
        return 0
    if found.growing:
        headers = ("tensor", "op", "range", "95% interval of its ends", "half the samples give", "the rest adds")
        print(f"{markdown_table(headers, [_growing_row(tensor) for tensor in found.growing], numbers=(4, 5), names=(0,))}\n")
    if found.silent:
        rows = [_silent_row(tensor) for tensor in found.silent]
        print(f"{markdown_table(('tensor', 'op', 'silent channels'), rows, names=(0,))}\n")
    print(_verdict(found))
    return 0


def _growing_row(tensor: TensorAdequacy) -> tuple[str, ...]:
    how = tensor.convergence
    assert how is not None, "what grows was seen in enough samples"
    return (
        tensor.source_name or str(tensor.id),
        tensor.op or tensor.kind,
        f"[{tensor.minimum:.5g}; {tensor.maximum:.5g}]",
        f"[{how.minimum_interval[0]:.5g}; {how.minimum_interval[1]:.5g}] and "
        f"[{how.maximum_interval[0]:.5g}; {how.maximum_interval[1]:.5g}]",
        f"{1 - how.growth:.1%}",
        f"{how.growth:.1%}",
    )


def _silent_row(tensor: TensorAdequacy) -> tuple[str, ...]:
    channels = tensor.silent_channels
    more = len(channels) - _MAX_CHANNELS
    listed = ", ".join(map(str, channels[:_MAX_CHANNELS])) + (f" and {more} more" if more > 0 else "")
    return tensor.source_name or str(tensor.id), tensor.op or tensor.kind, f"{len(channels)}: {listed}"


def _verdict(found: Adequacy) -> str:
    known = len(found.tensors) - len(found.unknown)
    text = f"{found.samples} samples: {len(found.growing)} of {known} ranges still grow"
    text += f"; {sum(len(tensor.silent_channels) for tensor in found.silent)} channels of {len(found.silent)} tensors never fired"
    if found.unknown:
        text += f"; too few samples, or several to a run, to say it of {len(found.unknown)} tensors"
    return text


def _to_json(before: Profile, after: Profile, found: ProfileDiff) -> dict[str, object]:
    return {
        "samples": [before.samples, after.samples],
        "preprocessing": [before.preprocessing, after.preprocessing],
        "tools": [{name: list(versions) for name, versions in side.tools.items()} for side in (before, after)],
        "only_before": list(found.only_before),
        "only_after": list(found.only_after),
        "tensors": [{**change.to_json(), "moved": change.has_changed} for change in found.changes],
    }
