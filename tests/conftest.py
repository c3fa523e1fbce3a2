"""What every test shares: where models and data lie, how property tests draw their examples, and the cache of machine code."""

import os
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings

# The same examples on every run, and no deadline, which a busy machine would miss.
settings.register_profile("octavo", deadline=None, derandomize=True)
settings.load_profile("octavo")


_CACHE = pytest.StashKey[str]()


def pytest_configure(config: pytest.Config) -> None:
    """One cache of machine code for all processes of this run, empty at its start: no run sees the code of an earlier one."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        config.stash[_CACHE] = os.environ["OCTAVO_CACHE"] = tempfile.mkdtemp(prefix="octavo-test-cache-")


def pytest_unconfigure(config: pytest.Config) -> None:
    if _CACHE in config.stash:
        shutil.rmtree(config.stash[_CACHE], ignore_errors=True)


@pytest.fixture(scope="session")
def shared() -> Path:
    """Folder of real models and data: OCTAVO_SHARED, or `shared` beside the checkout. Skips without it, fails in CI."""
    root = Path(os.environ.get("OCTAVO_SHARED", Path(__file__).resolve().parents[2] / "shared"))
    if not (root / "models").is_dir():
        message = f"no shared models at {root} (set OCTAVO_SHARED)"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
    return root
