"""docs/deploy.md: its commands run, and its C is a program."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from pages import DOCS, blocks

import octavo
from octavo.cli.main import main

PAGE = DOCS / "deploy.md"
COMMANDS = re.findall(r"^    (octavo .*)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
OF_COLOUR = "mean=123.7+116.3+103.5,std=58.4+57.1+57.4,size=480x640"
OF_DIGITS = "mean=0,std=16,size=16x16"
"""The digits have one channel."""
PROGRAM = """\
#include <stdio.h>
#include "mobilenet.h"
int main(void) {{
{block}
return code;
}}
"""


@pytest.fixture
def quantized(workplace: Path) -> Path:
    profile = octavo.profile(octavo.load("m.onnx"), [np.load("calib.npz")["x"]], keep_samples=0)
    octavo.export_onnx(octavo.quantize(octavo.load("m.onnx"), profile), "m.int8.onnx")
    return workplace


@pytest.mark.parametrize("command", COMMANDS)
def test_the_command_runs(command: str, quantized: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if "--target" in command and shutil.which("aarch64-linux-gnu-gcc") is None:
        pytest.skip("links for ARM64; `make emulation` installs what does")
    assert main(shlex.split(command.replace(OF_COLOUR, OF_DIGITS))[1:]) == 0, capsys.readouterr().err
    assert Path(command.split(" -o ")[1].split()[0]).exists()


def test_the_program_builds_and_runs(quantized: Path) -> None:
    assert main(shlex.split(COMMANDS[0])[1:]) == 0
    (block,) = (each.text for each in blocks(PAGE) if each.language == "c")
    Path("own.c").write_text(PROGRAM.format(block=block), encoding="utf-8")
    flags = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-Imobilenet"]
    subprocess.run(["gcc", *flags, "own.c", "mobilenet/libmobilenet.a", "-lm", "-o", "own"], check=True)
    assert subprocess.run(["./own"], check=False).returncode == 0


def test_a_picture_goes_in_as_it_is(quantized: Path) -> None:
    (line,) = (each for each in COMMANDS if OF_COLOUR in each)
    assert main(shlex.split(line.replace(OF_COLOUR, "mean=0,std=16"))[1:]) == 0
    pixels = np.load("x.npz")["x"][:1]
    picture = (pixels * 16).astype(np.uint8).transpose(0, 2, 3, 1)
    plain = octavo.compile(octavo.load("m.int8.onnx"))(pixels)["logits"]
    np.testing.assert_array_equal(octavo.load_executable("m.so")(picture)["logits"], plain)
