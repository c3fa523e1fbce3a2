"""Back ends: what hardware computes, as data, and the code of its composites."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ...ir.composites.attributes import Composite
    from . import toolkit
    from .protocol import Backend, Code, CodeGenerator, CSource, ObjectCode

__all__ = ["Backend", "CSource", "Code", "CodeGenerator", "Composite", "ObjectCode", "toolkit"]

_HOMES = {"Composite": "...ir.composites.attributes", "toolkit": ".toolkit"}
"""The module of each public name; the protocol's for the others."""


def __getattr__(name: str) -> Any:
    """Import a public name where it is first used: what runs code on a device needs no TVM."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(_HOMES.get(name, ".protocol"), __name__)
    return module if name == "toolkit" else getattr(module, name)
