"""`octavo passes`: every pass in order, what it does and why it stands there."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict

from ..compiler.passes import ListedPass, listed_passes
from ..compiler.text_table import markdown_table
from .options import Subcommands, add_command, add_json


def add_to(commands: Subcommands) -> None:
    """Add the command."""
    add_json(add_command(commands, "passes", call, example="octavo passes"))


def call(args: argparse.Namespace) -> int:
    """Run the command."""
    passes = listed_passes()
    print(json.dumps({"passes": [asdict(each) for each in passes]}, indent=2) if args.json else table_of(passes))
    return 0


def table_of(passes: tuple[ListedPass, ...]) -> str:
    """Return the list as a table of Markdown, and which passes of TVM its passes run; docs/architecture.md has both."""
    rows = [(each.stage, each.name, each.summary, each.reason) for each in passes]
    tvm_passes = [f"`{each.name}` runs TVM's {', '.join(each.runs)}." for each in passes if each.runs]
    return "\n\n".join((markdown_table(("stage", "pass", "what it does", "why here"), rows), *tvm_passes))
