"""What installs the packages of `make`: it looks where pip looks, and leaves to pip what it cannot do."""

from __future__ import annotations

import importlib.util
import subprocess
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

FILE = Path(__file__).resolve().parents[1] / "requirements" / "install.py"
SETTINGS = """\
:env:.find-links='/wheels /more'
global.cert='/etc/ca.crt'
global.extra-index-url='file:///a file:///b'
global.find-links='/elsewhere'
install.index-url='file:///all'
"""
PLACES = ["--default-index", "file:///all", "--extra-index-url", "file:///a", "--extra-index-url", "file:///b"]
PLACES += ["--find-links", "/wheels", "--find-links", "/more"]


@pytest.fixture(name="install")
def fixture_install() -> ModuleType:
    spec = importlib.util.spec_from_file_location("install_packages", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_packages_come_from_where_pip_looks(install: ModuleType) -> None:
    assert install.sources(SETTINGS) == PLACES
    assert install.sources("") == []


@pytest.mark.parametrize(("found", "code", "tools"), [(True, 0, ["uv"]), (True, 1, ["uv", "pip"]), (False, 0, ["pip"])])
def test_pip_does_what_uv_cannot(
    install: ModuleType, monkeypatch: pytest.MonkeyPatch, found: bool, code: int, tools: list[str]
) -> None:
    calls: list[list[str]] = []

    def run(command: list[str], **_: Any) -> SimpleNamespace:
        if command[-2:] != ["config", "list"]:
            calls.append(command[2:])
        return SimpleNamespace(returncode=code if "uv" in command else 0, stdout=SETTINGS)

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: found or None)
    assert install.main(["--editable", "."]) == 0
    assert [words[0] for words in calls] == tools
    for words in calls:
        assert words[-2:] == ["--editable", "."]
        assert words[words.index("--constraint") + 1] == str(FILE.with_name("constraints.txt"))
        assert words[0] == "pip" or [word for word in words if word in PLACES] == PLACES
