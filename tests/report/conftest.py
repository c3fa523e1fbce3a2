"""One browser for all tests of pages that a process runs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from browser import Browser, browser, find_chromium


@pytest.fixture(scope="session")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    program = find_chromium()
    if program is None:
        pytest.skip("no Chromium is installed (make programs, or set OCTAVO_CHROMIUM to its path)")
    with browser(program, tmp_path_factory.mktemp("chromium")) as found:
        yield found
