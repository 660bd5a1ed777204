"""Charts: as data, and as pictures that matplotlib draws."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from bart.files import replacing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

MOST_POINTS = 2000
BINS = 30
# The looks of series, in order. Each colour has a contrast of 3 to 1 with white; dashes tell series apart without it.
COLOURS = ("#0b6699", "#b34a00", "#00735a", "#9a3f7d", "#5a55b0", "#7a6200")
DASHES = ("solid", "dashed", "dashdot", "dotted")
INK, GRID = "#5d5a54", "#ebe8e2"  # colours of text and axes, and of the lines behind the series
# An axis is logarithmic where one series reaches more than so many times as far as another.
LONGER, HIGHER = 8, 30
_LOOK = {
    "svg.fonttype": "none",  # text stays text
    "text.parse_math": False,
    "text.color": INK,
    "font.size": 9,
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "axes.labelcolor": INK,
    "axes.edgecolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "grid.color": GRID,
    "xtick.color": INK,
    "ytick.color": INK,
    "legend.frameon": False,
}


@dataclass
class Series:
    """A line, or a histogram where `x` has one value more than `y`: the edges of the bins."""

    name: str
    x: list[float]
    y: list[float]


@dataclass
class Chart:
    """One chart.

    Attributes:
        name: what its files are called.
        kind: `lines` or `histogram`.
        from_zero: whether the y axis starts at 0.
        marks: (label, x) of vertical lines.
    """

    name: str
    title: str
    x_label: str
    y_label: str
    series: list[Series]
    kind: str = "lines"
    from_zero: bool = False
    marks: list[tuple[str, float]] = field(default_factory=list)

    @property
    def description(self) -> str:
        """The chart in sentences, for readers who do not see it."""
        return " ".join(self._described(series) for series in self.series)

    def _described(self, series: Series) -> str:
        x, y, unit = series.x, series.y, self.x_label
        if self.kind == "histogram":
            most = max(range(len(y)), key=y.__getitem__)
            span = f"from {x[0]:.4g} to {x[-1]:.4g} {unit}"
            return f"{series.name}: {span}, most often {x[most]:.4g} to {x[most + 1]:.4g}."
        return (
            f"{series.name}: {y[0]:.4g} at {unit} {x[0]:,.6g}, {y[-1]:.4g} at {unit} {x[-1]:,.6g}, "
            f"between {min(y):.4g} and {max(y):.4g}."
        )


def thinned(x: list[float], y: list[float]) -> tuple[list[float], list[float]]:
    """Keep at most MOST_POINTS of a line's points, among them the least and the greatest of every stretch."""
    if len(x) <= MOST_POINTS:
        return x, y
    kept = {0, len(x) - 1}
    values = np.asarray(y)
    for stretch in np.array_split(np.arange(len(x)), MOST_POINTS // 2 - 1):
        kept |= {int(stretch[values[stretch].argmin()]), int(stretch[values[stretch].argmax()])}
    order = sorted(kept)
    return [x[i] for i in order], [y[i] for i in order]


def histograms(groups: Mapping[str, Sequence[int]]) -> list[Series]:
    """Histograms of whole numbers, whose bins all groups share."""
    values = np.concatenate([np.asarray(group) for group in groups.values()])
    width = max(1, math.ceil((values.max() - values.min() + 1) / BINS))
    start = values.min() // width * width
    edges = np.arange(start, values.max() + width + 1, width)
    return [Series(name, edges.tolist(), np.histogram(group, edges)[0].tolist()) for name, group in groups.items()]


def shortest_reach(series: Sequence[Sequence[float]], times: float) -> float | None:
    """Find out whether a linear axis would flatten a series, because another one reaches many times as far.

    Returns:
        The least of the series' greatest values; None where no other one is more than so many times as great.
    """
    ends = [max(values) for values in series]
    return min(ends) if 0 < times * min(ends) < max(ends) else None


def draw(path: Path, *charts: Chart) -> str:
    """Draw a chart, or several of the same series side by side with one legend, as a PNG file and as SVG.

    The same charts give the same bytes. Text of the SVG is text, and its ids begin with letters and a hash that is
    salted with the first chart's name, so that pictures of other charts in the same page have other ids.

    Returns:
        The SVG element, to be put into HTML.
    """
    # Imported here, since loading matplotlib takes a second and most commands draw nothing.
    import matplotlib
    from matplotlib.figure import Figure

    names = [_shown(series.name) for series in charts[0].series]
    columns = max(1, min(len(names), 60 * len(charts) // (6 + max(map(len, names)))))
    rows = math.ceil(len(names) / columns) if len(names) > 1 else 0
    with matplotlib.rc_context(_LOOK | {"svg.hashsalt": charts[0].name}):
        figure = Figure(figsize=(5.4 * len(charts), 3 + 0.22 * rows), dpi=160, layout="constrained")
        for axes, chart in zip(figure.subplots(1, len(charts), squeeze=False)[0], charts, strict=True):
            lines = _panel(axes, chart)
        if rows:
            figure.legend(lines, names, loc="outside lower left", ncols=columns)
        with replacing(path) as temporary:
            figure.savefig(temporary, format="png", metadata={"Software": None})
        written = io.StringIO()
        nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(written, format="svg", transparent=True, metadata=nothing)
    svg = written.getvalue()
    # The declaration before the element goes, and so do the style, which would apply to all of the page, and the names
    # of groups, which are the same in every picture.
    svg = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    return re.sub(r'<g id="[\w.]*">', "<g>", svg)


def _shown(text: str) -> str:
    """A text without line breaks and marks that turn the direction of writing; each becomes a replacement character."""
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text)


def _panel(axes: Axes, chart: Chart) -> list[object]:
    """Draw a chart's axes; returns the series as the legend takes them."""
    drawn: list[object] = []
    for i, series in enumerate(chart.series):
        colour, dashes = COLOURS[i % len(COLOURS)], DASHES[i % len(DASHES)]
        if chart.kind == "histogram":
            filled = {"fill": True, "facecolor": (colour, 0.2)} if len(chart.series) == 1 else {}
            drawn.append(axes.stairs(series.y, series.x, edgecolor=colour, linestyle=dashes, linewidth=1.6, **filled))
        else:
            look = {"color": colour, "linestyle": dashes, "linewidth": 1.6}
            drawn += axes.plot(series.x, series.y, marker="o" if len(series.x) <= 12 else None, markersize=3.5, **look)
    for i, (label, x) in enumerate(chart.marks):
        axes.axvline(x, color=INK, linewidth=0.8, linestyle="dotted")
        # Each label stands a line lower than the one before, so that labels of near marks do not touch.
        place = {"xycoords": ("data", "axes fraction"), "xytext": (2, -10 * (i + 1)), "textcoords": "offset points"}
        axes.annotate(label, (x, 1), fontsize=8, **place)
    axes.set(title=chart.title, xlabel=chart.x_label, ylabel=chart.y_label)
    if chart.from_zero:
        room = 1.05 + 0.08 * len(chart.marks)
        axes.set_ylim(0, room * max(max(series.y) for series in chart.series) or 1)
    if all(float(x).is_integer() for series in chart.series for x in series.x):
        axes.xaxis.get_major_locator().set_params(integer=True)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter("{x:,g}")
    if chart.kind == "lines" and (least := shortest_reach([series.x for series in chart.series], LONGER)):
        axes.set_xscale("log")
        axes.set_xlim(left=max(axes.get_xlim()[0], least / 100))
        _label_powers(axes.xaxis)
    if chart.kind == "lines" and (least := shortest_reach([series.y for series in chart.series], HIGHER)):
        axes.set_yscale("log")
        axes.set_ylim(bottom=max(axes.get_ylim()[0], least / 100))
        _label_powers(axes.yaxis)
    return drawn


def _label_powers(axis: Axis) -> None:
    """Put ticks on a logarithmic axis: powers of ten, and where these are few, also twice and five times each."""
    from matplotlib.ticker import LogLocator, NullFormatter

    low, high = axis.get_view_interval()
    axis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 300 * low else (1,)))
    axis.set_major_formatter("{x:,g}")
    axis.set_minor_formatter(NullFormatter())
