"""`make docs` builds the site without a warning, and a search for a public name, or a command, finds a page."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from pages import DOCS

import octavo
from octavo_parser import SUMMARIES

pytest.importorskip("sphinx", reason="Sphinx is not installed; `make docs` installs it")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    # Without what it depends on, which is installed: in this environment, whichever that is.
    command = ["make", "docs", "DOCS=", f"BIN={Path(sys.executable).parent}", f"SITE={folder}"]
    done = subprocess.run(command, cwd=DOCS.parent, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


def test_a_search_for_each_public_name_finds_a_page(site: Path) -> None:
    script = (site / "searchindex.js").read_text(encoding="utf-8")
    titles = json.loads(script[script.index("{") : script.rindex("}") + 1])["alltitles"]
    missing = [name for name in octavo.__all__ if name != "__version__" and name not in titles]
    missing += [name for name in SUMMARIES if f"octavo {name}" not in titles]
    assert missing == []


def test_the_site_loads_nothing_from_elsewhere(site: Path) -> None:
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        assert 'src="http' not in text, page.name
        assert not [line for line in text.splitlines() if "<link" in line and 'href="http' in line and "stylesheet" in line], (
            page.name
        )
