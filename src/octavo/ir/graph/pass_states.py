"""What instruments that follow one module through passes share: which of the passes that run are steps of that module.

Passes run passes of their own: those of a pipeline go on where the last one ended and are steps, others work on modules of their
own and are none. It keeps no module longer than until the next step.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import tvm
from tvm.ir.instrument import PassInstrument


class PassStates(PassInstrument):
    """Gives the states of a module whose entry function is `entry` to `take`, whoever runs the passes."""

    # TVM's classes have no room for attributes of their own.
    __slots__ = ("__dict__",)

    def __init__(self, entry: str = "main") -> None:
        super().__init__()
        self.entry = entry
        self._running: list[bool] = []

    @property
    @abstractmethod
    def functions(self) -> Any:
        """The functions of the module as the last step left it, None before the first."""

    @abstractmethod
    def take(self, pass_name: str | None, module: tvm.IRModule) -> None:
        """Take the module that a pass made, or, where the name is None, one that a pass is given and no pass made."""

    def run_before_pass(self, mod: tvm.IRModule, info: Any) -> None:
        """Take the module if something other than a pass changed it."""
        if self._running:
            is_ours = same_functions(mod.functions, self.functions)
        else:
            is_ours = self.entry in {var.name_hint for var in mod.get_global_vars()}
            if is_ours and not same_functions(mod.functions, self.functions):
                self.take(None, mod)
        self._running.append(is_ours)

    def run_after_pass(self, mod: tvm.IRModule, info: Any) -> None:
        """Take the module if the pass changed it."""
        if self._running.pop() and not same_functions(mod.functions, self.functions):
            self.take(str(info.name), mod)


def same_functions(a: Any, b: Any) -> bool:
    """Return whether two modules' functions are the same objects; None stands for no module."""
    if a is None or b is None:
        return False
    if a.same_as(b):
        return True
    if len(a) != len(b):
        return False
    others = {var.name_hint: function for var, function in b.items()}
    return all(var.name_hint in others and function.same_as(others[var.name_hint]) for var, function in a.items())
