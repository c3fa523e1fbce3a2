"""`octavo report`: a profile as one page for the browser."""

from __future__ import annotations

import argparse
from pathlib import Path

from ..profile import Profile
from ..report import profile_page
from .options import Subcommands, add_command, add_output
from .outputs import check_output, write_file


def add_to(commands: Subcommands) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "report",
        call,
        example="octavo report profile.json -o report.html",
    )
    parser.add_argument("profile", type=Path, metavar="PROFILE", help="what `octavo profile` wrote")
    add_output(parser, help="page to write, HTML; it opens without a network")


def call(args: argparse.Namespace) -> int:
    """Run the command."""
    check_output(args.output, args.profile)
    profile = Profile.load(args.profile)
    page = profile_page(profile, title=args.profile.name).encode()
    write_file(args.output, lambda file: file.write(page))
    print(f"{args.output}: {len(profile)} tensors, {len(page) / 1e6:.1f} MB")
    return 0
