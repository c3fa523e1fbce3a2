"""Which tiles a product is cut into: a small model of a chip, whose data are those of `isa.py`.

A block takes its tiles of depth one after the other. One such step, with r blocks on a multiprocessor, takes the longest of

- the products: r * rows * columns * depth, at `multiply_adds` a clock;
- shared memory: what r blocks write there, and what their warps read of it, at 128 bytes a clock;
- issue: a warp's products, its reads of shared memory, its copies with their addresses, and the loop, on four schedulers;
- copies from the second-level cache: r * (rows + columns) * depth bytes, at `copy_bytes` a clock;
- what a single block waits: a copy's latency, spread over the stages that are on their way meanwhile.

How many blocks a multiprocessor holds follows from its shared memory, registers and threads; blocks come in waves of as many as
all multiprocessors hold, and in the last wave these have fewer. A split of the depth makes more blocks and costs a second launch
that reads all parts. The model ranks tilings; its clocks are no forecast: it knows nothing of clock rates, caches and schedulers.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

from ....tunable import Schedules, Tunable, check_schedule
from ...isa import Isa
from ..language.calls import KernelCall
from .gemm import Tiling

SHARED_BYTES_A_CLOCK = 128
"""32 banks of 4 bytes, of every generation in `isa.py`."""
RESERVED_SHARED_BYTES = 1024
"""That CUDA keeps of each block's, from sm_80 on."""
COPY_LATENCY, START, SECOND_LAUNCH = 600.0, 1500.0, 4000.0
"""Clocks, of their order of magnitude: a copy from global memory; a block's begin and end; a launch behind another one."""
OTHER_REGISTERS = 56
"""Of a thread beside sums and operands: addresses, bounds, counters."""
GATHERED_REGISTERS = 32
"""Of a thread that gathers bytes: so many are on their way at once."""
MAX_REGISTERS = 255
ALTERNATIVES = 12
"""Tilings of a product that are worth measuring: the model's first ones."""
SCHEDULERS = 4
"""Of a multiprocessor: each issues one instruction of a warp in a clock."""
COPY_INSTRUCTIONS, LOOP_INSTRUCTIONS = 5, 30
"""Of a warp: for one copy with its address and bounds; for the counters, waits and addresses of a step."""
_SPLITS = (1, 2, 3, 4, 6, 8, 12, 16)

