"""One executable for CPUs of different features: a model compiled for each portable target, in one file."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..compiler.target_choice import portable_targets
from ..ir.graph import Model
from ..quantizer.compile import compile
from ..runtime.executable import Executable
from ..runtime.versions import write_versions


def compile_versions(model: Model, **options: Any) -> list[Executable]:
    """Compile a model for every portable target, best first; `options` are those of `compile`, but `target`.

    Raises
    ------
    TargetError
        This machine is of another architecture than those targets.
    """
    return [compile(model, target=target, **options) for target in portable_targets()]


def save_versions(executables: Sequence[Executable], path: str | Path) -> None:
    """Write executables of one model, best first, as one file; `load_executable` takes the first that the CPU can run."""
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder) / f"{number}.so" for number in range(len(executables))]
        for executable, file in zip(executables, files, strict=True):
            executable.save(file)
        write_versions(path, files, [executable.description.features for executable in executables])
