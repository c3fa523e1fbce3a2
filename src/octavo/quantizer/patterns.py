"""Names with wildcards, as recipes use them: "features.*", "/model/*/Conv?"."""

from __future__ import annotations

import re
from functools import cache

_WILDCARDS = {"*": ".*", "?": "."}


def fits(pattern: str, name: str) -> bool:
    """Return whether a name is `pattern`, in which * stands for any characters and ? for one; brackets stand for themselves."""
    return pattern == name or (has_wildcards(pattern) and _compiled(pattern).fullmatch(name) is not None)


def has_wildcards(pattern: str) -> bool:
    """Return whether a name may stand for several."""
    return not _WILDCARDS.keys().isdisjoint(pattern)


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile("".join(_WILDCARDS.get(each) or re.escape(each) for each in pattern), re.DOTALL)
