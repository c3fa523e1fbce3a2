"""How tests are skipped. Where `CI` is set, tests/conftest.py makes every skip a failure but those of `MachineLacks`."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import pytest


class MachineLacks(pytest.skip.Exception):
    """The machine lacks an ISA or a device, which nobody can install. The run's closing lines count these skips.

    Parameters
    ----------
    what
        What is missing.
    """

    def __init__(self, what: str) -> None:
        super().__init__(f"needs {what}")
        self.what = what


def find_program(*names: str) -> str | None:
    """Return the path of the first of these programs that there is.

    .ci/run installs programs beside the tests, and the file that OCTAVO_INSTALLING names is there until all of them are complete.
    """
    while Path(os.environ.get("OCTAVO_INSTALLING") or os.devnull).is_file():
        time.sleep(0.5)
    return next(filter(None, map(shutil.which, names)), None)


def needs_programs(*programs: str, installed_by: str = "make programs") -> None:
    """Skip the test where one of these programs is missing, which in CI is a failure."""
    missing = [program for program in programs if find_program(program) is None]
    if missing:
        pytest.skip(f"no {' and no '.join(missing)}: {installed_by}")