_MATRIX_TILES = (
    ((256, 128), (4, 2)),
    ((128, 256), (2, 4)),
    ((128, 128), (2, 2)),
    ((128, 128), (4, 2)),
    ((128, 64), (2, 2)),
    ((64, 128), (2, 2)),
    ((64, 64), (2, 2)),
    ((128, 32), (4, 1)),
    ((32, 128), (1, 4)),
    ((64, 32), (2, 2)),
    ((32, 64), (2, 2)),
    ((32, 32), (2, 2)),
    ((128, 16), (4, 1)),
    ((16, 128), (1, 4)),
    ((16, 64), (1, 4)),
)
_GROUP_TILES = (
    ((256, 128), (8, 1)),
    ((128, 256), (8, 2)),
    ((128, 128), (8, 1)),
    ((64, 128), (4, 1)),
)
_DOT_TILES = (
    ((64, 128), (2, 2)),
    ((128, 64), (4, 1)),
    ((64, 64), (2, 2)),
    ((32, 64), (2, 2)),
    ((32, 32), (2, 2)),
    ((16, 64), (1, 4)),
)
"""Rows and columns of a block, and its warps along them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Product:
    """A product of matrices, as often as `groups` says, to be cut.

    Parameters
    ----------
    rows, columns, depth
        Of one product.
    groups
        Products of the same sizes.
    vector
        Bytes of one copy of a row; 1 where single bytes are gathered.
    result_bytes
        Of one element of the result.
    can_split
        Whether sums may be written in parts first.
    depths
        Of a tile, that the kernel can take; any if empty.
    has_sums
        Whether sums of rows or columns are taken beside.
    """

    rows: int
    columns: int
    depth: int
    groups: int = 1
    vector: int = 16
    result_bytes: int = 1
    can_split: bool = True
    depths: tuple[int, ...] = ()
    has_sums: bool = False

    @property
    def key(self) -> str:
        """Names it in a tuning: all that decides which tiles it can have, and how long they take by the model."""
        facts = [f"{self.rows}x{self.columns}x{self.depth}", f"copies={self.vector}", f"result={self.result_bytes}"]
        facts += [f"groups={self.groups}"] if self.groups > 1 else []
        facts += [f"depths={','.join(map(str, self.depths))}"] if self.depths else []
        facts += [] if self.can_split else ["unsplit"]
        facts += ["sums"] if self.has_sums else []
        return " ".join(["product", *facts])


def tilings(product: Product, isa: Isa) -> Iterator[Tiling]:
    """Yield what a product can be cut into on chips of an ISA, within its limits of registers and shared memory."""
    deep = (64, 32, 128) if isa.asynchronous else (64, 32)
    if product.vector == 1:  # each byte of a chunk has an address of its own
        deep = (32,)
    deep = product.depths or deep
    for tile, warps in _MATRIX_TILES if isa.matrix_k else _DOT_TILES:
        for depth in deep:
            for stages in (4, 3) if isa.asynchronous else (2,):
                tiling = Tiling(tile=(*tile, depth), warps=warps, stages=stages)
                if _fits(tiling, product, isa):
                    yield tiling
    if isa.warp_groups and not product.has_sums:
        for tile, warps in _GROUP_TILES:
            for depth in deep:
                for stages in (4, 3):
                    tiling = Tiling(tile=(*tile, depth), warps=warps, stages=stages, warp_groups=True)
                    if _fits(tiling, product, isa):
                        yield tiling


def _fits(tiling: Tiling, product: Product, isa: Isa) -> bool:
    by_shared = tiling.shared_bytes <= isa.shared_bytes_of_block
    taken = registers(tiling, product, isa)
    return by_shared and taken <= MAX_REGISTERS and taken * tiling.threads <= isa.registers


def registers(tiling: Tiling, product: Product, isa: Isa) -> int:
    """Return the registers that a thread is taken to need: sums, operands of one step, tiles on their way, the rest."""
    rows, columns = tiling.warp
    sums = rows * columns // 32
    operands = 0 if tiling.warp_groups else rows // 4 + columns // 4 if isa.matrix_k else columns // 2 + 4
    waiting = 0
    if not isa.asynchronous:
        waiting = (tiling.tile[0] + tiling.tile[1]) * tiling.tile[2] // tiling.threads // 4
    elif product.vector == 1:
        waiting = tiling.tile[0] * tiling.tile[2] // tiling.threads // 4
    waiting += GATHERED_REGISTERS if product.vector == 1 else 0
    pointers = tiling.tile[0] * tiling.tile[2] // 16 // tiling.threads
    if product.depths:  # B's part waits in registers, as it lies and transposed
        waiting += 2 * tiling.tile[1] * tiling.tile[2] // tiling.threads // 4
    beside = (rows // 4 + columns // 4) if product.has_sums else 0
    return sums + operands + waiting + beside + 2 * pointers + OTHER_REGISTERS


def _instructions(tiling: Tiling, isa: Isa) -> float:
    """Return the instructions of a warp for one step."""
    (tile_m, tile_n, tile_k), (rows, columns) = tiling.tile, tiling.warp
    if tiling.warp_groups:
        products, reads = rows * columns * tile_k // (16 * 128 * 32) * 4, 0  # with their descriptors
    elif isa.matrix_k:
        products = rows * columns * tile_k // (4096 if isa.matrix_k == 32 else 1024)
        reads = (rows + columns) * tile_k // 512
    else:
        products, reads = rows * columns * tile_k // 128, (rows // 4 + columns // 8) * tile_k // 16
    copies = (tile_m + tile_n) * tile_k / 16 / tiling.threads * (1 if isa.asynchronous else 2)
    return products + reads + COPY_INSTRUCTIONS * copies + LOOP_INSTRUCTIONS


def resident_blocks(tiling: Tiling, product: Product, isa: Isa) -> int:
    """Return how many blocks a multiprocessor holds at once."""
    by_registers = isa.registers // (min(-(-registers(tiling, product, isa) // 8) * 8, 256) * tiling.threads)
    return min(isa.shared_bytes // (tiling.shared_bytes + RESERVED_SHARED_BYTES), isa.threads // tiling.threads, by_registers, 16)


def clocks(tiling: Tiling, product: Product, isa: Isa) -> float:
    """Return the model's clocks of a tiling; infinite where no block fits."""
    (tile_m, tile_n, tile_k), (warp_m, warp_n) = tiling.tile, tiling.warp
    most = resident_blocks(tiling, product, isa)
    if most < 1:
        return float("inf")
    tiles_k = math.ceil(math.ceil(product.depth / tile_k) / tiling.splits)
    blocks = -(-product.rows // tile_m) * -(-product.columns // tile_n) * product.groups * tiling.splits
    read = (warp_m + warp_n) * tile_k * tiling.threads // 32
    if not isa.matrix_k:  # each lane reads its own rows, eight of a warp the same ones
        read = (warp_m // 4 + warp_n // 8) * tile_k * tiling.threads
    if tiling.warp_groups:
        read = tile_m // 64 * tiling.warps[1] * (64 + warp_n) * tile_k
    shared = (read + (tile_m + tile_n) * tile_k) / SHARED_BYTES_A_CLOCK
    copies = (tile_m * (4 if product.vector == 1 else 1) + tile_n) * tile_k / isa.copy_bytes
    issue = _instructions(tiling, isa) * tiling.threads / 32 / SCHEDULERS
    rate = isa.warp_multiply_adds if isa.matrix_k and not tiling.warp_groups else isa.multiply_adds
    products = tile_m * tile_n * tile_k / rate
    result_bytes = product.result_bytes if tiling.splits == 1 else 4
    end = tile_m * tile_n * result_bytes / isa.copy_bytes

    def wave(resident: int) -> float:
        step = max(
            resident * max(products, shared, issue, copies), COPY_LATENCY / (tiling.stages - (2 if tiling.warp_groups else 1))
        )
        return START + tiles_k * step + resident * end

    full, rest = divmod(blocks, most * isa.multiprocessors)
    total = full * wave(most) + (wave(-(-rest // isa.multiprocessors)) if rest else 0.0)
    if tiling.splits > 1:
        parts = product.rows * product.columns * product.groups * (4 * tiling.splits + product.result_bytes)
        total += SECOND_LAUNCH + parts / (isa.copy_bytes * isa.multiprocessors)
    return total


@lru_cache(maxsize=256)
def ranked_tilings(product: Product, isa: Isa) -> tuple[tuple[float, Tiling], ...]:
    """Return all that a product can be cut into, with the clocks by the model, the fewest first."""
    found: list[tuple[float, int, Tiling]] = []
    for tiling in tilings(product, isa):
        tiles = -(-product.depth // tiling.tile[2])
        for splits in _SPLITS if product.can_split else (1,):
            if splits > 1 and (tiles < 2 * splits or (splits - 1) * -(-tiles // splits) >= tiles):
                continue
            split = replace(tiling, splits=splits)
            found.append((clocks(split, product, isa), len(found), split))
    return tuple((each, tiling) for each, _, tiling in sorted(found) if each < float("inf"))


def best_tiling(product: Product, isa: Isa) -> tuple[Tiling, float]:
    """Return the tiling with the fewest clocks by the model, and these."""
    best, tiling = ranked_tilings(product, isa)[0]
    return tiling, best


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class TilingChoice:
    """Which tiling each product of a module gets: the one that was measured to be best, else the model's first.

    Parameters
    ----------
    isa
        Of the chip.
    schedules
        What was measured, by the products' keys.
    tunables
        What can be chosen of the products that were asked for so far, by their keys.
    calls
        How many calls compute each.
    """

    isa: Isa
    schedules: Schedules = field(default_factory=dict[str, Tiling])
    tunables: dict[str, Tunable] = field(default_factory=dict[str, Tunable])
    calls: Counter[str] = field(default_factory=Counter[str])

    def best(self, product: Product) -> tuple[Tiling, float]:
        """Return a product's tiling, and its clocks: none of one that was measured, which no model replaces.

        Raises
        ------
        TuningError
            What is said to be measured is no tiling of such a product.
        """
        measured = self.schedules.get(product.key)
        if measured is None:
            return best_tiling(product, self.isa)
        check_schedule(product.key, measured, fits=any(measured == each for _, each in ranked_tilings(product, self.isa)))
        return measured, 0.0

    def noted(self, product: Product, tiling: Tiling, calls: Sequence[KernelCall]) -> tuple[KernelCall, ...]:
        """Return calls that compute a product cut so, under its key."""
        likely = [each for _, each in ranked_tilings(product, self.isa)[: ALTERNATIVES + 1]]
        self.tunables.setdefault(product.key, Tunable.of(product.key, tiling, likely))
        self.calls[product.key] += 1
        return tuple(replace(call, key=product.key) for call in calls)
