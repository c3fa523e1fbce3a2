"""Python in processes of their own, without PyTorch: TVM imports it where it is, which takes longer than what these tests ask.

`octavo_command` leaves it out by itself.
"""

import subprocess
import sys
from typing import Any

OCTAVO = (sys.executable, "-m", "octavo_command")
"""The `octavo` of this environment, as its front door is called."""


def child_python(program: str, *words: object) -> list[str]:
    """The command line that runs a program with these words as its arguments."""
    return [sys.executable, "-c", f"import sys; sys.modules['torch'] = None\n{program}", *map(str, words)]


def run_python(program: str, *words: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a program to its end and keep what it writes."""
    return subprocess.run(child_python(program, *words), **{"capture_output": True, "text": True, "check": False, **options})
