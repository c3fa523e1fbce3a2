"""Profile: the statistics of every float tensor of a model over a set of samples. It derives nothing; estimators read it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import metadata
from pathlib import Path

import numpy as np
import tvm

from ..errors import ProfileError, check_path, check_type
from ..ir.identity import TensorId
from .file import ProfileFile, read_profile, write_profile
from .kept_samples import Kept, Sample, smallest
from .statistics import MAX_COUNT, TensorStatistics

RANGES_ALONE = "not known: ranges alone, from"
"""How a profile without histograms says what was done to its samples, and whose table it is."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False, repr=False)
class Profile(Mapping[TensorId, TensorStatistics]):
    """Statistics by TensorId.

    Merging is exact, associative and commutative: the same samples give the same bytes on disk, however they are split, shuffled
    or spread over machines that compute the model alike.

    Parameters
    ----------
    fingerprint
        Of the model that was profiled.
    samples
        Samples seen (rows of the batches).
    tensors
        Statistics of inputs, activations and float constants, in the order of the source graph; the file keeps it.
    preprocessing
        What was done to the samples, "" where it is unknown.
    bucket_samples
        Samples in each bucket (see buckets.py), (BUCKETS,); () where samples were not kept separate.
    tools
        Versions of what made the profile, by name, each sorted; merging lists those of both.
    keep_samples
        How many samples were to be kept at most; of two profiles that merge, the smaller number counts.
    kept_samples
        A few of the samples themselves (see kept_samples.py), each what one run took: read-only arrays in the order of the
        model's inputs. Where a run takes several rows, other rows that share a run are another sample.
    kept_results
        What the float model gave for each of these, in the order of its outputs, read-only; () where that takes more than 32 MiB.
    """

    fingerprint: str
    samples: int
    tensors: Mapping[TensorId, TensorStatistics]
    preprocessing: str = ""
    bucket_samples: tuple[int, ...] = ()
    tools: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    keep_samples: int = 0
    kept_samples: tuple[Sample, ...] = ()
    kept_results: tuple[Sample, ...] = ()

    @property
    def kept(self) -> Kept:
        """The kept samples with their results."""
        return Kept(self.kept_samples, self.kept_results)

    def __repr__(self) -> str:
        """Return one line; the statistics are those of its tensors."""
        counts = f"{len(self.tensors)} tensors, {self.samples} samples, {len(self.kept_samples)} kept"
        return f"Profile({counts}, of the model {self.fingerprint[:15]}...)"

    @property
    def ranges_alone_from(self) -> str:
        """Whose table of ranges the profile was made of; "" where it has histograms."""
        return self.preprocessing.removeprefix(RANGES_ALONE).strip() if self.preprocessing.startswith(RANGES_ALONE) else ""

    def __getitem__(self, key: TensorId) -> TensorStatistics:
        """Return the statistics of a tensor; KeyError if it was not observed."""
        return self.tensors[key]

    def __iter__(self) -> Iterator[TensorId]:
        """Iterate over the observed tensors."""
        return iter(self.tensors)

    def __len__(self) -> int:
        """Count the observed tensors."""
        return len(self.tensors)

    def merge(self, other: Profile) -> Profile:
        """Return the profile of both sets of samples.

        Raises
        ------
        ProfileError
            If the profiles belong to different models.
        """
        check_type(other, Profile, ProfileError, "a Profile to merge")
        if self.fingerprint != other.fingerprint:
            raise ProfileError(
                f"profiles of different models cannot be merged: fingerprints {self.fingerprint} and {other.fingerprint}"
            )
        if self.preprocessing != other.preprocessing:
            raise ProfileError(
                f"profiles of samples preprocessed in different ways cannot be merged: {self.preprocessing or 'unknown'} and "
                f"{other.preprocessing or 'unknown'}"
            )
        if self.tensors.keys() != other.tensors.keys():
            differing = sorted(self.tensors.keys() ^ other.tensors.keys())
            raise ProfileError(f"profiles observe different tensors: only one of them holds {', '.join(differing[:5])}")
        if self.samples + other.samples > MAX_COUNT:
            raise ProfileError(f"the merged profile would hold more than {MAX_COUNT} samples")
        keep = min(self.keep_samples, other.keep_samples)
        try:
            kept = smallest(keep, self.kept, other.kept)
            tensors = {key: value.merge(other.tensors[key]) for key, value in self.tensors.items()}
        except ValueError as error:
            raise ProfileError(f"profiles cannot be merged: {error}") from error
        separate = bool(self.bucket_samples and other.bucket_samples)
        counts = zip(self.bucket_samples, other.bucket_samples, strict=True) if separate else ()
        return replace(
            self,
            samples=self.samples + other.samples,
            tensors=tensors,
            bucket_samples=tuple(one + more for one, more in counts),
            tools=merged_versions(self.tools, other.tools),
            keep_samples=keep,
            kept_samples=kept.samples,
            kept_results=kept.results,
        )

    def save(self, path: str | Path) -> None:
        """Write the profile as JSON (docs/profile.schema.json), whole or not at all; ProfileError if it can't be.

        What it keeps of the samples goes into a file beside it, "p.json.samples" of "p.json". Move both, or the JSON alone where
        inputs are private: without the other file it is a profile that keeps no samples.
        """
        target = check_path(path, ProfileError, "the path of the profile to write")
        write_profile(self.content(), target)

    def content(self) -> ProfileFile:
        """Return what a file of the profile holds."""
        return ProfileFile(
            fingerprint=self.fingerprint,
            preprocessing=self.preprocessing,
            samples=self.samples,
            tensors=self.tensors,
            bucket_samples=self.bucket_samples,
            tools=self.tools,
            keep_samples=self.keep_samples,
            kept=self.kept,
        )

    @staticmethod
    def load(path: str | Path) -> Profile:
        """Read what `save` wrote, here or by an older version.

        Raises
        ------
        ProfileError
            Saying what is wrong with a file that isn't a profile or was changed, or with the file of its samples. Where that is
            missing, an OctavoWarning says so, and the profile keeps no samples.
        """
        content = read_profile(check_path(path, ProfileError, "the path of a profile"))
        return Profile(
            fingerprint=content.fingerprint,
            samples=content.samples,
            tensors=content.tensors,
            preprocessing=content.preprocessing,
            bucket_samples=content.bucket_samples,
            tools=content.tools,
            keep_samples=content.keep_samples,
            kept_samples=content.kept.samples,
            kept_results=content.kept.results,
        )


Versions = Mapping[str, tuple[str, ...]]


@cache
def tool_versions() -> Versions:
    """Return the versions in use now, by name."""
    return {"numpy": (np.__version__,), "octavo": (metadata.version("octavo"),), "tvm": (str(tvm.__version__),)}


def merged_versions(first: Versions, second: Versions) -> Versions:
    """Return the versions of both, each once, sorted: in any order of merging the same."""
    names = sorted({*first, *second})
    return {name: tuple(sorted({*first.get(name, ()), *second.get(name, ())})) for name in names}
