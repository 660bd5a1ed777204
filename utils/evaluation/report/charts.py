"""Charts of runs: as data, which the page's script draws, and as PNGs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from bart.files import replacing
from utils.evaluation.report.runs import SCORE_NAMES, Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_POINTS = 2000
BINS = 30


@dataclass
class Series:
    """A line of a chart, or a histogram where `x` has one value more than `y`: the edges."""

    name: str
    x: list[float]
    y: list[float]


@dataclass
class Chart:
    """One chart, drawn by the page's script and by matplotlib.

    Attributes:
        kind: `lines` or `histogram`.
        from_zero: whether the y axis starts at 0.
        marks: (label, x) of upright rules.
    """

    name: str
    title: str
    x_label: str
    y_label: str
    series: list[Series]
    kind: str = "lines"
    from_zero: bool = False
    marks: list[tuple[str, float]] = field(default_factory=list)
    description: str = ""

    def __post_init__(self) -> None:
        self.description = " ".join(describe_series(series, self) for series in self.series)


def describe_series(series: Series, chart: Chart) -> str:
    """A line or histogram in a sentence, for those who do not see it."""
    x, y = series.x, series.y
    unit = chart.x_label
    if chart.kind == "histogram":
        most = max(range(len(y)), key=y.__getitem__)
        span = f"from {x[0]:.4g} to {x[-1]:.4g} {unit}"
        return f"{series.name}: {span}, most often {x[most]:.4g} to {x[most + 1]:.4g}."
    return (
        f"{series.name}: {y[0]:.4g} at {unit} {x[0]:,.6g}, {y[-1]:.4g} at {unit} {x[-1]:,.6g}, "
        f"between {min(y):.4g} and {max(y):.4g}."
    )


def thinned(x: list[float], y: list[float]) -> tuple[list[float], list[float]]:
    """At most MOST_POINTS of a line's points, the least and the greatest of every stretch among them."""
    if len(x) <= MOST_POINTS:
        return x, y
    kept = {0, len(x) - 1}
    for stretch in np.array_split(np.arange(len(x)), MOST_POINTS // 2 - 1):
        values = np.asarray(y)[stretch]
        kept |= {int(stretch[values.argmin()]), int(stretch[values.argmax()])}
    order = sorted(kept)
    return [x[i] for i in order], [y[i] for i in order]


def curve(run: Run, column: str, name: str) -> list[Series]:
    """One column of metrics.csv over the optimizer step, as a list of one; none where it has no values."""
    # Lightning counts steps from 0; the log and the checkpoints' names say how many are done.
    pairs = zip(run.metrics.get("step", []), run.metrics.get(column, []), strict=False)
    points = [(step + 1, value) for step, value in pairs if value is not None]
    if not points:
        return []
    return [Series(name, *thinned(*map(list, zip(*points, strict=True))))]


def training_charts(runs: Sequence[Run]) -> list[Chart]:
    """Curves of training: for one run the related ones in one chart, for several a chart for each quantity."""
    # Without search it is the arg-max under teacher forcing that is scored, far above what the model generates.
    forced = any(run.arguments.get("eval_beams") == 0 for run in runs)
    groups: list[tuple[str, str, str, bool, dict[str, str]]] = [
        ("loss", "Loss", "nats per target token", False, {"train_loss": "Training", "val_loss": "Validation"}),
        ("learning_rate", "Learning rate", "learning rate", True, {"lr": "Learning rate"}),
        (
            *("validation_rouge", "Validation ROUGE" + ", teacher-forced" * forced, "ROUGE F, %", False),
            {f"val_{name}": label for name, label in SCORE_NAMES.items() if name.startswith("rouge")},
        ),
        ("throughput", "Training throughput", "tokens per second", True, {"tokens_per_second": "Tokens per second"}),
    ]
    charts = []
    for name, title, unit, from_zero, columns in groups:
        if len(runs) == 1:
            series = [line for column, label in columns.items() for line in curve(runs[0], column, label)]
            charts.append(Chart(name, title, "step", unit, series, from_zero=from_zero))
            continue
        for column, label in columns.items():
            several = len(columns) > 1
            series = [line for run in runs for line in curve(run, column, run.name)]
            part = f"{name}_{column}" if several else name
            full = f"{label} loss" if name == "loss" else f"Validation {label}" if several else title
            charts.append(Chart(part, full, "step", unit, series, from_zero=from_zero))
    return [chart for chart in charts if chart.series]


def latency_charts(runs: Sequence[Run], split: str) -> list[Chart]:
    """How long articles took: a histogram for one run; for several, whose bins differ, what share was done by when."""
    timed = [run for run in runs if run.speeds.get(split, {}).get("latency_histogram")]
    if len(runs) > 1:
        series = []
        for run in timed:
            histogram = run.speeds[split]["latency_histogram"]
            done = np.concatenate([[0], np.cumsum(histogram["counts"])])
            series.append(Series(run.name, histogram["edges_ms"], (100 * done / max(1, done[-1])).tolist()))
        chart = Chart("latency", "Latency", "ms", "% of articles done", series, from_zero=True)
        return [chart] if series else []
    charts = []
    for run in timed:
        speed = run.speeds[split]
        marks = [(p, speed["latency_ms"][p]) for p in ("p50", "p90", "p99") if speed.get("latency_ms", {}).get(p)]
        series = [Series("Articles", speed["latency_histogram"]["edges_ms"], speed["latency_histogram"]["counts"])]
        charts.append(Chart("latency", "Latency of an article", "ms", "articles", series, "histogram", True, marks))
    return charts


def length_charts(runs: Sequence[Run]) -> list[Chart]:
    """Distributions of the lengths in words of sources, and of references and summaries together."""
    if not runs:
        return []
    first = runs[0].articles
    texts = {"Reference": [article["reference_statistics"]["words"] for article in first]}
    for run in runs:
        texts[run.name if len(runs) > 1 else "Summary"] = [numbers["words"] for numbers in run.statistics]
    return [
        Chart("source_length", "Length of sources", "words", "articles",
              histograms({"Source": [article["source_words"] for article in first]}), "histogram", from_zero=True),
        Chart("summary_length", "Length of references and summaries", "words", "articles",
              histograms(texts), "histogram", from_zero=True),
    ]  # fmt: skip


def histograms(groups: Mapping[str, Sequence[int]]) -> list[Series]:
    """Histograms of whole numbers over bins that all groups share."""
    values = np.concatenate([np.asarray(group) for group in groups.values()])
    width = max(1, math.ceil((values.max() - values.min() + 1) / BINS))
    start = values.min() // width * width
    edges = np.arange(start, values.max() + width + 1, width)
    return [Series(name, edges.tolist(), np.histogram(group, edges)[0].tolist()) for name, group in groups.items()]


def draw(path: Path, *charts: Chart) -> None:
    """A chart as a PNG, or several of the same series side by side, with one legend."""
    # Loaded here alone: nothing but these pictures needs it.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7 if len(charts) == 1 else 5.5 * len(charts), 4), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    for place, chart in enumerate(charts, 1):
        axes = figure.add_subplot(1, len(charts), place)
        _panel(axes, chart)
    if len(charts[0].series) > 1:
        if len(charts) == 1:
            axes.legend(frameon=False)
        else:
            figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=6, frameon=False)
    with replacing(path) as temporary:
        figure.savefig(temporary, format="png")


