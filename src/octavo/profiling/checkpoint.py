"""Checkpoints: the profile of the samples so far, kept in a file while a long run goes on, and what a run may resume from.

A checkpoint is a profile like any other, with its samples beside it. Every write goes to the same temporary names and is renamed,
so that a kill at any moment leaves the old profile or the new, and beside it only what the next write takes over.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from ..errors import ProfileError
from ..ir.graph.model import Model
from ..ir.identity import TensorId
from .compare import check_model
from .file import remove_profile, write_profile
from .model_profile import Profile


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkpoint:
    """Where a run keeps its profile so far, and how often.

    Parameters
    ----------
    path
        The file. One run at a time may write to it.
    every
        Samples from one checkpoint to the next, at least 1: what a kill may lose. Where one run of the model takes more, they are
        written after each run.
    """

    path: Path
    every: int

    def __post_init__(self) -> None:
        """Check the distance; ProfileError."""
        if isinstance(self.every, bool) or not isinstance(self.every, int) or self.every < 1:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ProfileError(f"every must be a number of samples, 1 or more, got {self.every!r}")

    def is_due(self, since: int, rows: int) -> bool:
        """Return whether to write now, `since` samples after the last time, where the next run takes `rows`."""
        return since + rows > self.every

    def write(self, profile: Profile) -> None:
        """Replace the file; ProfileError if it can't be written."""
        write_profile(profile.content(), self.path, is_alone=True)

    def finish(self, profile: Profile, output: Path) -> None:
        """Write the whole profile as the last checkpoint, then to `output`, where it is alone in the end."""
        self.write(profile)
        try:
            write_profile(profile.content(), output, is_alone=True)
        except ProfileError as error:
            raise ProfileError(f"{error}; it is whole in {self.path}") from error
        remove_profile(self.path)


def check_resumable(start: Profile, model: Model, observed: Collection[TensorId], preprocessing: str, rows: int) -> None:
    """Raise ProfileError unless a run over `observed` tensors of `model`, `rows` samples at a time, can go on from `start`."""
    check_model(start, model)
    if start.preprocessing != preprocessing:
        raise ProfileError(
            f"cannot resume: the checkpoint's samples were preprocessed in another way: {start.preprocessing or 'unknown'}, now "
            f"{preprocessing or 'unknown'}"
        )
    differing = sorted(start.keys() ^ set(observed))
    if differing:
        raise ProfileError(
            "cannot resume: the checkpoint observes other tensors: only one of the two runs observes "
            f"{', '.join(differing[:5])}; choose the same tensors"
        )
    if start.samples % rows:
        raise ProfileError(f"cannot resume: the checkpoint holds {start.samples} samples, and the model takes {rows} at a time")
