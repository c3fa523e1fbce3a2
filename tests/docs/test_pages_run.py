"""Pages of the site that are programs run as they are written, on a small network of handwritten digits."""

from __future__ import annotations

from pathlib import Path

import pytest
from pages import DOCS, blocks, is_shown, run

PARTS = ("tutorials", "howto")
PAGES = ["index.md", *sorted(str(page.relative_to(DOCS)) for part in PARTS for page in (DOCS / part).glob("*.md"))]


@pytest.mark.parametrize("page", PAGES)
def test_the_page_runs_and_prints_what_it_says(page: str, workplace: Path) -> None:
    for shown, printed in run(DOCS / page):
        assert is_shown(shown, printed), f"{page} shows\n{shown}\nwhere it prints\n{printed}"


def test_blocks_are_of_kinds_that_are_run_or_shown() -> None:
    pages = [DOCS / "install.md", DOCS / "faq.md", DOCS / "concepts.md", *(DOCS / page for page in PAGES)]
    assert {block.language for page in pages for block in blocks(page)} <= {"python", "bash", "json", "text", "console"}
