"""What of a model's channels shares factors or rotations: tensors of one chain or one residual stream. It chooses none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from tvm.relax import Var

from .channel_groups import ChannelGroups, Groups, Reader


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Site:
    """What shares factors: groups, by their numbers, ascending, and all variables that have them, in the order of the graph.

    Some are rounded where the model is quantized. The readers are products with weights that take factors out of them: it is read
    by these, or by a product of two activations.
    """

    groups: npt.NDArray[np.int64]
    tensors: tuple[Var, ...]
    rounded: tuple[Var, ...]
    readers: tuple[Reader, ...]
    is_read: bool


def find_sites(found: ChannelGroups) -> list[Site]:
    """Return the sites of a model, in the order of the graph."""
    count = found.count
    site_of = np.arange(count)
    for _ in range(count):  # until nothing changes: each pass takes the least number over all that a tensor has
        before = site_of.copy()
        for groups in found.of.values():
            used = _used(groups)
            site_of[used] = site_of[used].min(initial=count)
        for pair in found.opposites.items():
            site_of[[*pair]] = site_of[[*pair]].min()
        if np.array_equal(before, site_of):
            break
    sites: dict[int, list[Var]] = {}
    for var, groups in found.of.items():
        used = _used(groups)
        if used.size:
            sites.setdefault(int(site_of[used[0]]), []).append(var)
    return [_site(found, np.flatnonzero(site_of == number), tensors) for number, tensors in sites.items()]


def _site(found: ChannelGroups, groups: npt.NDArray[np.int64], tensors: Sequence[Var]) -> Site:
    rounded = {var for behind in found.noise.values() for var in behind}
    readers = tuple(reader for reader in found.readers if reader.data in set(tensors))
    return Site(
        groups=groups,
        tensors=tuple(tensors),
        rounded=tuple(var for var in tensors if var in rounded),
        readers=readers,
        is_read=bool(readers) or not found.opposites.keys().isdisjoint(groups.tolist()),
    )


def _used(groups: Groups) -> npt.NDArray[np.int64]:
    used = np.unique(groups)
    return used[used > 0]
