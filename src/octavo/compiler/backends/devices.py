"""Which devices with memory of their own there are: the first word of a target's name, and where its back end stands."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping

from ...errors import TargetError
from .protocol import DeviceBackend
from .tunable import Schedule

DEVICES: Mapping[str, str] = {"cuda": ".cuda.backend"}
"""By the first word of what `target=` takes ("cuda.sm_80"): the module of a function `backend_of` of that name, and of a function
`schedule_of` of what a file of tunings has."""


def device_backend(name: str) -> DeviceBackend:
    """Return the back end that a name stands for; TargetError where its device has none of that name."""
    kind = _kind(name)
    if kind not in DEVICES:
        raise TargetError(f"unknown device {name!r}: choose from {', '.join(DEVICES)}")
    backend: DeviceBackend = importlib.import_module(DEVICES[kind], __package__).backend_of(name)
    return backend


def schedule_reader(isa: str) -> Callable[[Mapping[str, object]], Schedule]:
    """Return what makes a schedule of the fields that a file has, for a device's ISA; it raises ValueError for others."""
    read: Callable[[Mapping[str, object]], Schedule] = importlib.import_module(DEVICES[_kind(isa)], __package__).schedule_of
    return read


def is_device(name: str) -> bool:
    """Return whether a name is that of a device."""
    return _kind(name) in DEVICES


def _kind(name: str) -> str:
    return name.split(".", 1)[0]
