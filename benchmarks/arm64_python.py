"""Python for ARM64 with TVM's own wheel, run by QEMU: set up once in a folder, from Debian's packages and PyPI's.

    python benchmarks/arm64_python.py FOLDER        sets it up and prints TVM's version as it says it there

Needs qemu-aarch64 (`make emulation`), apt, dpkg and pip. Nothing is installed on this machine: packages are unpacked in FOLDER.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[1] / "src"
PACKAGES = ("python3-minimal", "libpython3-stdlib", "libstdc++6", "zlib1g")
WHEELS = ("apache-tvm", "apache-tvm-ffi", "numpy", "ml_dtypes", "onnx", "flatbuffers", "tflite", "threadpoolctl", "tqdm")
"""What Octavo imports, in the versions that this process has."""

APT = """\
APT::Architecture "arm64";
APT::Architectures {{ "arm64"; }};
APT::Sandbox::User "root";
Dir::State "{folder}/state";
Dir::State::status "{folder}/status";
Dir::Cache "{folder}/cache";
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Arm64Python:
    """What was set up: the root of its system, its packages, and its Python."""

    root: Path
    packages: Path
    python: Path

    def run(self, arguments: Sequence[str], cpu: str, text: str = "") -> str:
        """Run Python on an emulated CPU with `text` as its standard input; return what it prints. Octavo is this checkout's."""
        given = {"PYTHONPATH": f"{SOURCE}:{self.packages}", "PYTHONHOME": str(self.root / "usr"), "OCTAVO_TARGET": ""}
        emulator = ["qemu-aarch64", "-cpu", cpu, "-L", str(self.root)]
        for name, value in given.items():
            emulator += ["-E", f"{name}={value}"]
        command = [*emulator, str(self.python), *arguments]
        done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{self.python} on {cpu}: exit code {done.returncode}:\n{done.stderr[-2000:]}")
        return done.stdout


def set_up(folder: Path) -> Arm64Python:
    """Return the Python in a folder, which is filled if it is new."""
    root, packages = folder / "root", folder / "packages"
    if not (folder / "complete").exists():
        _unpack_debian(folder, root)
        _install_wheels(packages, _python_of(root).name.removeprefix("python"))
        (folder / "complete").touch()
    return Arm64Python(root=root, packages=packages, python=_python_of(root))


def _unpack_debian(folder: Path, root: Path) -> None:
    """Download Python and what it needs, as apt resolves it for an empty ARM64 system, and unpack it."""
    for each in ("state/lists/partial", "cache/archives/partial"):
        (folder / each).mkdir(parents=True, exist_ok=True)
    (folder / "status").touch()
    (folder / "apt.conf").write_text(APT.format(folder=folder.resolve()), encoding="utf-8")
    environment = {**os.environ, "APT_CONFIG": str(folder / "apt.conf")}
    options = ["--yes", "--quiet", "--download-only", "--no-install-recommends"]
    for command in (["update", "--quiet"], ["install", *options, *PACKAGES]):
        subprocess.run(["apt-get", *command], env=environment, check=True, capture_output=True)
    for package in sorted((folder / "cache" / "archives").glob("*.deb")):
        subprocess.run(["dpkg-deb", "-x", str(package), str(root)], check=True)


def _python_of(root: Path) -> Path:
    return next(path for path in sorted((root / "usr" / "bin").iterdir()) if re.fullmatch(r"python3\.\d+", path.name))


def _install_wheels(packages: Path, version: str) -> None:
    """Install the wheels for ARM64 Linux, of any of glibc's versions that Debian's is not older than."""
    platforms = [f"manylinux_2_{minor}_aarch64" for minor in range(36, 16, -1)] + ["manylinux2014_aarch64"]
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--only-binary=:all:", "--python-version", version]
    command += [word for platform in platforms for word in ("--platform", platform)]
    wheels = [f"{name}=={metadata.version(name)}" for name in WHEELS]
    subprocess.run([*command, "--target", str(packages), *wheels], check=True)


def main() -> int:
    made = set_up(Path(sys.argv[1]))
    print(made.run(["-c", "import tvm; print(tvm.__version__)"], "max"), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
