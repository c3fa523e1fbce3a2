"""Executables from files, for what this machine has: its CPU, or its CPU as `OCTAVO_TARGET` narrows it, and its devices."""

from __future__ import annotations

from pathlib import Path

from ..runtime.executable import Executable
from .backends.devices import device_backend
from .target_choice import present_features


def load_executable(path: str | Path) -> Executable:
    """Load an executable that `Executable.save` wrote. It holds machine code: load only files you trust."""
    return Executable.load(path, present_features(), lambda name, data, constants: device_backend(name).loaded(data, constants))
