"""Install what its words name under the constraints beside it: with uv, which takes a sixth of pip's time, from where pip would.

pip does it where uv is not to be had, or fails: then it is pip that says why. Runs in the environment that it installs into, and
imports the standard library alone.
"""

from __future__ import annotations

import ast
import importlib.util
import subprocess
import sys
from pathlib import Path

CONSTRAINTS = Path(__file__).with_name("constraints.txt")
# Modules are compiled when something imports them: most of these packages' never are.
PIP = ["install", "--quiet", "--disable-pip-version-check", "--no-compile"]
COMMON = ["--no-build-isolation", "--constraint", str(CONSTRAINTS)]
SOURCES = {"index-url": "--default-index", "extra-index-url": "--extra-index-url", "find-links": "--find-links"}
"""pip's settings of where packages lie, each with uv's option."""
LAYERS = ("global", "install", ":env:")
"""Where pip's settings stand; later ones count."""


def sources(settings: str) -> list[str]:
    """Return uv's options for what `pip config list` prints."""
    known = dict(line.split("=", 1) for line in settings.splitlines() if "=" in line)
    found: list[str] = []
    for name, option in SOURCES.items():
        said = [ast.literal_eval(known[key]) for layer in LAYERS if (key := f"{layer}.{name}") in known]
        found += [word for place in (said[-1].split() if said else ()) for word in (option, place)]
    return found


def pip(*words: str) -> subprocess.CompletedProcess[str]:
    """Run pip, and keep what it prints."""
    return subprocess.run([sys.executable, "-m", "pip", *words], stdout=subprocess.PIPE, text=True, check=False)


def by_uv(words: list[str]) -> bool:
    """Install with uv; False where it is missing or fails."""
    if importlib.util.find_spec("uv") is None:
        return False
    # The best match of all places, as pip takes it, and not of the first place that has the package.
    places = ["--index-strategy", "unsafe-best-match", *sources(pip("config", "list").stdout)]
    command = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--python", sys.executable]
    return subprocess.run([*command, *places, *COMMON, *words], check=False).returncode == 0


def main(words: list[str]) -> int:
    """Install, and return the exit code."""
    return 0 if by_uv(words) else pip(*PIP, *COMMON, *words).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
