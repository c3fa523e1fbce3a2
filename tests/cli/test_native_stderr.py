"""In a process of its own: pytest captures file descriptor 2 itself."""

import subprocess
import sys

SCRIPT = """
import os, sys
from octavo.cli.native_stderr import native_stderr_closed
with native_stderr_closed():
    os.write(2, b"noise of a C++ library\\n")
    print("progress", file=sys.stderr)
os.write(2, b"native again\\n")
print("python again", file=sys.stderr)
"""


def test_only_native_writes_vanish_and_only_meanwhile() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    assert done.stderr.splitlines() == ["progress", "native again", "python again"]
