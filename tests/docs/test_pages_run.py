"""Every page of the site that has code is a program that some test runs as it is written."""

from __future__ import annotations

import json
import re
import shlex
from collections import Counter
from pathlib import Path

import pytest
from pages import DOCS, blocks, is_shown, run

from octavo.cli.main import main

ELSEWHERE = {
    "builder.md": ("frontends/builder/test_builder.py", {"python": 1}),
    "conformance.md": ("docs/test_conformance_page.py", {"bash": 1, "python": 1}),
    "deploy.md": ("docs/test_deploy_page.py", {"bash": 9, "python": 3, "c": 3, "rust": 1, "go": 1, "text": 1}),
    "howto/hugging_face.md": ("docs/test_hugging_face.py", {"python": 2}),
    "howto/text.md": ("docs/test_text_page.py", {"bash": 1, "python": 1}),
    "extending.md": ("test_extending.py", {"diff": 3, "python": 6}),
    "plan.md": ("test_plan_page.py", {"bash": 2, "python": 3}),
    "pytorch.md": ("frontends/torch/test_torch.py", {"python": 3}),
    "targets.md": ("target/test_importers.py", {"json": 1, "python": 1}),
    "tvm_pipelines.md": ("ir/graph/test_tvm_pipelines_page.py", {"python": 5, "text": 1}),
    "vendors.md": ("test_vendors_page.py", {"json": 1, "python": 7}),
}
"""Tests that run pages which need more than files: compilers, PyTorch, a vendor's hardware. With how many blocks they run."""
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
@pytest.mark.usefixtures("workplace")
def test_the_page_runs_and_prints_what_it_says(page: str) -> None:
    for shown, printed in run(DOCS / page):
        assert is_shown(shown, printed), f"{page} shows\n{shown}\nwhere it prints\n{printed}"


@pytest.mark.parametrize("page", ELSEWHERE)
def test_other_pages_are_run_by_the_test_that_is_said_to(page: str) -> None:
    test, kinds = ELSEWHERE[page]
    assert Path(page).name in (DOCS.parent / "tests" / test).read_text(encoding="utf-8")
    there = Counter(block.language for block in blocks(DOCS / page))
    assert there == kinds, f"let tests/{test} run what is new on docs/{page}, then count it here"


def test_blocks_are_of_kinds_that_are_run_or_shown() -> None:
    for name, page in all_pages().items():
        assert {block.language for block in blocks(page)} <= {*CODE, "text", "none"}, name
        assert name in SHELL or all(block.language != "console" for block in blocks(page)), f"{name}: what can run is no console"


def test_each_fence_says_its_language() -> None:
    """Another fence would be run by nobody: one of tildes, within a list, of a directive."""
    readme = DOCS.parent / "README.md"
    for page in (*all_pages().values(), readme):
        fences = re.findall(r"^[ >]*(?:```|~~~).*$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
        fenced = [fence for fence in fences[::2] if fence != "```{toctree}"]
        drawn = ["```"] if page == readme else []  # the path of the data
        assert sorted(fenced) == sorted([*drawn, *(f"```{block.language}" for block in blocks(page))]), page.name
        assert set(fences[1::2]) <= {"```"}, page.name
    assert {block.language for block in blocks(readme)} == {"bash", "python"}, "tests/test_readme.py runs these"


def test_all_code_stands_in_fences() -> None:
    """Code that is indented alone would be run by nobody."""
    for name, page in {**all_pages(), "README.md": DOCS.parent / "README.md"}.items():
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


def test_commands_and_options_that_prose_names_exist() -> None:
    """Code in prose is run by nobody; that there are such commands and options, their help says."""
    helps = json.loads((DOCS.parent / "src/octavo/cli/help.json").read_text(encoding="utf-8"))["commands"]
    unknown: list[str] = []
    for name, page in {**all_pages(), "README.md": DOCS.parent / "README.md"}.items():
        prose = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
        for span in re.findall(r"`((?:octavo [a-z]|--)[^`]*)`", prose):
            words = span.split()
            named = [" ".join(words[1:size]) for size in (3, 2) if words[0] == "octavo"]
            text = next((helps[each] for each in named if each in helps), "" if named else "\n".join(helps.values()))
            options = [word.partition("=")[0] for word in words if word.startswith("--")]
            if not text or any(re.search(rf"{re.escape(option)}\b", text) is None for option in options):
                unknown.append(f"{name}: {span}")
    assert unknown == []
