"""Which taps of a convolution's window lie in the padding, for each output row and column. Plain numbers, no TIR.

Where padding holds zeros, a tap that lies in it adds nothing and is left out: of a 3 x 3 convolution of 7 x 7 pixels that is 18%.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby

from .......runtime.size import is_open
from ..float_spec import FloatConv2dSpec
from ..spec import Conv2dSpec


def pads_zeros(spec: Conv2dSpec | FloatConv2dSpec) -> bool:
    """Return whether padding holds zeros, whatever the weights are."""
    return isinstance(spec, FloatConv2dSpec) or (spec.input_zero_point == 0 and spec.scales == 0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Taps:
    """The taps of one axis: tap t of output o reads input o * stride - before + t * dilation, if that lies in range(extent)."""

    count: int
    stride: int
    dilation: int
    before: int
    extent: int
    outputs: int

    def interior(self, output: int) -> tuple[int, int]:
        """Return [first; last) of the taps of one output that read inputs."""
        start = output * self.stride - self.before
        first = min(max(0, -(start // self.dilation)), self.count)
        last = min(max(0, -((start - self.extent) // self.dilation)), self.count)
        return first, max(first, last)

    @property
    def are_all_interior(self) -> bool:
        """Return whether no output has a tap in the padding."""
        return self.interior(0)[0] == 0 and self.interior(self.outputs - 1)[1] == self.count

    def read_by(self, first: int, count: int) -> int:
        """Return how many taps in a row cover those of `count` outputs from `first` on."""
        spans = [self.interior(output) for output in range(first, first + count)]
        return max(last for _, last in spans) - min(start for start, _ in spans)


@dataclass(frozen=True, slots=True)
class Run:
    """The column taps [first; last), read for these columns of a tile."""

    first: int
    last: int
    columns: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ColumnTiles:
    """`count` tiles of `width` columns side by side, from column `first` on, that leave out the same taps."""

    first: int
    count: int
    width: int
    runs: tuple[Run, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Borders:
    """The taps of both axes.

    Parameters
    ----------
    rows, columns
        Taps of each.
    tap_steps
        Steps of one tap; None where steps do not end where taps do, so that column taps must not be left out.
    """

    rows: Taps
    columns: Taps
    tap_steps: int | None

    @staticmethod
    def of(spec: Conv2dSpec | FloatConv2dSpec, tap: int, step: int) -> Borders | None:
        """Return the borders of a convolution that reads `tap` elements for each tap; None where none of it is to be left out.

        A step takes `step` elements: 4 bytes, or 1 real.
        """
        if any(map(is_open, (spec.in_height, spec.in_width))):  # where the padding lies, is known when the kernel runs
            return None
        if not pads_zeros(spec) or not any(spec.padding):
            return None
        rows, columns = (
            Taps(
                count=spec.kernel[axis],
                stride=spec.strides[axis],
                dilation=spec.dilation[axis],
                before=spec.padding[axis],
                extent=(spec.in_height, spec.in_width)[axis],
                outputs=(spec.out_height, spec.out_width)[axis],
            )
            for axis in range(2)
        )
        splits = tap % step == 0
        if rows.are_all_interior and (columns.are_all_interior or not splits):
            return None
        return Borders(rows=rows, columns=columns, tap_steps=tap // step if splits else None)

    def column_tiles(self, width: int) -> list[ColumnTiles]:
        """Return the tiles of one row, `width` columns each but the last."""
        columns = self.columns.outputs
        starts = list(range(0, columns, width))
        tiles = [(min(width, columns - start), self._runs(start, min(width, columns - start))) for start in starts]
        found: list[ColumnTiles] = []
        for (size, runs), group in groupby(range(len(starts)), key=lambda index: tiles[index]):
            indices = list(group)
            found.append(ColumnTiles(starts[indices[0]], len(indices), size, runs))
        return found

    def _runs(self, first: int, width: int) -> tuple[Run, ...]:
        taps = self.columns
        if self.tap_steps is None:
            return (Run(0, taps.count, tuple(range(width))),)
        spans = [taps.interior(first + column) for column in range(width)]
        readers = [tuple(column for column, (low, high) in enumerate(spans) if low <= tap < high) for tap in range(taps.count)]
        runs: list[Run] = []
        for columns, group in groupby(range(taps.count), key=lambda tap: readers[tap]):
            indices = list(group)
            if columns:
                runs.append(Run(indices[0], indices[-1] + 1, columns))
        return tuple(runs)
