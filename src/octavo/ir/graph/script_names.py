"""Constructors of Octavo's own Relax ops under their names in TVMScript, R.octavo.NAME. It makes no op."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from tvm.relax import script as _script
from tvm.relax.script import parser as _parser


def enter(name: str, construct: Callable[..., Any]) -> None:
    """Let TVMScript find what makes a call of an op."""
    # `R` of a module's source text is the one, of a decorated class the other.
    for module in (_script, _parser):
        found: Any = module
        if not hasattr(found, "octavo"):
            found.octavo = SimpleNamespace()
        setattr(found.octavo, name, construct)
