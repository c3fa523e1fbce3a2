"""`octavo conformance`: cases that hardware of a target description must pass, and their runner."""

from __future__ import annotations

import argparse
from pathlib import Path

from ..evaluation.conformance import run, write
from .options import Subcommands, add_command
from .outputs import check_output, write_file
from .progress import progress_bar


def add_to(commands: Subcommands) -> None:
    """Add the command and its subcommand."""
    parser = add_command(commands, "conformance", call_write, example="octavo conformance my-npu.json -o cases")
    parser.add_argument("target", metavar="DESCRIPTION", help="a target description, JSON, or another target that compile takes")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="DIR", help="new folder for the cases")
    parser.usage = "octavo conformance DESCRIPTION -o DIR\n       octavo conformance run DIR --command CMD [options]"
    subcommands = parser.add_subcommands()
    runner = add_command(
        subcommands, "conformance run", call_run, example='octavo conformance run cases --command "./simulator {case} {output}"'
    )
    runner.add_argument("folder", type=Path, metavar="DIR", help="folder that octavo conformance wrote")
    runner.add_argument(
        "--command",
        required=True,
        metavar="CMD",
        help="run for each case: {case} is its folder, {output} the .npz that the command writes, one array for each output",
    )
    runner.add_argument("--junit", type=Path, metavar="FILE", help="report to write, JUnit XML")
    runner.add_argument("--html", type=Path, metavar="FILE", help="report to write, one HTML page")


def call_write(args: argparse.Namespace) -> int:
    """Write cases."""
    print(f"{args.output}: {write(args.target, args.output).summary}")
    return 0


def call_run(args: argparse.Namespace) -> int:
    """Run cases; 1 where one failed."""
    for path in (args.junit, args.html):
        if path is not None:
            check_output(path)
    with progress_bar("conformance", None, "case") as advance:
        report = run(args.folder, args.command, progress=lambda _: advance(1))
    for path, text in ((args.junit, report.junit), (args.html, report.html)):
        if path is not None:
            content = text().encode()
            write_file(path, lambda file, content=content: file.write(content))
    print(report.summary)
    return 0 if report.passed else 1
