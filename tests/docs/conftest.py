"""What pages need: profiles that keep samples, as a reader's do, and the files that pages name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from page_files import write_files

from octavo.profiling.kept_samples import KEEP_SAMPLES
from octavo.profiling.profile import profile


@pytest.fixture(scope="module", autouse=True)
def default_of_kept_samples(no_kept_samples: None) -> Iterator[None]:
    profile.__kwdefaults__["keep_samples"] = KEEP_SAMPLES
    yield
    profile.__kwdefaults__["keep_samples"] = 0


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Current folder with the files that pages name."""
    write_files(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path
