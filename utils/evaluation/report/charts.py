"""Charts of a run: as data, and as SVG that matplotlib draws."""

from __future__ import annotations

import io
import math
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from utils.evaluation.report.articles import has_statistics
from utils.evaluation.report.runs import ReportedRun
from utils.metrics.files import label_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BINS = 30
# The looks of series, in order. Each colour has a contrast of 3 to 1 with white; dashes tell series apart without it.
COLOURS = ("#0b6699", "#b34a00", "#00735a", "#9a3f7d", "#5a55b0", "#7a6200")
DASHES = ("solid", "dashed", "dashdot", "dotted")
INK, GRID = "#5d5a54", "#ebe8e2"  # colours of text and axes, and of the lines behind the series
HIGHER = 30  # the y axis is logarithmic where one series reaches more than so many times as far as another
_LOOK = {
    "font.size": 9,
    "svg.fonttype": "none",  # text stays text
    "text.parse_math": False,
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "grid.color": GRID,
    "legend.frameon": False,
} | dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), INK)


@dataclass
class Series:
    """A line, or a histogram where `x` has one value more than `y`: the edges of the bins."""

    name: str
    x: list[float]
    y: list[float]


@dataclass
class Chart:
    """One chart of lines or of histograms."""

    name: str
    title: str
    x_label: str
    y_label: str
    series: list[Series]
    from_zero: bool = False  # of the y axis


def draw(chart: Chart) -> str:
    """Draw a chart as an SVG element, to be put into HTML.

    The same chart gives the same bytes. The ids are salted with its name, so that charts of one page share none.
    """
    # Imported here, since loading matplotlib takes a second and most commands draw nothing.
    import matplotlib

    # Browsers find glyphs that the font lacks.
    with matplotlib.rc_context(_LOOK | {"svg.hashsalt": chart.name}), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        figure = _figure(chart)
        file = io.StringIO()
        metadata = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(file, format="svg", transparent=True, metadata=metadata)
    svg = file.getvalue()
    # The style would apply to all of the page, and the names of groups are the same in every picture.
    svg = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    return re.sub(r'<g id="[\w.]*">', "<g>", svg)


def _figure(chart: Chart) -> Figure:
    from matplotlib.figure import Figure

    names = [series.name for series in chart.series]
    columns = max(1, min(len(names), 60 // (6 + max(map(len, names)))))
    rows = math.ceil(len(names) / columns) if len(names) > 1 else 0
    figure = Figure(figsize=(5.4, 3 + 0.22 * rows), dpi=160, layout="constrained")
    axes = figure.subplots()
    drawn: list[object] = []
    for i, series in enumerate(chart.series):
        look = {"linestyle": DASHES[i % len(DASHES)], "linewidth": 1.6}
        colour = COLOURS[i % len(COLOURS)]
        if len(series.x) > len(series.y):
            filled = {"fill": True, "facecolor": (colour, 0.2)} if len(chart.series) == 1 else {}
            drawn.append(axes.stairs(series.y, series.x, edgecolor=colour, **look, **filled))
        else:
            marker = "o" if len(series.x) <= 12 else None
            drawn += axes.plot(series.x, series.y, color=colour, marker=marker, markersize=3.5, **look)
    _set_axes(axes, chart)
    if rows:
        figure.legend(drawn, names, loc="outside lower left", ncols=columns)
    return figure


def _set_axes(axes: Axes, chart: Chart) -> None:
    """Name a chart's axes and choose their scales, so that the numbers stand in full and every line can be read."""
    axes.set(title=chart.title, xlabel=chart.x_label, ylabel=chart.y_label)
    if chart.from_zero:
        axes.set_ylim(0, 1.05 * max(max(series.y) for series in chart.series) or 1)
    if all(float(x).is_integer() for series in chart.series for x in series.x):
        axes.xaxis.get_major_locator().set_params(integer=True)
    tops = [max(series.y) for series in chart.series if len(series.x) == len(series.y)]
    if tops and 0 < HIGHER * min(tops) < max(tops):
        axes.set_yscale("log")
        axes.set_ylim(bottom=max(axes.get_ylim()[0], min(tops) / 100))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter("{x:,g}")


def training_charts(run: ReportedRun) -> list[Chart]:
    """Curves of training over the optimizer steps, related ones in one chart."""
    # Without search, validation scores the arg-max under teacher forcing, far above what the model generates.
    is_forced = run.arguments.get("eval_beams") == 0
    names = [name for name in run.metrics if name.startswith("val_")]
    scores = [name for name in names if name not in ("val_loss", "val_perplexity")]  # these have charts of their own
    validation = {name: label_of(name.removeprefix("val_").removesuffix("_forced")) for name in scores}
    ratios = {f"trust_ratio_{kind}": kind for kind in ("min", "mean", "max")}
    charts = []
    for name, title, unit, from_zero, columns in (
        ("loss", "Loss", run.loss_unit, False, {"train_loss": "training", "val_loss": "validation"}),
        ("learning_rate", "Learning rate", "learning rate", True, {"lr": ""}),
        ("validation", "Validation, teacher-forced" if is_forced else "Validation", "score", False, validation),
        ("perplexity", "Validation perplexity", "perplexity", False, {"val_perplexity": ""}),
        ("gradient", "Gradient norm", "before clipping", True, {"grad_norm": ""}),
        ("trust_ratios", "Trust ratios of LAMB", "of all tensors", True, ratios),
        ("mfu", "Model FLOP utilisation", "share of the GPUs' peak", True, {"mfu": ""}),
        ("throughput", "Training throughput", "tokens per second", True, {"tokens_per_second": ""}),
    ):
        curves = [(label or title, run.metrics.get(column)) for column, label in columns.items()]
        lines = [Series(label, list(values), list(values.values())) for label, values in curves if values]
        if lines:
            charts.append(Chart(name, title, "step", unit, lines, from_zero))
    return charts


def latency_charts(run: ReportedRun, split: str, noun: str) -> list[Chart]:
    """The histogram of latencies, as a list of one; empty where nothing was timed."""
    speed = run.speeds.get(split, {})
    latency = speed.get("latency_histogram", {})
    if not latency.get("counts"):  # all articles may have been decoded to warm up
        return []
    line = Series(f"{noun.capitalize()}s", latency["edges_ms"], latency["counts"])
    return [Chart("latency", f"Latency of an {noun}", "ms", f"{noun}s", [line], from_zero=True)]


def length_charts(run: ReportedRun) -> list[Chart]:
    """Distributions of the lengths in words of sources, and of references and summaries together."""
    if not has_statistics(run):
        return []
    source = {"Source": [article["source_words"] for article in run.articles]}
    lengths, title = {}, "Length of summaries"
    if "reference_statistics" in run.articles[0]:
        lengths["Reference"] = [article["reference_statistics"]["words"] for article in run.articles]
        title = "Length of references and summaries"
    lengths["Summary"] = [article["statistics"]["words"] for article in run.articles]
    return [
        Chart("source_length", "Length of sources", "words", "articles", histograms(source), from_zero=True),
        Chart("summary_length", title, "words", "articles", histograms(lengths), from_zero=True),
    ]


def histograms(groups: Mapping[str, Sequence[int]]) -> list[Series]:
    """Histograms of whole numbers, whose bins all groups share."""
    values = np.concatenate([np.asarray(group) for group in groups.values()])
    width = max(1, math.ceil((values.max() - values.min() + 1) / BINS))
    edges = np.arange(values.min() // width * width, values.max() + width + 1, width)
    return [Series(name, edges.tolist(), np.histogram(group, edges)[0].tolist()) for name, group in groups.items()]
