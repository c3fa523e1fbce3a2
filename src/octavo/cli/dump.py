"""`--dump-ir`: the folder that a command writes the IR to while its passes run."""

from __future__ import annotations

import argparse
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import tvm

from ..ir.graph.dump_ir import DumpIR, dump_name
from .outputs import check_output


def add_dump_ir(parser: argparse.ArgumentParser) -> None:
    """Add --dump-ir."""
    parser.add_argument(
        "--dump-ir", type=Path, metavar="DIR", help="write the IR after every pass that changes it into this folder"
    )


def check_folder(folder: Path) -> None:
    """Make the folder and make sure that files can be written there."""
    if folder.parent.is_dir():
        folder.mkdir(exist_ok=True)
    check_output(folder / dump_name(0, "source"))


@contextmanager
def dumping(folder: Path | None) -> Generator[None]:
    """Write the IR after every pass that runs inside; nothing where there is no folder."""
    if folder is None:
        yield
        return
    check_folder(folder)
    dump = DumpIR(folder)
    try:
        with tvm.transform.PassContext(instruments=[dump]):
            yield
    except Exception:
        if dump.error is not None:
            raise dump.error from None
        raise
