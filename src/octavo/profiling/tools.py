"""What a profile was made with: versions of the tools whose arithmetic is in it. It compares nothing."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import metadata

import numpy as np
import tvm

Versions = Mapping[str, tuple[str, ...]]


@cache
def tool_versions() -> Versions:
    """Return the versions in use now, by name."""
    return {"numpy": (np.__version__,), "octavo": (metadata.version("octavo"),), "tvm": (str(tvm.__version__),)}


def merged_versions(first: Versions, second: Versions) -> Versions:
    """Return the versions of both, each once, sorted: in any order of merging the same."""
    names = sorted({*first, *second})
    return {name: tuple(sorted({*first.get(name, ()), *second.get(name, ())})) for name in names}
