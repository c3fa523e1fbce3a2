"""Passes over a module as data: name, summary, the reason for the place in the order, and the function. Knows no pass.

A function of a module becomes a TVM pass here, so that the instruments of a PassContext see it by its name.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import tvm

from .sizes import sizes_of

PREFIX = "octavo."
"""Of the names under which TVM's instruments see our passes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GraphPass:
    """One pass of a list.

    Parameters
    ----------
    function
        Returns the module that it makes of one; the very module that it was given where it finds nothing to do.
    reason
        Why it stands where it does in its list.
    uses_context
        Whether the function takes, after the module, what the passes of its list share.
    """

    function: Callable[..., tvm.IRModule]
    reason: str
    uses_context: bool = False

    @property
    def name(self) -> str:
        """The name of the function, and of the file that it is in."""
        return self.function.__name__

    @property
    def summary(self) -> str:
        """The first line of the function's docstring."""
        return summary_of(self.function)

    def __call__(self, module: tvm.IRModule, context: Any) -> tvm.IRModule:
        """Run the function alone: no instrument sees it."""
        return self.function(module, context) if self.uses_context else self.function(module)


def summary_of(function: Callable[..., Any]) -> str:
    """Return the first line of a function's docstring, without its full stop."""
    return (inspect.getdoc(function) or "").partition("\n")[0].removesuffix(".")


def run_passes(passes: Iterable[GraphPass], module: tvm.IRModule, context: Any) -> tvm.IRModule:
    """Run passes in order, each as a TVM pass."""
    for each in passes:
        module = run_as_pass(each.name, module, lambda given, each=each: each(given, context))
    return module


def run_as_pass(name: str, module: tvm.IRModule, function: Callable[[tvm.IRModule], tvm.IRModule]) -> tvm.IRModule:
    """Run a function of a module as a TVM pass, whose errors are raised as they are (TVM would make each a RuntimeError)."""
    errors: list[Exception] = []

    def run(given: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
        try:
            has_main = any(var.name_hint == "main" for var in given.get_global_vars())
            with sizes_of(given["main"]) if has_main else nullcontext():
                return function(given)
        except Exception as error:
            errors.append(error)
            raise

    made: Any = tvm.transform.module_pass(run, opt_level=0, name=f"{PREFIX}{name}")
    try:
        return made(module)
    except Exception:
        if errors:
            raise errors[0] from errors[0].__cause__  # TVM's frames are left out, what the error came from is not
        raise
