"""The site, as Sphinx builds it (`make docs`). The options of commands and the public Python names are read from the code."""

import argparse
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ["COLUMNS"] = "100"  # of argparse's help
# TVM imports PyTorch where it is, for seconds; no page shows anything of it. So does a module say that it isn't installed.
sys.modules.setdefault("torch", None)  # pyright: ignore[reportArgumentType]

import octavo  # noqa: E402
from octavo.cli.main import build_parser  # noqa: E402

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks"))

import notebook  # noqa: E402

project = "Octavo"
author = "Octavo's developers"
version = release = octavo.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
myst_heading_anchors = 3
html_theme = "furo"
html_title = f"Octavo {version}"
html_copy_source = html_show_sourcelink = False
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_class_signature = "separated"
napoleon_google_docstring = False
napoleon_use_ivar = True  # parameters of a dataclass are its attributes, which autodoc describes once more otherwise
maximum_signature_line_length = 90
suppress_warnings = ["misc.highlighting_failure"]

NOTEBOOK = """\
```{note}
This page is a notebook, [main_path.ipynb](../tutorials/main_path.ipynb), to be opened in Jupyter and run again.
```
"""
REFERENCE = Path(__file__).parent / "reference"
COMMANDS = """\
# Options of each command

What `octavo COMMAND --help` prints, for every command. [The command line](../cli.md) tells what they are for.
"""
PYTHON = """\
# Python

The names of `import octavo`. In which file each is, says [Architecture](../architecture.md#where-each-verb-starts).
"""


def _parsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """Yield the parser of each command and subcommand, in the order of their help."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for each in dict.fromkeys(action.choices.values()):
                yield each
                yield from _parsers(each)


def _write_reference(app: Any) -> None:
    """Write the pages that are read from the code."""
    helps = [f"## {each.prog}\n\n```text\n{each.format_help().rstrip()}\n```\n" for each in _parsers(build_parser())]
    names = sorted((name for name in octavo.__all__ if name != "__version__"), key=str.lower)
    entries = [f"## {name}\n\n```{{eval-rst}}\n{_directive(name)}\n```\n" for name in names]
    REFERENCE.mkdir(exist_ok=True)
    cells = notebook.page(notebook.read()).split("\n", 1)
    pages = {
        "commands.md": [COMMANDS, *helps],
        "python.md": [PYTHON, *entries],
        "main_path.md": [cells[0] + "\n", NOTEBOOK, cells[1]],
    }
    for file, parts in pages.items():
        (REFERENCE / file).write_text("\n".join(parts), encoding="utf-8")


def _directive(name: str) -> str:
    if not isinstance(getattr(octavo, name), type):
        return f".. autofunction:: octavo.{name}"
    return f".. autoclass:: octavo.{name}\n   :members:\n   :exclude-members: __init__, __new__"


def setup(app: Any) -> None:
    """Write the pages before Sphinx looks for them."""
    app.connect("builder-inited", _write_reference)
