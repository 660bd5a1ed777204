"""Pieces of HTML that sections of the page are made of. Text becomes text, never markup."""

from __future__ import annotations

import html
from collections.abc import Sequence

from utils.evaluation.report.charts import Chart

NOTHING, MINUS = "\N{EN DASH}", "\N{MINUS SIGN}"


def element(tag: str, content: str, **attributes: str) -> str:
    """An HTML element around content that is HTML already; `class_` stands for class."""
    names = {name: name.rstrip("_").replace("_", "-") for name in attributes}
    marks = "".join(f' {names[name]}="{html.escape(value)}"' for name, value in attributes.items())
    return f"<{tag}{marks}>{content}</{tag}>"


def paragraph(text: str, **attributes: str) -> str:
    return element("p", html.escape(text), **attributes)


def absent(text: str) -> str:
    """What is not there, and why, in the place where it would stand."""
    return paragraph(text, class_="absent")


def table(caption: str, header: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> str:
    """A table whose first columns are words and whose others are numbers. Narrow screens stack wide ones.

    Args:
        left: columns of words; the first of them heads its row.
    """
    cells = [element("th", html.escape(name), scope="col", role="columnheader",
                     class_="word" if i < left else "number") for i, name in enumerate(header)]  # fmt: skip
    lines = [element("tr", "".join(cells), role="row")]
    body = []
    for row in rows:
        first, *others = map(html.escape, row)
        cells = [element("th", first, scope="row", role="rowheader", class_="word")]
        cells += [
            element("td", text, role="cell", class_="word" if i < left else "number", data_label=header[i])
            for i, text in enumerate(others, 1)
        ]
        body.append(element("tr", "".join(cells), role="row"))
    content = element("caption", html.escape(caption)) if caption else ""
    content += element("thead", "".join(lines), role="rowgroup") + element("tbody", "".join(body), role="rowgroup")
    return element("table", content, role="table", class_="stacking" if len(header) > 3 else "plain")


def facts(pairs: Sequence[tuple[str, str]]) -> str:
    """Names and values as a description list."""
    inner = "".join(
        element("div", element("dt", html.escape(name)) + element("dd", html.escape(text))) for name, text in pairs
    )
    return element("dl", inner, class_="facts") if pairs else ""


def shown(value: float | None, digits: int = 2) -> str:
    return NOTHING if value is None else f"{value:,.{digits}f}"


def interval_shown(low: float | None, high: float | None, sign: str = "") -> str:
    if low is None or high is None:
        return NOTHING
    return f"{low:{sign}.2f} to {high:{sign}.2f}".replace("-", MINUS)


def figure(chart: Chart) -> str:
    """The place of a chart, which the page's script draws from the data."""
    identity = f"chart-{chart.name}"
    content = element("h3", html.escape(chart.title))
    content += element("div", "", class_="legend") + element("div", "", class_="plot")
    content += element("p", "", class_="readout")
    content += paragraph(chart.description, class_="unseen", id=f"{identity}-text")
    content += element("details", element("summary", "Values") + element("div", "", class_="values"))
    return element("figure", content, class_="chart", id=identity)


def figures(charts: Sequence[Chart]) -> str:
    return element("div", "".join(map(figure, charts)), class_="charts") if charts else ""


def section(name: str, title: str, *content: str) -> str:
    head = element("h2", html.escape(title), id=f"{name}-title")
    return element("section", head + "".join(content), id=name, aria_labelledby=f"{name}-title")
