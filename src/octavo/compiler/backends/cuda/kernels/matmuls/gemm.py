"""Products of int8 matrices by tiles: the sizes of a tile, and matrices of constants packed as `device/gemm.cuh` reads them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import fields as dataclass_fields
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from ...isa import Isa
from ...kernel import Number

CHUNK = 16
"""Bytes of the widest copy."""
_MOST = 1024
"""Largest number that a file may have in a tiling: no block has as many rows, columns or bytes of depth."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Tiling:
    """How a product is cut.

    Parameters
    ----------
    tile
        Rows, columns and depth (of one stage, 32, 64 or 128 bytes) of a block.
    warps
        Of a block, along its rows and columns.
    stages
        Tiles in shared memory at once, 2 or more.
    splits
        Parts of the depth, each of blocks of its own.
    warp_groups
        Whether each four warps along the rows multiply together, from shared memory: 64 rows, or a multiple, by 128 columns.
    """

    tile: tuple[int, int, int]
    warps: tuple[int, int]
    stages: int
    splits: int = 1
    warp_groups: bool = False

    def __str__(self) -> str:
        """Return "128x64x64 by 2x2 warps, 4 stages", and what else there is."""
        further = [f"{self.splits} splits"] if self.splits > 1 else []
        further += ["warp groups"] if self.warp_groups else []
        by = f"{_by(self.tile)} by {_by(self.warps)} warps"
        return ", ".join([by, f"{self.stages} stages", *further])

    @property
    def threads(self) -> int:
        """Of a block."""
        return 32 * math.prod(self.warps)

    @property
    def warp(self) -> tuple[int, int]:
        """Rows and columns of one warp."""
        return self.tile[0] // self.warps[0], self.tile[1] // self.warps[1]

    @property
    def shared_bytes(self) -> int:
        """Of a block."""
        return self.stages * (self.tile[0] + self.tile[1]) * self.tile[2]

    def lanes(self, isa: Isa) -> int:
        """Lanes of a warp that share a row of the result."""
        return 4 if isa.matrix_k else 8

    def span(self, isa: Isa, result_bytes: int) -> int:
        """Neighbouring columns that a lane writes at once."""
        return min(CHUNK // result_bytes, self.warp[1] // self.lanes(isa))

    def parameters(self, isa: Isa, result_bytes: int, alignment: int) -> dict[str, Number]:
        """Return the constants of `gemm.cuh`; results of a row begin at multiples of `alignment` elements."""
        span = self.span(isa, result_bytes)
        return {
            "tile_m": self.tile[0],
            "tile_n": self.tile[1],
            "tile_k": self.tile[2],
            "warps_m": self.warps[0],
            "warps_n": self.warps[1],
            "stages": self.stages,
            "splits": self.splits,
            "span": span,
            "store": math.gcd(span, alignment),
            "capability": isa.capability,
            "warp_groups": self.warp_groups,
        }


def _by(sizes: tuple[int, ...]) -> str:
    return "x".join(map(str, sizes))


def tiling_of(values: Mapping[str, object]) -> Tiling:
    """Return the tiling of these fields, which a file has; ValueError says what is wrong with them.

    Whether there is a kernel for it shows where it is used.
    """
    fields: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
    if set(fields) != {each.name for each in dataclass_fields(Tiling)}:
        raise ValueError("the schedule is of no kind that is known")
    sizes = [*_counts("tile", fields["tile"], 3), *_counts("warps", fields["warps"], 2)]
    for name, size in [*sizes, ("stages", fields["stages"]), ("splits", fields["splits"])]:
        if not isinstance(size, int) or isinstance(size, bool) or not 1 <= size <= _MOST:
            raise ValueError(f"{name!r} must be a whole number from 1 to {_MOST}, got {size!r}")
    if not isinstance(fields["warp_groups"], bool):
        raise ValueError(f"'warp_groups' must be true or false, got {fields['warp_groups']!r}")
    return Tiling(**fields)


def _counts(name: str, value: object, count: int) -> list[tuple[str, object]]:
    if not isinstance(value, tuple) or len(sizes := cast("tuple[object, ...]", value)) != count:
        raise ValueError(f"{name!r} must be {count} whole numbers, got {value!r}")
    return [(name, each) for each in sizes]


def lying_columns(tiling: Tiling, isa: Isa, result_bytes: int) -> npt.NDArray[np.int64]:
    """Return which column of the result lies as each row of a tile of B.

    A core gives a lane single columns, or pairs, of every eight. In this order those are neighbours in the result, so that each
    lane writes a run of `span` of them at once.
    """
    lanes, span, warp = tiling.lanes(isa), tiling.span(isa, result_bytes), tiling.warp[1]
    pair = 8 // lanes
    columns = np.arange(warp * tiling.warps[1])
    within = columns % warp
    block, rest = within // (lanes * span), within % (lanes * span)
    lane, number = rest % 8 // pair, rest // 8 * pair + rest % pair
    return columns - within + block * lanes * span + lane * span + number


def swizzle(tiling: Tiling) -> npt.NDArray[np.int64]:
    """Return (rows of B's tile, chunks): which chunk of a row lies at each place, as `swizzled` has it."""
    chunks = tiling.tile[2] // CHUNK
    rows = np.arange(tiling.tile[1])
    return np.arange(chunks)[None] ^ (rows * chunks // 8 % chunks)[:, None]


def packed_tiles(values: npt.NDArray[np.int8], tiling: Tiling, isa: Isa, result_bytes: int) -> npt.NDArray[np.int8]:
    """Return int8 (groups, columns, depth) as tiles (groups, tiles of columns, tiles of depth, bytes), zeros where none is."""
    groups, columns, depth = values.shape
    _, tile_n, tile_k = tiling.tile
    tiles_n, tiles_k = -(-columns // tile_n), -(-depth // tile_k)
    padded = np.zeros((groups, tiles_n * tile_n, tiles_k * tile_k), np.int8)
    padded[:, :columns, :depth] = values
    ordered = padded.reshape(groups, tiles_n, tile_n, -1)[:, :, lying_columns(tiling, isa, result_bytes)]
    tiles = ordered.reshape(groups, tiles_n, tile_n, tiles_k, -1, CHUNK).transpose(0, 1, 3, 2, 4, 5)
    return np.take_along_axis(tiles, swizzle(tiling)[None, None, None, :, :, None], 4).reshape(groups, tiles_n, tiles_k, -1)


def padded_columns(values: npt.NDArray[np.generic], groups: int, tile_n: int) -> npt.NDArray[np.generic]:
    """Return constants of the columns (..., groups * columns) as (..., groups, columns up to whole tiles), zeros behind them."""
    by_group = values.reshape(*values.shape[:-1], groups, -1)
    return np.pad(by_group, (*[(0, 0)] * (by_group.ndim - 1), (0, -by_group.shape[-1] % tile_n)))
