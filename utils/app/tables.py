"""Tables of Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tabulate import tabulate


def shown(figure: Any) -> str:
    """A cell of a table."""
    if figure is None:
        return "-"
    if not isinstance(figure, float):
        return str(figure)
    return f"{figure:,.0f}" if figure >= 1000 else f"{figure:.2f}" if figure >= 0.1 else f"{figure:.4f}"


def table(rows: Sequence[Mapping[str, Any]], columns: Mapping[str, str]) -> str:
    """Rows as a table of Markdown: words to the left, figures to the right, "-" for what a row lacks.

    Args:
        columns: keys of the rows, with their titles.
    """
    cells = [[shown(row.get(key)) for key in columns] for row in rows]
    align = ["left" if all(isinstance(row.get(key), str) for row in rows) else "right" for key in columns]
    return tabulate(cells, list(columns.values()), "pipe", disable_numparse=True, colalign=align, headersalign=align)
