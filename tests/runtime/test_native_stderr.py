"""In a process of its own: pytest captures file descriptor 2 itself."""

import fcntl
import os
import pty
import struct
import subprocess
import termios
from pathlib import Path

import octavo
from child_python import child_python, run_python

ALONE = f"""
import sys, types
for name, folder in (("octavo", ""), ("octavo.runtime", "/runtime"), ("octavo.cli", "/cli")):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = [{str(Path(octavo.__file__).parent)!r} + folder]
"""
"""The packages without what they import, which takes longer than these tests: the modules in question need nothing of it."""

SCRIPT = f"""{ALONE}
import os, sys
from octavo.runtime.native_stderr import native_stderr_closed
with native_stderr_closed():
    os.write(2, b"noise of a C++ library\\n")
    print("progress", file=sys.stderr)
os.write(2, b"native again\\n")
print("python again", file=sys.stderr)
"""


def test_only_native_writes_vanish_and_only_meanwhile() -> None:
    done = run_python(SCRIPT, check=True)
    assert done.stderr.splitlines() == ["progress", "native again", "python again"]


BAR = f"""{ALONE}
import os, sys, time
from octavo.runtime.native_stderr import native_stderr_closed
from octavo.cli.progress import progress_bar
with native_stderr_closed(), progress_bar("profile", 3, "run") as advance:
    os.write(2, b"noise of a C++ library")
    time.sleep(0.2)  # the bar is drawn ten times a second at most
    advance(3)
print("done")
"""


def test_a_terminal_sees_progress_and_no_noise() -> None:
    terminal, program_side = pty.openpty()
    fcntl.ioctl(program_side, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    done = subprocess.run(child_python(BAR), stdout=subprocess.PIPE, stderr=program_side, text=True, check=True)
    os.close(program_side)
    shown = os.read(terminal, 10_000).decode()
    os.close(terminal)
    assert done.stdout == "done\n"
    assert "profile: " in shown
    assert "3/3" in shown
    assert "noise" not in shown


def test_a_file_sees_neither() -> None:
    done = run_python(BAR, check=True)
    assert (done.stdout, done.stderr) == ("done\n", "")
