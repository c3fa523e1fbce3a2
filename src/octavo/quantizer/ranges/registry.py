"""The range estimators by name: what a recipe, the command line and the reports know of them, they read here.

An estimator is spelled "min_max", or with its argument "percentile:99.9".
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from .estimator import RangeEstimator


@dataclass(frozen=True, kw_only=True, slots=True)
class _Registered:
    make: Callable[..., RangeEstimator]
    previews: tuple[float, ...]
    is_preview: bool
    only_ends: bool

    @property
    def argument(self) -> inspect.Parameter | None:
        return next(iter(inspect.signature(self.make).parameters.values()), None)


_REGISTERED: dict[str, _Registered] = {}


def register_range_estimator(
    name: str,
    make: Callable[..., RangeEstimator],
    *,
    previews: Iterable[float] = (),
    is_preview: bool = True,
    only_ends: bool = False,
) -> None:
    """Make an estimator known by a name.

    Parameters
    ----------
    make
        The class: a dataclass with one number as its only field, or with none. The first line of its docstring is its help. It
        raises ValueError for an argument it cannot take.
    previews
        Arguments whose ranges the profile's report shows; without any, it shows that of no argument.
    is_preview
        Whether the report shows any at all.
    only_ends
        Whether a tensor's least and greatest value are all that it looks at: a profile made of another tool's ranges has no more.

    Raises
    ------
    ValueError
        The name is taken, or no name.
    """
    if not name.isidentifier() or name in _REGISTERED:
        raise ValueError(f"range estimator {name!r}: give a name that is none of {', '.join(_REGISTERED)}")
    _REGISTERED[name] = _Registered(make=make, previews=tuple(previews), is_preview=is_preview, only_ends=only_ends)


def range_estimator_names() -> tuple[str, ...]:
    """Return all names, the built-in ones first."""
    return tuple(_REGISTERED)


def takes_only_ends(spelling: str) -> bool:
    """Return whether a registered estimator looks at no more than the ends of what was observed."""
    return _REGISTERED[spelling.partition(":")[0]].only_ends


def range_estimator_help() -> str:
    """Return one line that says how each is spelled and what it does."""
    lines: list[str] = []
    for name, entry in _REGISTERED.items():
        argument = "" if entry.argument is None else f"[:{entry.argument.name.upper()}]"
        default = "" if entry.argument is None else f" ({entry.argument.default:.12g} by default)"
        summary = (inspect.getdoc(entry.make) or "").partition("\n")[0].rstrip(".")
        lines.append(f"{name}{argument} {summary[:1].lower()}{summary[1:]}{default}")
    return "; ".join(lines)


def range_estimator(spelling: str, arguments: Mapping[str, float] | None = None) -> RangeEstimator:
    """Return the estimator that a spelling names.

    Parameters
    ----------
    arguments
        By name of estimator, for a spelling that gives none.

    Raises
    ------
    ValueError
        An unknown name, or an argument that the estimator cannot take.
    """
    name, colon, text = spelling.partition(":")
    entry = _REGISTERED.get(name)
    if entry is None:
        raise ValueError(f"range_estimator must be one of {', '.join(_REGISTERED)}, got {spelling!r}")
    if not colon:
        return entry.make(*([arguments[name]] if arguments and name in arguments else []))
    if entry.argument is None:
        raise ValueError(f"{name} takes no argument, got {spelling!r}")
    try:
        value = float(text)
    except ValueError:
        raise ValueError(f"{entry.argument.name} must be a number, got {spelling!r}") from None
    return entry.make(value)


def range_previews() -> dict[str, RangeEstimator]:
    """Return the estimators that reports show side by side, by their spelling."""
    spelled = [
        spelling
        for name, entry in _REGISTERED.items()
        if entry.is_preview
        for spelling in ([f"{name}:{value:.12g}" for value in entry.previews] or [name])
    ]
    return {spelling: range_estimator(spelling) for spelling in spelled}
