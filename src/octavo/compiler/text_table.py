"""Tables as text: Markdown whose columns line up, so that a terminal shows it as well as a page. Knows no results."""

from __future__ import annotations

from collections.abc import Sequence


def markdown_table(
    headers: Sequence[str], rows: Sequence[Sequence[str]], *, numbers: Sequence[int] = (), names: Sequence[int] = ()
) -> str:
    """Return a Markdown table.

    Parameters
    ----------
    headers
        Titles of the columns.
    rows
        As many cells each as there are headers; a "|" in a cell is escaped.
    numbers
        Indices of the columns to set flush right.
    names
        Indices of the columns that hold names of tensors: long ones are shortened, different ones stay different.
    """
    for column in names:
        short = shortened([row[column] for row in rows])
        rows = [[*row[:column], name, *row[column + 1 :]] for row, name in zip(rows, short, strict=True)]
    cells = [[cell.replace("|", "\\|") for cell in row] for row in (headers, *rows)]
    assert all(len(row) == len(headers) for row in cells), "a table's rows have as many cells as its header"
    widths = [max(3, *(len(row[column]) for row in cells)) for column in range(len(headers))]

    def line(row: Sequence[str]) -> str:
        padded = [
            cell.rjust(width) if i in numbers else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        return "| " + " | ".join(padded) + " |"

    rule = ["-" * (width - 1) + ":" if i in numbers else "-" * width for i, width in enumerate(widths)]
    return "\n".join([line(cells[0]), line(rule), *(line(row) for row in cells[1:])])


def shortened(names: Sequence[str], longest: int = 48) -> list[str]:
    """Leave out the middle of names too long for a table: converters chain the names of all ops they fused.

    Of different names that would look the same as much more is kept as tells them from one another.
    """
    short = {name: _shortened(name, longest) for name in names}
    while True:
        alike: dict[str, list[str]] = {}
        for name, shown in short.items():
            alike.setdefault(shown, []).append(name)
        groups = [group for group in alike.values() if len(group) > 1]
        if not groups:
            return [short[name] for name in names]
        for name in (name for group in groups for name in group):
            short[name] = _shortened(name, len(short[name]) + _MORE)


_MORE = 8


def _shortened(name: str, longest: int) -> str:
    return name if len(name) <= longest else f"{name[: longest // 2]}..{name[2 - longest // 2 :]}"
