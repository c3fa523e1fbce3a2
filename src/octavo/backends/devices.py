"""Which devices with memory of their own there are: the first word of a target's name, and where its back end stands."""

from __future__ import annotations

import importlib
from collections.abc import Mapping

from ..errors import TargetError
from .protocol import DeviceBackend

DEVICES: Mapping[str, str] = {"cuda": ".cuda.backend"}
"""By the first word of what `target=` takes ("cuda.sm_80"): the module of a function `backend_of` of that name."""


def device_backend(name: str) -> DeviceBackend:
    """Return the back end that a name stands for; TargetError where its device has none of that name."""
    kind = name.split(".", 1)[0]
    if kind not in DEVICES:
        raise TargetError(f"unknown device {name!r}: choose from {', '.join(DEVICES)}")
    backend: DeviceBackend = importlib.import_module(DEVICES[kind], __package__).backend_of(name)
    return backend


def is_device(name: str) -> bool:
    """Return whether a name is that of a device."""
    return name.split(".", 1)[0] in DEVICES
