"""Writing the IR after every pass that changes it, one numbered file for each. Changes no module."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tvm

from ...errors import DataError, check_path
from .pass_states import PassStates


def dump_name(index: int, pass_name: str) -> str:
    """Return the name of the file with the IR after a pass: "004_octavo.hoist_quantize.py"."""
    return f"{index:03d}_{pass_name.strip('()').replace(' ', '_')}.py"


class DumpIR(PassStates):
    """A pass instrument that writes the module as TVMScript after every pass that changes it, constants by reference.

    Example::

        with tvm.transform.PassContext(instruments=[DumpIR("ir")]):
            octavo.compile(model)             # ir/000_source.py, ir/001_octavo.outline_integer.py, ...

    Parameters
    ----------
    folder
        Where to; made if it is not there. A file of the same name is replaced once the new one is complete.

    Raises
    ------
    DataError
        The folder cannot be made. A file that cannot be written ends the pass; `error` keeps what went wrong.
    """

    def __init__(self, folder: str | Path) -> None:
        super().__init__()
        self.folder = check_path(folder, DataError, "the path of a folder to write the IR to")
        self.error: DataError | None = None
        self._count = 0
        self._functions: Any = None
        self._text = ""
        try:
            self.folder.mkdir(exist_ok=True)
        except OSError as error:
            raise DataError(f"{self.folder}: cannot make this folder: {error.strerror}; give another place") from error

    @property
    def functions(self) -> Any:
        """The functions of the module that was taken last."""
        return self._functions

    def take(self, pass_name: str | None, module: tvm.IRModule) -> None:
        """Write a module."""
        self._functions = module.functions
        text = module.script(show_meta=False)
        if text == self._text:  # written anew, the same as it was
            return
        self._text = text
        path = self.folder / dump_name(self._count, pass_name or ("between passes" if self._count else "source"))
        self._count += 1
        draft = path.with_name(f".{path.name}.part")
        try:
            draft.write_text(text, encoding="utf-8")
            draft.replace(path)
        except OSError as error:
            draft.unlink(missing_ok=True)
            self.error = DataError(f"{path}: cannot write: {error.strerror}; give another folder")
            raise self.error from error
