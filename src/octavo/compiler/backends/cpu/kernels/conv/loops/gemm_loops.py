"""The loop nest of an implicit matrix product, whatever its numbers are: blocks of rows, panels of channels, tiles of pixels.

    for each block of output rows          (a padded copy of its input rows, if there is padding)
      for each panel of output channels
        for each tile of pixels            (emitted by the class that derives from this)

It emits loops and addresses, no arithmetic on the tensors.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from tvm.script.ir_builder import tirx as T

from .......runtime.shapes import TYPICAL, largest, smallest, typical
from .......runtime.size import is_open
from .....tunable import Tunable, check_schedule
from ...language.lane_order import LANES
from ...language.schedule import Schedule, Schedules, TileSchedule
from ...language.vectors import Expr, bound, for_open_tiles, interior, split, where_at_least
from .borders import Borders, ColumnTiles, Run
from .geometry import Geometry
from .open_tiles import for_pixel_tiles
from .packing import panel_widths
from .scratch import InputCopy
from .shares import COPY_BYTES, balanced_block, chunk_bounds, longest_share
from .strips import MAX_STRUNG, EmittedStrips, Strips, is_strung
from .tiles import Core, Tile, layer_cycles, ranked_tiles, varied

INPUT_BLOCK_BYTES = 128 * 1024  # of the input that one block reads for every panel: it must stay in the second-level cache
FAR_BYTES = 1 << 20  # weights of more don't lie in a core's caches when a layer begins, and each block reads all of them
COPIED_BLOCK_BYTES = (
    16 * 1024
)  # of rows that were just copied or walked over and that one panel reads: half the first-level cache
MAX_BLOCK_BYTES = 8 * INPUT_BLOCK_BYTES  # of the blocks that are worth measuring
MAX_OPEN = 16  # pixels of a tile of open size
ALTERNATIVES = 16  # tiles beside the chosen one that are worth measuring ...
ALTERNATIVE_CYCLES = 1.5  # ... if they are estimated to take so many times its cycles at most


@dataclass(frozen=True, kw_only=True, slots=True)
class Panel:
    """A panel of output channels.

    Parameters
    ----------
    number
        Its place among the panels of all groups.
    first, vectors
        Its vectors among those of all groups.
    channels
        How many of its lanes are output channels.
    copy
        Its weights alone, in the form that products take; None where they are read among those of all panels.
    is_rest
        Whether it is the last of several, and written out apart.
    strung
        Whether its vectors are as many panels of one, whose weights lie behind each other, which a single row reads together.
    """

    number: Expr
    first: Expr
    vectors: int
    channels: int
    copy: Expr | None = None
    is_rest: bool = False
    strung: bool = False


@dataclass(frozen=True, slots=True)
class TilePlace:
    """A tile of pixels: its first row within the block, its first column, its size, and its runs where taps are left out."""

    row: Expr
    column: Expr
    height: int
    width: int
    runs: tuple[Run, ...]

    @property
    def pixels(self) -> list[tuple[int, int]]:
        """Return (row, column) of each pixel within the tile."""
        return [(row, column) for row in range(self.height) for column in range(self.width)]

    def read_in(self, run: Run, starts: list[int]) -> list[tuple[int, int]]:
        """Return (number, start) of the pixels that read the taps of one run; `starts` are those of all pixels."""
        return [(i, start) for i, start in enumerate(starts) if i % self.width in run.columns]


def _schedule(tile: Tile, block: int | None = None) -> TileSchedule:
    return TileSchedule(rows=tile.rows, columns=tile.columns, vectors=tile.vectors, block=block)


def _is_tile(tile: Tile, schedule: Schedule) -> bool:
    return isinstance(schedule, TileSchedule) and _schedule(tile) == replace(schedule, block=None)


def _is_block(schedule: Schedule, rows: int) -> bool:
    """Return whether a block is whole tiles, and no more than `rows` needs."""
    if not isinstance(schedule, TileSchedule) or schedule.block is None:
        return True
    return schedule.block % schedule.rows == 0 and 0 < schedule.block < rows + schedule.rows


def for_runs(
    taps: tuple[tuple[int, int], ...], element: Expr, weights: Expr, run_weights: int, body: Callable[[Expr, Expr], None]
) -> None:
    """Emit `body(element, weights)` for each run of a window, in loops over these taps, of (extent, distance in elements).

    Both begin where they are given; a run has `run_weights` elements of packed weights.
    """
    if not taps:
        body(element, weights)
        return
    (extent, distance), rest = taps[0], taps[1:]
    if extent == 1:
        for_runs(rest, element, weights, run_weights, body)
        return
    inner = math.prod(size for size, _ in rest) * run_weights
    with T.serial(0, extent) as tap:
        for_runs(rest, T.Bind(element + tap * distance), T.Bind(weights + tap * inner), run_weights, body)


class GemmLoops(ABC):
    """Emits the loops around the tiles of one layer; a derived class sets these attributes and emits the tiles.

    Parameters
    ----------
    geometry
        Where windows and outputs lie, in elements.
    tile
        Pixels and channels in registers.
    schedule, alternatives
        What was chosen, and the tiles that could be chosen instead.
    threads, cycles
        Chunks of the outermost loop; estimate of all its work.
    element_bytes, step_bytes
        Of the input; of a lane's weights for one step.
    is_copied, scratch, block
        Whether blocks read a padded copy of their rows, that copy (None without padding), and the output rows of a block.
    is_walked_before
        Whether something reads all of a block's input before its panels do.
    borders
        Which taps are left out where they lie in the padding; None where none are.
    takes_any_pixels
        Whether tiles of open sizes may take any pixels: from a table, and some twice.
    has_few_pixels
        Whether it is no image whose rows are computed, of which there are few now and then, but those of a dense layer.
    open_accumulators
        Of a dense layer's tile of open rows, at most: 16 hide the latency, leave fewer rows behind, and compile faster.
    strung_panels
        Panels of one vector that a dense layer's single row reads together, should its rows be open: what the row says to all of
        them is read once, and their sums don't wait for each other. 1 where it reads one after the other.
    strips
        How pixels of open columns are strung together; None where tiles lie in rows.
    x, filled, first_row, table
        The input buffer, and of open rows those that a block holds, the first of them, and its pixels strung together, else None;
        known once emission starts.
    """

    geometry: Geometry
    tile: Tile
    schedule: TileSchedule
    alternatives: tuple[Tile, ...]
    threads: int
    cycles: float
    element_bytes: int
    step_bytes: int = 4
    far_block_bytes: int = INPUT_BLOCK_BYTES
    """Of a block that reads weights of more than `FAR_BYTES`."""
    is_copied: bool
    scratch: InputCopy | None
    block: int
    is_walked_before: bool = False
    borders: Borders | None = None
    takes_any_pixels: bool = False
    has_few_pixels: bool = True
    open_accumulators: int = 16
    strung_panels: int = 1
    x: Expr
    filled: Expr | None = None
    first_row: Expr | None = None
    strips: Strips | None = None
    table: EmittedStrips | None = None

    @abstractmethod
    def _emit_rows(self, source: Expr, base: Expr, out_base: Expr, block: Expr, panel: Panel, shared: Expr | None) -> None:
        """Emit all tiles of one panel over one block."""

    def _emit_block_values(self, source: Expr, base: Expr, block: Expr) -> Expr | None:
        """Emit what all panels of a group share over one block, if anything, and return its buffer."""
        del source, base, block
        return None

    def _weights_of(self, image: Expr) -> Expr:
        """Return which of several weights an image has."""
        return T.floormod(image, self.geometry.stack)

    def _padding_value(self, image: Expr) -> Expr | None:
        """Return what padding of an image is filled with; None for the constant that the scratch knows."""
        del image
        return None

    # ---- shape of the loop nest

    def _choose_tile(self, key: str, schedules: Schedules, core: Core, shape: dict[str, Any]) -> None:
        """Take the tile that was measured to be best, or that with the fewest estimated cycles."""
        shape = self._typical(shape)
        if self.takes_any_pixels and is_strung(self.geometry, shape["steps"]):
            shape["runs"] = self.geometry.reduction.runs
        ranked = self._fit_for_open(ranked_tiles(**shape, core=core), shape["steps"])
        (fewest, chosen), measured = ranked[0], schedules.get(key)
        if measured is not None:
            tiles = [tile for _, tile in ranked if _is_tile(tile, measured)]
            check_schedule(key, measured, fits=len(tiles) == 1 and _is_block(measured, shape["rows"]))
            chosen = tiles[0]
        self._take_tile(chosen, core, shape)
        self.schedule = measured if isinstance(measured, TileSchedule) else self.schedule
        worthwhile = [tile for cycles, tile in ranked if cycles <= ALTERNATIVE_CYCLES * fewest]
        self.alternatives = tuple(tile for tile in varied(worthwhile)[: ALTERNATIVES + 1] if tile != chosen)

    def _fit_for_open(self, ranked: list[tuple[float, Tile]], steps: int) -> list[tuple[float, Tile]]:
        """Return those of the ranked tiles that suit an open size, should it be open.

        Many pixels in one tile leave many behind whole ones, and code for each power of two of these: so they are a power, too.
        """
        if not self.has_open_rows:
            return ranked
        most = MAX_STRUNG if self.takes_any_pixels and is_strung(self.geometry, steps) else MAX_OPEN
        ranked = [each for each in ranked if each[1].pixels <= most]
        if self.geometry.columns == 1:  # a dense layer's
            ranked = [each for each in ranked if each[1].pixels * each[1].vectors <= self.open_accumulators] or ranked
        return [each for each in ranked if each[1].pixels < MAX_STRUNG or each[1].pixels.bit_count() == 1]

    def _take_tile(self, tile: Tile, core: Core, shape: dict[str, Any]) -> None:
        """Take this tile and no other."""
        self.tile, self.schedule, self.alternatives = tile, _schedule(tile), ()
        shape = self._typical(shape)
        rows = typical(self.geometry.rows) // shape["rows"]
        images = typical(self.geometry.images) * max(1, rows)
        self.cycles = images * self.geometry.groups * layer_cycles(tile, **shape, core=core)

    def _typical(self, shape: dict[str, Any]) -> dict[str, Any]:
        """Return sizes to choose a tile by; one of open columns has one row, for how far rows lie apart is open too."""
        rows, columns = self.geometry.rows, self.geometry.columns
        known = {"rows": 1 if is_open(columns) else max(1, typical(rows)), "columns": TYPICAL if is_open(columns) else columns}
        return {**shape, **known}

    def _tunable(self, key: str) -> Tunable:
        """Return the schedule that was chosen and its alternatives: other tiles, and other blocks for this tile."""
        return Tunable.of(key, self.schedule, map(_schedule, self.alternatives), self._other_blocks())

    def _other_blocks(self) -> list[TileSchedule]:
        if is_open(self.block):
            return []
        rows, tile = typical(self.geometry.rows), self.tile
        row_bytes = max(1, self.geometry.row_stride * self.element_bytes)
        most = min(-(-rows // tile.rows), max(1, MAX_BLOCK_BYTES // row_bytes // tile.rows))
        chosen = self.block // tile.rows
        counts = [chosen * 2, chosen // 2, most, chosen // 4, 1]
        sizes = dict.fromkeys(count for count in counts if 1 <= count <= most and count != chosen)
        return [_schedule(tile, block=count * tile.rows) for count in sizes]

    def _block_rows(self) -> int:
        """Output rows of one block, a multiple of the tile's: small enough for the cache, and enough blocks for the threads."""
        geometry, tile, threads = self.geometry, self.tile, self.threads
        if self.schedule.block is not None and threads == 1:  # what was measured; threads need blocks of their own
            return self.schedule.block
        reduction = geometry.reduction
        span = largest((extent - 1) * distance for extent, distance in reduction.taps)
        # Rows that one panel alone reads are best read from where they were just written, or just walked over.
        is_fresh_for_one = (self.is_copied or self.is_walked_before) and len(self.panels) == 1
        is_far = 4 * reduction.steps * geometry.group_outputs * geometry.groups >= FAR_BYTES  # a step takes four bytes
        most_bytes = COPIED_BLOCK_BYTES if is_fresh_for_one else self.far_block_bytes if is_far else INPUT_BLOCK_BYTES
        affordable = (most_bytes // self.element_bytes - span) // largest((1, self.block_row_elements))
        if self.has_open_rows:  # the kernel makes blocks of this size at most, all alike
            return largest((2, affordable // tile.rows)) * tile.rows
        tiles = max(1, min(affordable, geometry.rows) // tile.rows)
        total = -(-geometry.rows // tile.rows)
        if threads > 1 and not self._shares_panels:
            return balanced_block(total, tiles, typical(geometry.images), threads) * tile.rows
        return -(-total // -(-total // tiles)) * tile.rows

    @property
    def block_row_elements(self) -> int:
        """Elements of the source from one row of a block to the next, all of which its panels read."""
        return self.geometry.row_stride

    @property
    def has_open_rows(self) -> bool:
        """Whether blocks of rows are laid out when the kernel runs: their number is open, or how much one reads."""
        return is_open(self.geometry.rows) or is_open(self.geometry.columns)

    @property
    def blocks(self) -> int:
        """Blocks of rows of one image."""
        rows = self.geometry.rows
        blocks = -(-rows // self.block)
        if not self.has_open_rows or self.threads == 1 or self._shares_panels:
            return blocks
        return largest((blocks, smallest((self.threads, -(-rows // self.tile.rows)))))  # as many as threads, of a tile at least

    @property
    def panels(self) -> list[int]:
        """Widths of a group's panels."""
        return panel_widths(self.geometry.group_outputs, self.tile.vectors)

    @property
    def _shares_panels(self) -> bool:
        """Whether threads take panels of channels each, all rows of them; else they take rows, all channels of them.

        What counts is the longest share, and what each thread reads from beyond its cache: its weights, or its rows.
        """
        geometry, tile, threads = self.geometry, self.tile, self.threads
        panels = len(self.panels)
        if panels < 2:
            return False
        total = -(-typical(geometry.rows) // tile.rows)
        images = typical(geometry.images)
        rows_share = longest_share(total, 1, images, threads) / (total * images)
        most = max(last - first for first, last in chunk_bounds(panels, threads))
        panels_share = min(1.0, most * tile.vectors / geometry.group_vectors)
        weight_bytes = geometry.reduction.steps * self.step_bytes * LANES * geometry.group_vectors * geometry.sets
        input_bytes = images * typical(geometry.rows * geometry.row_stride) * self.element_bytes
        by_rows = rows_share * self.cycles + (weight_bytes + rows_share * input_bytes) / COPY_BYTES
        by_panels = panels_share * self.cycles + (input_bytes + panels_share * weight_bytes) / COPY_BYTES
        return by_panels < by_rows

    # ---- emission, from the outside in

    def _emit_threads(self) -> None:
        if self.threads == 1:
            self._emit_chunk(None)
            return
        with T.parallel(0, self.threads) as chunk:
            self._emit_chunk(chunk)

    def _emit_chunk(self, chunk: Expr | None) -> None:
        """Emit a thread's share; all, where there is one alone."""
        threads, units, panels = self.threads, self.geometry.images * self.blocks, len(self.panels)
        if chunk is None:
            self._emit_units(0, units, 0, panels)
        elif self._shares_panels:
            self._emit_units(0, units, chunk * panels // threads, (chunk + 1) * panels // threads)
        else:
            self._emit_units(chunk * units // threads, (chunk + 1) * units // threads, 0, panels)

    def _emit_units(self, first: Expr, last: Expr, first_panel: Expr, last_panel: Expr) -> None:
        """Emit the loop over blocks of rows, all images in one sequence."""
        geometry = self.geometry
        with T.serial(0, last - first) as index:
            unit = T.Bind(first + index) if not isinstance(first, int) else index
            image, block, first_row = self._place_of(unit)
            if self.scratch is not None:
                source, base = self.scratch.emit(self.x, image, first_row, self._padding_value(image), self.filled), T.int32(0)
            else:
                source, base = self.x, T.Bind(image * geometry.image_stride + first_row * geometry.row_stride)
            if self.strips is not None:
                self.table = self.strips.emit(self.block, self.filled, self.first_row)
            out_base = T.Bind(self._out_base(image, first_row))
            if geometry.groups == 1:
                own = 0 if geometry.stack == 1 else T.Bind(self._weights_of(image))
                self._emit_group(source, base, out_base, block, own, first_panel, last_panel)
            else:
                with T.serial(0, geometry.groups) as group:
                    interior = T.Bind(base + group * geometry.group_inputs)
                    out_interior = T.Bind(out_base + group * geometry.group_outputs)
                    self._emit_group(source, interior, out_interior, block, group, first_panel, last_panel)

    def _place_of(self, unit: Expr) -> tuple[Expr, Expr, Expr]:
        """Return the image of a unit, its block there and the block's first row; open blocks differ by a tile at most."""
        if not self.has_open_rows:
            image, block = split(unit, self.blocks)
            return image, block, T.Bind(block * self.block)
        rows, blocks = bound(self.geometry.rows), bound(self.blocks)
        image: Expr = T.int32(0)
        if self.geometry.images != 1:
            image, unit = split(unit, blocks)
        height = self.tile.rows
        tiles = bound(-(-self.geometry.rows // height))
        # Kept, for TVM's passes and LLVM would see the quotients in every address below: it takes them 3 times as long.
        place: Any = T.alloc_buffer((2,), "int32", scope="local")

        def put(first: Expr, last: Expr) -> None:
            T.buffer_store(place, first, [0])
            T.buffer_store(place, (last if height == 1 else T.min(last, rows)) - first, [1])

        def by_quotients() -> None:
            # Of whole tiles but for the last one: what is left behind them costs more. In 64 bits: a product of two sizes may
            # leave 32. A quotient that is rounded down takes LLVM seconds to see through.
            quotients = [T.truncdiv(T.cast(unit + more, "int64") * tiles, T.cast(blocks, "int64")) for more in (0, 1)]
            put(*(T.Bind(T.cast(quotient, "int32") * height) for quotient in quotients))

        # One block needs no division: two of them are 7 of the 300 ns that a layer of one row takes.
        where_at_least(self.blocks, 2, by_quotients, lambda: put(T.int32(0), T.int32(0) + rows))
        first_row, self.filled = place[0], place[1]
        self.first_row = first_row
        return image, unit, first_row

    def _out_base(self, image: Expr, first_row: Expr) -> Expr:
        """Return where the outputs of a block begin."""
        geometry, place = self.geometry, self.geometry.interleave
        if place is None:
            return (image * geometry.rows + first_row) * (geometry.columns * geometry.channels)
        first = (place.first[0] * place.width + place.first[1]) * geometry.channels
        return image * (place.height * place.width * geometry.channels) + first_row * geometry.row_pitch + first

    def _emit_group(
        self, source: Expr, base: Expr, out_base: Expr, block: Expr, group: Expr, first_panel: Expr, last_panel: Expr
    ) -> None:
        """Emit the panels of one group over one block."""
        geometry = self.geometry
        shared = self._emit_block_values(source, base, block)
        widths = self.panels
        width = widths[0]
        full = len(widths) if widths[-1] == width else len(widths) - 1

        def panel(index: Expr, vectors: int, channels: int, **how: bool) -> None:
            number = group * len(widths) + index
            first = T.Bind(T.int32(0) + group * geometry.group_vectors + index * width)
            out_interior = T.Bind(out_base + index * (width * LANES))
            place = Panel(number=number, first=first, vectors=vectors, channels=channels, **how)
            self._emit_rows(source, base, out_interior, block, place, shared)

        # The last panel is written out apart wherever it differs from the others: narrower, or with padding lanes.
        ragged = full < len(widths) or geometry.group_outputs % LANES != 0
        looped = len(widths) - 1 if ragged else len(widths)

        def several_rows() -> None:
            with self._panel_loop(first_panel, last_panel, looped) as index:
                panel(index, width, width * LANES)

        def one_row() -> None:
            with T.serial(0, -(-looped // together)) as turn:  # the last ones may be computed again, to the same values
                index = T.Bind(T.min(turn * together, T.int32(looped - together)))
                panel(index, together, together * LANES, strung=True)

        together = self._together(looped) if isinstance(last_panel, int) else 1
        if together > 1:
            with T.If(self.filled == 1):
                with T.Then():
                    one_row()
                with T.Else():
                    several_rows()
        elif looped:
            several_rows()
        if ragged:
            channels = geometry.group_outputs - (len(widths) - 1) * width * LANES
            if isinstance(last_panel, int):
                panel(len(widths) - 1, widths[-1], channels, is_rest=looped > 0)
            else:
                with T.If(T.And(first_panel < len(widths), last_panel == len(widths))), T.Then():
                    panel(len(widths) - 1, widths[-1], channels, is_rest=looped > 0)

    def _together(self, panels: int) -> int:
        """Return how many of so many full panels a single row reads together: such that it computes fewest of them again."""
        if not is_open(self.geometry.rows) or self.geometry.columns != 1 or self.tile.vectors > 1 or not panels:
            return 1
        counts = range(min(self.strung_panels, panels), 0, -1)
        return min(counts, key=lambda count: count * -(-panels // count) + (panels if count == 1 else 0))

    def _panel_loop(self, first: Expr, last: Expr, looped: int) -> Expr:
        if isinstance(first, int):
            return T.serial(0, looped)
        return T.serial(first, T.min(last, T.int32(looped)))

    def _tile_rows(self, block: Expr) -> tuple[Expr, int]:
        """Return how many whole tiles of rows the block holds, and the rows of the tile that is left over in the last block."""
        full, left = divmod(self.geometry.rows, self.tile.rows)
        per_block = self.block // self.tile.rows
        if self.blocks == 1:
            return full, left
        return T.min(T.int32(per_block), full - block * per_block), left

    def _for_tiles(self, block: Expr, body: Callable[[TilePlace], None], panel: Panel) -> None:
        """Emit `body` for every tile of the block; the last of several panels is not worth as much code as the others."""
        are_few = self.has_few_pixels and not panel.is_rest
        columns, width = self.geometry.columns, self.tile.columns
        if is_open(columns):
            tiles = []
        elif self.borders is not None:
            tiles = self.borders.column_tiles(width)
        else:
            tiles = [ColumnTiles(0, columns // width, width, ())]
            if columns % width:
                tiles.append(ColumnTiles(columns - columns % width, 1, columns % width, ()))

        def row_of_tiles(row: Expr, height: int) -> None:
            if is_open(columns):
                self._for_open_tiles(
                    columns, width, lambda column, size: body(TilePlace(row, column, height, size, ())), are_few=are_few
                )
            for each in tiles:
                if each.count == 1:
                    body(TilePlace(row, each.first, height, each.width, each.runs))
                else:
                    with T.serial(0, each.count) as index:
                        body(TilePlace(row, each.first + index * width, height, each.width, each.runs))

        if panel.strung:
            row_of_tiles(T.int32(0), 1)
            return
        if self.has_open_rows:
            self._for_open_tiles(self.filled, self.tile.rows, row_of_tiles, are_few=are_few)
            return
        count, left = self._tile_rows(block)
        with T.serial(0, count) as index:
            row_of_tiles(index * self.tile.rows, self.tile.rows)
        if left and self.blocks == 1:
            row_of_tiles(self.geometry.rows - left, left)
        elif left:
            with T.If(block == self.blocks - 1), T.Then():
                row_of_tiles(self.geometry.rows - left - block * self.block, left)

    def _for_open_tiles(self, count: Expr, size: int, body: Callable[[Expr, int], None], *, are_few: bool) -> None:
        if self.takes_any_pixels:
            for_pixel_tiles(count, size, body, are_few=are_few)
        else:
            for_open_tiles(count, size, body, overlaps=False)

    def _for_row_taps(self, place: TilePlace, block: Expr, body: Callable[[Expr], None]) -> None:
        """Emit `body` for every row of taps that some row of the tile reads outside the padding."""
        assert self.borders is not None
        taps = self.borders.rows
        row = T.Bind(block * self.block + place.row)

        def bounds(row: Expr) -> tuple[Expr, Expr]:
            start = row * taps.stride - taps.before
            return interior(start, taps.count, taps.dilation, taps.extent, always=taps.are_all_interior)

        first, last = bounds(row + (place.height - 1))[0], bounds(row)[1]
        if taps.count == 1:
            body(0)
        else:
            with T.serial(first, T.max(first, last) if not isinstance(first, int) else last) as tap:
                body(tap)
