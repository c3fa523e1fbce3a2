"""How tests are skipped. Where `CI` is set, tests/conftest.py makes every skip a failure but those of `MachineLacks`."""

from __future__ import annotations

import shutil

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


def needs_programs(*programs: str, installed_by: str = "make programs") -> None:
    """Skip the test where one of these programs is missing, which in CI is a failure."""
    missing = [program for program in programs if shutil.which(program) is None]
    if missing:
        pytest.skip(f"no {' and no '.join(missing)}: {installed_by}")
