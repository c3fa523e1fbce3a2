"""Every page of the site that has code is a program that some test runs as it is written."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from pages import DOCS, blocks, is_shown, run

from octavo.cli.main import main

SHOWS = ("tutorials/accelerator.md",)
"""Pages that show what was learnt of digits; all others run on a network of random weights, which is quicker."""
ELSEWHERE = {
    "builder.md": "importer/builder/test_builder.py",
    "conformance.md": "docs/test_conformance_page.py",
    "deploy.md": "docs/test_deploy_page.py",
    "extending.md": "test_extending.py",
    "plan.md": "test_plan_page.py",
    "pytorch.md": "importer/torch/test_torch.py",
    "targets.md": "target/test_description.py",
    "tvm_pipelines.md": "graph/test_tvm_pipelines_page.py",
    "vendors.md": "test_vendors_page.py",
}
"""Tests that run pages which need more than files: compilers, PyTorch, a vendor's hardware."""
SHELL = ("install.md",)
"""Commands of a shell beside Octavo's own."""
CODE = {"python", "bash", "json", "c", "diff", "console", "rust", "go"}


def all_pages() -> dict[str, Path]:
    generated = DOCS / "reference"
    return {str(page.relative_to(DOCS)): page for page in sorted(DOCS.rglob("*.md")) if generated not in page.parents}


def has_code(page: Path) -> bool:
    return any(block.language in CODE for block in blocks(page))


PAGES = [name for name, page in all_pages().items() if has_code(page) and name not in (*ELSEWHERE, *SHELL)]


@pytest.mark.parametrize("page", PAGES)
def test_the_page_runs_and_prints_what_it_says(page: str, request: pytest.FixtureRequest) -> None:
    request.getfixturevalue("workplace" if page in SHOWS else "quick_workplace")
    for shown, printed in run(DOCS / page):
        assert is_shown(shown, printed), f"{page} shows\n{shown}\nwhere it prints\n{printed}"


@pytest.mark.parametrize("page", ELSEWHERE)
def test_other_pages_are_run_by_the_test_that_is_said_to(page: str) -> None:
    text = (DOCS.parent / "tests" / ELSEWHERE[page]).read_text(encoding="utf-8")
    assert Path(page).name in text
    assert has_code(DOCS / page)


def test_blocks_are_of_kinds_that_are_run_or_shown() -> None:
    for name, page in all_pages().items():
        assert {block.language for block in blocks(page)} <= {*CODE, "text", "none"}, name
        assert name in SHELL or all(block.language != "console" for block in blocks(page)), f"{name}: what can run is no console"


def test_all_code_stands_in_fences() -> None:
    """Code that is indented alone would be run by nobody."""
    for name, page in all_pages().items():
        prose = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
        assert not re.findall(r"(?<=\n\n)    \S.*", prose), name


def test_commands_of_a_shell_are_ones_that_exist(capsys: pytest.CaptureFixture[str]) -> None:
    makefile = (DOCS.parent / "Makefile").read_text(encoding="utf-8")
    for name in SHELL:
        lines = [line for block in blocks(DOCS / name) for line in block.text.splitlines()]
        for line in lines:
            program, *words = shlex.split(line.removeprefix("$ "))
            assert program in ("pip", "git", "cd", "make", "octavo"), line
            assert program != "make" or f"\n{words[0]}:" in makefile
            if program == "octavo":
                with pytest.raises(SystemExit) as ended:
                    main([*words, "--help"])
                assert ended.value.code == 0
    assert "demo" in capsys.readouterr().out