def _panel(axes: Axes, chart: Chart) -> None:
    # Okabe and Ito's colours, which most colour-blind readers tell apart, and dashes for the others.
    colours = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00")
    dashes = ("solid", "dashed", "dashdot", "dotted")
    for i, series in enumerate(chart.series):
        look = {"color": colours[i % len(colours)], "linestyle": dashes[i % len(dashes)], "label": series.name}
        if chart.kind == "histogram":
            axes.stairs(series.y, series.x, fill=len(chart.series) == 1, linewidth=1.5, **look)
        else:
            axes.plot(series.x, series.y, marker="o" if len(series.x) <= 12 else None, markersize=4, **look)
    for i, (label, x) in enumerate(chart.marks):
        axes.axvline(x, color="#444444", linewidth=0.8)
        # Each a line lower, so that those of near marks stay apart.
        axes.annotate(label, (x, 1), xycoords=("data", "axes fraction"), xytext=(2, -10 * (i + 1)),
                      textcoords="offset points", fontsize=8)  # fmt: skip
    if chart.kind == "histogram" and all(float(x).is_integer() for x in chart.series[0].x):
        axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set(title=chart.title, xlabel=chart.x_label, ylabel=chart.y_label)
    if chart.from_zero:
        axes.set_ylim(bottom=0)
    axes.grid(axis="y", color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
