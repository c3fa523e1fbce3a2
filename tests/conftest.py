"""What every test shares: where the trained models and labelled data lie, and how property tests draw their examples."""

import os
from pathlib import Path

import pytest
from hypothesis import settings

# The same examples on every run, and no deadline, which a busy machine would miss.
settings.register_profile("octavo", deadline=None, derandomize=True)
settings.load_profile("octavo")


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
