"""Tables for the terminal and of Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tabulate import tabulate


def plain_table(rows: Sequence[Sequence[str]], header: Sequence[str] = (), words: int | None = None) -> str:
    """Rows as aligned columns for the terminal.

    Args:
        words: the number of columns, from the first on, that hold words and stand to the left; the others hold numbers
            and stand to the right. By default all hold words.
    """
    columns = max(map(len, [header, *rows]))
    left = columns if words is None else words
    align = ["left"] * left + ["right"] * (columns - left)
    return tabulate(rows, header, "plain", colalign=align, disable_numparse=True)


def markdown_table(rows: Sequence[Mapping[str, Any]], columns: Mapping[str, str]) -> str:
    """Rows as a table of Markdown: words to the left, numbers to the right, "-" for what a row lacks.

    Args:
        columns: keys of the rows, with their titles.
    """
    cells = [[_cell(row.get(key)) for key in columns] for row in rows]
    align = ["left" if all(isinstance(row.get(key), str) for row in rows) else "right" for key in columns]
    return tabulate(cells, list(columns.values()), "pipe", disable_numparse=True, colalign=align, headersalign=align)


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if not isinstance(value, float):
        return str(value)
    digits = 2 if value >= 0.1 else 4
    return f"{value:,.0f}" if value >= 1000 else f"{value:.{digits}f}"
