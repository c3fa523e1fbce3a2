"""What pages need: profiles that keep samples, as a reader's do, and the files that pages name."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import resources
from pathlib import Path

import numpy as np
import pytest

from octavo.pipeline import profile
from octavo.profile.kept_samples import KEEP_SAMPLES

SAMPLES = 16


@pytest.fixture(scope="module", autouse=True)
def default_of_kept_samples(no_kept_samples: None) -> Iterator[None]:
    profile.__kwdefaults__["keep_samples"] = KEEP_SAMPLES
    yield
    profile.__kwdefaults__["keep_samples"] = 0


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Current folder with the files that pages name: m.onnx, calib.npz, x.npz and y.npy."""
    demo = Path(str(resources.files("octavo.cli"))) / "demo_data"
    (tmp_path / "m.onnx").write_bytes((demo / "digits.onnx").read_bytes())
    with np.load(demo / "digits.npz") as digits:
        pixels, unseen = digits["images"][:, None].astype(np.float32) / 16, digits["held_out"]
        np.savez(tmp_path / "calib.npz", x=pixels[~unseen][:SAMPLES])
        np.savez(tmp_path / "x.npz", x=pixels[unseen][:SAMPLES])
        np.save(tmp_path / "y.npy", digits["labels"][unseen][:SAMPLES])
    monkeypatch.chdir(tmp_path)
    return tmp_path
