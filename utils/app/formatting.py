"""Numbers and tables as people read them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tabulate import tabulate


def duration(seconds: float) -> str:
    """Hours, minutes and seconds, such as 1:23 or 12:01:23."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def rate(value: float, unit: str) -> str:
    """A number of units a second, such as `27,570 tokens/s`."""
    return f"{value:,.0f} {unit}/s" if value >= 100 else f"{value:.3g} {unit}/s"


def format_metric(name: str, value: float | str) -> str:
    """A metric with its unit, which follows from the name that the metric has in the run's files."""
    if isinstance(value, str):
        return value
    if isinstance(value, int):
        return f"{value:,}"
    if name.endswith("_per_second"):
        return rate(value, name.removesuffix("_per_second").replace("_", " "))
    if name.endswith("_seconds"):
        return duration(value)
    if name.startswith("step_time"):
        return f"{1000 * value:,.0f} ms"
    if name.endswith("_gb"):
        return f"{value:.2f} GB"
    if name == "lr":
        return f"{value:.2e}"
    return f"{value:,.4f}" if "loss" in name or 0 < abs(value) < 1 else f"{value:,.2f}"


def metric_label(name: str) -> str:
    """The name of a metric in a table that shows its unit too: `token rate` for tokens_per_second."""
    name = name.removesuffix("_gb").replace("s_per_second", "_rate").replace("_seconds", "_time")
    return name.replace("_", " ")


def plain_table(rows: Sequence[Sequence[str]], header: Sequence[str] = (), words: int | None = None) -> str:
    """Rows as aligned columns for the terminal; the first `words` of them, by default all, stand to the left."""
    columns = max(map(len, [header, *rows]))
    left = columns if words is None else words
    align = ["left"] * left + ["right"] * (columns - left)
    return tabulate(rows, header, "plain", colalign=align, disable_numparse=True)


def markdown_table(rows: Sequence[Mapping[str, Any]], columns: Mapping[str, str]) -> str:
    """Some keys of rows, by their titles, as a table of Markdown: words to the left, numbers to the right."""
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
