"""The path of a convolution from a TFLite file to its kernel, as docs/architecture.md lists it: calls that make its forms."""

from __future__ import annotations

import inspect
import os
import re
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from tvm import relax

import octavo
from octavo.compiler.backends.cpu.kernels import AVX512_VNNI
from octavo.compiler.backends.cpu.kernels.conv.spec import Conv2dSpec
from octavo.compiler.backends.cpu.kernels.language.kernel import Kernel
from octavo.ir.composites.weighted import Conv2dOp
from octavo_parser import SUMMARIES

PAGE = Path(__file__).resolve().parents[2] / "docs" / "architecture.md"
PACKAGE = f"{Path(octavo.__file__).parent}{os.sep}"
MAX_FILES = 20


def listed() -> list[list[str]]:
    """The files that make each form, as the page lists them, without what repeats the row before."""
    text = PAGE.read_text(encoding="utf-8").split("## The path of one convolution")[1].split("\n## ")[0]
    rows = [line.split("|")[1:3] for line in text.splitlines() if line.startswith("| ") and ".py`" in line]
    return [re.findall(r"`([\w/]+\.py)`", made) for _, made in rows]


def test_each_verb_starts_in_the_file_that_the_page_says() -> None:
    text = PAGE.read_text(encoding="utf-8").split("## Where each verb starts")[1].split("\n## ")[0]
    rows = [[re.findall(r"`([^`]+)`", cell) for cell in line.split("|")[1:4]] for line in text.splitlines() if ".py` |" in line]
    places = {name: files for names, _, files in rows for name in names}
    verbs = {name for name in octavo.__all__ if inspect.isfunction(getattr(octavo, name))}
    assert places.keys() == verbs
    for name, files in places.items():
        assert (inspect.getsourcefile(getattr(octavo, name)) or "").removeprefix(PACKAGE) == files[0], name
    assert {command.split()[0] for _, commands, _ in rows for command in commands} <= SUMMARIES.keys()


def test_the_files_and_folders_of_the_page_exist() -> None:
    prose = re.sub(r"^```.*?^```$", "", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    named = {path for path in re.findall(r"`([\w/]+(?:\.py|/))`", prose) if path != "compose.py"}
    assert len(named) > 50
    assert [path for path in sorted(named) if not (Path(PACKAGE) / path).exists()] == []


def forms() -> list[str]:
    """The files that define the forms."""
    text = PAGE.read_text(encoding="utf-8").split("## The path of one convolution")[1].split("\n## ")[0]
    cells = [line.split("|")[1] for line in text.splitlines() if line.startswith("| ")]
    return [name for cell in cells for name in re.findall(r"`([\w/]+\.py)`", cell)]


def callers(frame: FrameType | None) -> list[str]:
    """The package's files from the entry to a frame, each once."""
    found: list[str] = []
    while frame is not None:
        if frame.f_code.co_filename.startswith(PACKAGE):
            found.append(frame.f_code.co_filename.removeprefix(PACKAGE))
        frame = frame.f_back
    return list(dict.fromkeys(reversed(found)))


def test_the_page_lists_the_files_that_a_convolution_passes(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths: dict[str, list[str]] = {}

    def seen(form: str) -> None:
        paths.setdefault(form, callers(sys._getframe(2)))

    def watch(kind: type[Any], form: str) -> None:
        own = kind.__init__

        def init(self: Any, *args: Any, **fields: Any) -> None:
            own(self, *args, **fields)
            if kind is not Kernel or self.name.startswith("conv2d"):
                seen(form)

        monkeypatch.setattr(kind, "__init__", init)

    conv2d: Any = relax.op.nn.conv2d

    def imported(*args: Any, **attrs: Any) -> Any:
        seen("relax")
        return conv2d(*args, **attrs)

    monkeypatch.setattr(relax.op.nn, "conv2d", imported)
    for kind, form in ((Conv2dOp, "composite"), (Conv2dSpec, "spec"), (Kernel, "kernel")):
        watch(kind, form)
    octavo.explain(octavo.load(shared / "models" / "tflite" / "resnet8_cifar10_int8.tflite"), target=AVX512_VNNI)
    relax_call, composite, spec, kernel = (paths[form] for form in ("relax", "composite", "spec", "kernel"))
    assert kernel[: len(spec)] == spec
    assert [relax_call, composite, spec, kernel[len(spec) :]] == listed()
    assert len({*relax_call, *composite, *kernel, *forms()}) <= MAX_FILES
