"""Octavo's own Relax ops: their entry in TVM's table, and their constructors in TVMScript, R.octavo.NAME. It defines none."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import tvm
import tvm.ir._ffi_api as _ir_ffi
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


def register(name: str, about: str, infer: Callable[[Any, Any], Any], construct: Callable[..., Any]) -> None:
    """Enter the op relax.octavo.NAME of a tuple of operands and a text, once a process: the type that it gives, and its name.

    Parameters
    ----------
    about
        What it computes, for TVM.
    infer
        Returns the type of a call's result.
    construct
        Makes a call of it.
    """
    full = f"relax.octavo.{name}"
    if full in tvm.ir.Op.list_op_names():
        return
    ffi: Any = _ir_ffi
    ffi.RegisterOp(full, about)
    op: Any = tvm.ir.Op.get(full)
    op.set_num_inputs(2)
    op.add_argument("operands", "Tuple", "")
    op.add_argument("what", "StringImm", "")
    op.set_attr("FInferType", infer)
    op.set_attr("FPurity", True)
    op.set_attr("RequiresArgumentShapes", False)
    enter(name, construct)
