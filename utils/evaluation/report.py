"""A run as one page to open in a browser: `python -m utils.evaluation.report RUN_DIR [RUN_DIR ...]`.

Facts are gathered here; `report_page/` holds the page's HTML, its style and the script that draws the charts and shows
the articles. All of it goes into one file that needs no network. Several runs are compared, the first being what the
others are measured against.
"""

from __future__ import annotations

import base64
import csv
import gzip
import html
import json
import logging
import math
import os
import string
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from bart.errors import InputError
from bart.modeling.checkpoint import replacing
from utils.cli import ArgumentParser, run_main
from utils.data.line_files import SPLITS
from utils.evaluation.significance import compare
from utils.evaluation.text_statistics import NOVEL_ORDERS, length_ratio, mean, text_statistics, words

logger = logging.getLogger(__name__)

PAGE = Path(__file__).with_name("report_page")
REPORT, COMPARISON = "report.html", "comparison.html"
SCORE_NAMES = {
    "rouge1": "ROUGE-1",
    "rouge2": "ROUGE-2",
    "rougeL": "ROUGE-L",
    "rougeLsum": "ROUGE-Lsum",
    "bleu": "BLEU",
    "loss": "Loss",
}
STATISTICS = {
    "words": ("Length", "words", 1),
    "length_ratio": ("Length ÷ reference", "ratio", 2),
    "compression": ("Compression: source ÷ summary", "ratio", 1),
    **{f"novel{n}": (f"Novel {n}-grams", "% not in the source", 1) for n in NOVEL_ORDERS},
    "coverage": ("Coverage", "% of words copied", 1),
    "density": ("Density", "words in the copied run of a word", 1),
    "repeated3": ("Repeated 3-grams", "% said before", 1),
}
# Statistics that relate a summary to its source; a translation has another language's words.
OF_THE_SOURCE = {"compression", "coverage", "density", *(f"novel{n}" for n in NOVEL_ORDERS)}
# The article table's statistics, with what stands over the column.
NOTHING, MINUS = "\N{EN DASH}", "\N{MINUS SIGN}"
COLUMNS = {
    "words": ("Words", 0),
    "length_ratio": ("÷ ref.", 2),
    "novel2": ("New bigrams %", 0),
    "density": ("Density", 1),
    "repeated3": ("Repeats %", 0),
}
ARTICLES_PER_BLOCK = 256
MOST_POINTS = 2000
BINS = 30


@dataclass
class Run:
    """What a run's directory holds; a part that is not there is empty."""

    folder: Path
    name: str
    metrics: dict[str, list[float | None]]
    arguments: dict[str, Any]
    environment: dict[str, Any]
    summary: dict[str, Any]
    scores: dict[str, dict[str, Any]]
    speeds: dict[str, dict[str, Any]]
    articles: list[dict[str, Any]] = field(default_factory=list)
    statistics: list[dict[str, float | None]] = field(default_factory=list)


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


# Reading


def read_json(path: Path) -> dict[str, Any]:
    """A file's JSON object; empty where there is no such file.

    Raises:
        InputError: the file cannot be read, or holds something else.
    """
    return _mapping(path, json.loads)


def _mapping(path: Path, parse: Callable[[str], Any]) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        content = parse(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None
    except (ValueError, yaml.YAMLError) as error:
        raise InputError(f"{path}: damaged ({' '.join(str(error).split())})") from None
    if not isinstance(content, dict):
        raise InputError(f"{path}: holds a {type(content).__name__}; a mapping of names to values is expected")
    return content


def read_metrics(path: Path) -> dict[str, list[float | None]]:
    """Columns of metrics.csv by name, None where a cell is empty or not finite; empty where there is no such file.

    Raises:
        InputError: the file cannot be read, or a row is not of numbers; it names the line.
    """
    if not path.exists():
        return {}
    try:
        with path.open(encoding="utf-8", newline="") as file:
            header, *rows = list(csv.reader(file)) or [[]]
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None
    except (ValueError, csv.Error) as error:
        raise InputError(f"{path}: damaged ({error})") from None
    if "step" not in header:
        raise InputError(f"{path}: has no column 'step'; its first line is {','.join(header)!r}")
    columns: dict[str, list[float | None]] = {name: [] for name in header}
    for line, row in enumerate(rows, 2):
        if len(row) != len(header):
            raise InputError(f"{path}, line {line}: {len(row)} cells; the header has {len(header)}")
        for name, cell in zip(header, row, strict=True):
            try:
                value = float(cell) if cell else None
            except ValueError:
                raise InputError(f"{path}, line {line}: {name} is {cell!r}; a number is expected") from None
            columns[name].append(value if value is None or math.isfinite(value) else None)
        if columns["step"][-1] is None:
            raise InputError(f"{path}, line {line}: step is empty")
    return columns


def read_articles(path: Path) -> list[dict[str, Any]]:
    """Articles of `<split>_articles.jsonl`; none where there is no such file.

    Raises:
        InputError: the file cannot be read, or a line is not an article; it names the line.
    """
    if not path.exists():
        return []
    try:
        lines = path.read_bytes().removesuffix(b"\n").split(b"\n")
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None
    articles = []
    for number, line in enumerate(lines, 1):
        try:
            article = json.loads(line)
        except ValueError as error:
            raise InputError(f"{path}, line {number}: damaged ({error})") from None
        if not isinstance(article, dict):
            raise InputError(f"{path}, line {number}: a JSON object is expected")
        for name in ("source", "reference", "summary"):
            if not isinstance(article.get(name), str):
                raise InputError(f"{path}, line {number}: {name} is {article.get(name)!r}; a string is expected")
        for name in SCORE_NAMES:
            if name in articles[0] if articles else name in article:
                number_of(article, name, f"{path}, line {number}", needed=True)
        articles.append(article)
    return articles


def number_of(record: Mapping[str, Any], name: str, place: object, needed: bool = False) -> float | None:
    """A record's number; None where it has none or it is not finite.

    Args:
        place: the file, for the message.
        needed: whether it must be there.

    Raises:
        InputError: it is something else, or needed and not there.
    """
    value = record.get(name)
    if (value is None and not needed) or (isinstance(value, float) and not math.isfinite(value)):
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InputError(f"{place}: {name} is {value!r}; a number is expected")
    return value


def check_scores(path: Path, scores: Mapping[str, Any]) -> None:
    """Raise InputError for scores or intervals of another shape than expected."""
    for name in (*SCORE_NAMES, "examples"):
        number_of(scores, name, path)
    intervals = scores.get("intervals", {})
    if not isinstance(intervals, dict):
        raise InputError(f"{path}: intervals is {intervals!r}; a mapping of scores to [low, high] is expected")
    for name, interval in intervals.items():
        if not isinstance(interval, list) or len(interval) != 2:
            raise InputError(f"{path}: the interval of {name} is {interval!r}; [low, high] is expected")
        for end, value in zip(("low", "high"), interval, strict=True):
            number_of({end: value}, end, f"{path}, interval of {name}", needed=True)


def check_speed(path: Path, speed: Mapping[str, Any]) -> None:
    """Raise InputError for latencies of another shape than expected."""
    for name in ("latency_ms", "latency_histogram"):
        if not isinstance(speed.get(name, {}), dict):
            raise InputError(f"{path}: {name} is {speed[name]!r}; a mapping is expected")
    for name in speed.get("latency_ms", {}):
        number_of(speed["latency_ms"], name, f"{path}, latency_ms")
    histogram = speed.get("latency_histogram")
    if histogram:
        edges, counts = histogram.get("edges_ms"), histogram.get("counts")
        if not isinstance(edges, list) or not isinstance(counts, list) or len(edges) != len(counts) + 1:
            raise InputError(f"{path}: latency_histogram needs edges_ms, one more than its counts")
        for value in (*edges, *counts):
            number_of({"value": value}, "value", f"{path}, latency_histogram", needed=True)


def read_run(folder: str | os.PathLike[str]) -> Run:
    """All of a run but its articles.

    Raises:
        InputError: the directory is missing, holds nothing of a run, or a file of it is damaged.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError(f"run directory {folder}: no such directory")
    run = Run(
        folder=folder,
        name=folder.resolve().name,
        metrics=read_metrics(folder / "metrics.csv"),
        arguments=_mapping(folder / "arguments.yaml", yaml.safe_load),
        environment=read_json(folder / "environment.json"),
        summary=read_json(folder / "train_summary.json"),
        scores={},
        speeds={},
    )
    for split in SPLITS:
        for kind, check, parts in (("scores", check_scores, run.scores), ("speed", check_speed, run.speeds)):
            path = folder / f"{split}_{kind}.json"
            content = read_json(path)
            check(path, content)
            if content:
                parts[split] = content
    if not (run.metrics or run.summary or scored_splits([run])):
        raise InputError(
            f"run directory {folder}: holds no metrics.csv, train_summary.json, <split>_scores.json, "
            "<split>_speed.json or <split>_articles.jsonl; what finetune.py or run_eval.py wrote is expected"
        )
    return run


def scored_splits(runs: Sequence[Run]) -> list[str]:
    """Splits of which some run holds anything, the test split first."""
    return [
        split
        for split in ("test", "val", "train")
        if any(
            split in run.scores or split in run.speeds or (run.folder / f"{split}_articles.jsonl").exists()
            for run in runs
        )
    ]


def add_articles(run: Run, split: str) -> None:
    """Read a run's articles of one split, and count their words.

    Raises:
        InputError: the file is damaged, or its articles are not as many as were scored.
    """
    path = run.folder / f"{split}_articles.jsonl"
    run.articles = read_articles(path)
    examples = run.scores.get(split, {}).get("examples")
    if run.articles and examples is not None and examples != len(run.articles):
        raise InputError(f"{path}: has {len(run.articles)} articles; {split}_scores.json is of {examples!r}")
    translated = is_translation(run, split)
    for article in run.articles:
        source, reference, summary = (words(article[name]) for name in ("source", "reference", "summary"))
        article["source_words"] = len(source)
        article["reference_statistics"] = {**text_statistics(source, reference), "length_ratio": 1.0}
        numbers = {**text_statistics(source, summary), "length_ratio": length_ratio(summary, reference)}
        for name in OF_THE_SOURCE if translated else ():
            numbers[name] = None
        run.statistics.append(numbers)


def is_translation(run: Run, split: str) -> bool:
    return run.scores.get(split, {}).get("task") == "translation"


# Charts


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
    groups: list[tuple[str, str, str, bool, dict[str, str]]] = [
        ("loss", "Loss", "nats per target token", False, {"train_loss": "Training", "val_loss": "Validation"}),
        ("learning_rate", "Learning rate", "learning rate", True, {"lr": "Learning rate"}),
        (
            *("validation_rouge", "Validation ROUGE", "ROUGE F, %", False),
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


def draw(chart: Chart, path: Path) -> None:
    """A chart as a PNG."""
    # Loaded here alone: nothing but these pictures needs it.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    # Okabe and Ito's colours, which most colour-blind readers tell apart, and dashes for the others.
    colours = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00")
    dashes = ("solid", "dashed", "dashdot", "dotted")
    for i, series in enumerate(chart.series):
        look = {"color": colours[i % len(colours)], "linestyle": dashes[i % len(dashes)], "label": series.name}
        if chart.kind == "histogram":
            axes.stairs(series.y, series.x, fill=len(chart.series) == 1, linewidth=1.5, **look)
        else:
            axes.plot(series.x, series.y, marker="o" if len(series.x) <= 12 else None, markersize=4, **look)
    for label, x in chart.marks:
        axes.axvline(x, color="#444444", linewidth=0.8)
        axes.annotate(label, (x, 1), xycoords=("data", "axes fraction"), xytext=(2, -10), textcoords="offset points",
                      fontsize=8)  # fmt: skip
    axes.set(title=chart.title, xlabel=chart.x_label, ylabel=chart.y_label)
    if chart.from_zero:
        axes.set_ylim(bottom=0)
    axes.grid(axis="y", color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    if len(chart.series) > 1:
        axes.legend(frameon=False)
    with replacing(path) as temporary:
        figure.savefig(temporary, format="png")


# Pieces of the page


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


# The page


def summary_facts(run: Run, split: str | None) -> list[tuple[str, str]]:
    """Names and values that tell a run in short; without those that are not known."""
    trained, environment = run.summary, run.environment
    scores, speed = run.scores.get(split or "", {}), run.speeds.get(split or "", {})

    summary_file = run.folder / "train_summary.json"

    def number(name: str, digits: int, unit: str = "") -> str | None:
        value = number_of(trained, name, summary_file)
        return None if value is None else f"{value:,.{digits}f} {unit}".strip()

    wall = number_of(trained, "wall_seconds", summary_file)
    options = scores.get("generation")
    beams = options.get("num_beams") if isinstance(options, dict) else None
    devices = environment.get("devices")
    rows = [
        ("Started", environment.get("date") and str(environment["date"])[:16].replace("T", " ")),
        ("Trained on", ", ".join(map(str, devices)) if isinstance(devices, list) else None),
        ("Steps", number("steps", 0)),
        ("Epochs", number("epochs", 2)),
        ("Training, wall clock", None if wall is None else str(timedelta(seconds=round(wall)))),
        ("Training speed", number("tokens_per_second", 0, "tokens/s")),
        ("Best checkpoint", trained.get("best_checkpoint") and str(trained["best_checkpoint"])),
        (f"Articles scored, {split}", f"{scores['examples']:,}" if scores.get("examples") is not None else None),
        ("Beams", None if beams is None else str(beams)),
        ("Precision", scores.get("precision") and str(scores["precision"])),
        ("Scored on", speed.get("device") and str(speed["device"])),
        ("Batching", speed.get("batching") and f"{speed['batching']}, {speed.get('batch_size')} at once"),
        ("Note", scores.get("info") and str(scores["info"])),
    ]
    return [(name, text) for name, text in rows if text]


def runs_table(runs: Sequence[Run], split: str | None) -> str:
    """Where the runs lie, and what each is in short, side by side."""
    told = [{"Directory": str(run.folder.resolve()), **dict(summary_facts(run, split))} for run in runs]
    names = {name: None for one in told for name in one}
    rows = [[name, *(one.get(name, NOTHING) for one in told)] for name in names]
    return table("", ["", *(run.name for run in runs)], rows, left=1 + len(runs))


SPEEDS = {
    "articles_per_second": ("Articles per second", 2),
    "generated_tokens_per_second": ("Generated tokens per second", 0),
    "generation_seconds": ("Seconds in all", 2),
    "peak_memory_gb": ("Peak memory, GB", 2),
}


def speed_table(runs: Sequence[Run], split: str) -> str:
    """Throughput and the percentiles of latency; nothing where no run was timed."""
    speeds = [(run, run.speeds.get(split, {})) for run in runs]
    rows = [
        [label, *(shown(number_of(speed, name, run.folder / f"{split}_speed.json"), digits) for run, speed in speeds)]
        for name, (label, digits) in SPEEDS.items()
    ]
    percentiles = {name: None for _, speed in speeds for name in speed.get("latency_ms", {})}
    rows += [
        [f"Latency, ms, {name}", *(shown(speed.get("latency_ms", {}).get(name), 0) for _, speed in speeds)]
        for name in percentiles
    ]
    rows = [row for row in rows if set(row[1:]) != {NOTHING}]
    names = [run.name for run in runs] if len(runs) > 1 else ["Value"]
    return table("Latency: from an article's entry into the batch to its end.", ["Speed", *names], rows) if rows else ""


def score_section(runs: Sequence[Run], split: str | None, paired: Sequence[Run]) -> str:
    """Scores with their intervals, and for several runs their differences from the first."""
    splits = scored_splits(runs)
    tables = []
    for scored in splits if len(runs) == 1 else [split] if split else []:
        rows = []
        for name, label in SCORE_NAMES.items():
            for run in runs:
                scores = run.scores.get(scored, {})
                value = scores.get(name)
                if value is None:
                    continue
                low, high = scores.get("intervals", {}).get(name, (None, None))
                row = [label, shown(value, 4 if name == "loss" else 2), interval_shown(low, high)]
                if len(runs) > 1:
                    row.insert(1, run.name)
                    row += difference(runs[0], run, name) if run in paired[1:] else [""] * 3
                rows.append(row)
        unit = "ROUGE F and BLEU in percent; loss in nats per target token."
        examples = [
            run.scores[scored]["examples"] for run in runs if run.scores.get(scored, {}).get("examples") is not None
        ]
        count = f" of {examples[0]:,} articles" if examples and len(set(examples)) == 1 else ""
        caption = f"The {scored} split{count}. {unit} Intervals: 95% bootstrap of the mean."
        header = ["Score", "Mean", "95% interval"]
        if len(runs) > 1:
            header = ["Score", "Run", "Mean", "95% interval", f"Difference from {runs[0].name}", "95% interval", "p"]
            caption += " Differences and their p values are of a paired test over the articles."
        if rows:
            tables.append(table(caption, header, rows, left=len(header) - 2 if len(runs) == 1 else 2))
        else:
            tables.append(absent(f"No scores: no {scored}_scores.json is there."))
        if len(runs) == 1 and len({run.scores.get(scored, {}).get("bleu_signature") for run in runs} - {None}):
            tables.append(paragraph(f"BLEU: {runs[0].scores[scored]['bleu_signature']}", class_="note"))
        mode = runs[0].scores.get(scored, {}).get("rouge_mode")
        if mode:
            tables.append(paragraph(f"ROUGE as {mode} computes it.", class_="note"))
    if not tables:
        tables.append(absent("No scores: this run has not been scored; run_eval.py writes test_scores.json."))
    return section("scores", "Scores", *tables)


def difference(first: Run, other: Run, score: str) -> list[str]:
    """A run's score less the first run's, its interval and p value, over articles that are the same."""
    if score not in first.articles[0] or score not in other.articles[0]:
        return [""] * 3
    result = compare([a[score] for a in other.articles], [a[score] for a in first.articles])
    p = "< 0.001" if result.p_value < 0.001 else f"{result.p_value:.3f}"
    return [f"{result.difference:+.2f}".replace("-", MINUS), interval_shown(result.low, result.high, "+"), p]


def same_articles(runs: Sequence[Run]) -> list[Run]:
    """The first run that has articles, and those whose articles have the same sources and references."""

    def texts(run: Run) -> list[tuple[str, str]]:
        return [(article["source"], article["reference"]) for article in run.articles]

    with_articles = [run for run in runs if run.articles]
    return [run for run in with_articles if texts(run) == texts(with_articles[0])]


def statistics_table(runs: Sequence[Run]) -> str:
    """Copying, repetition and lengths of references and summaries, as means over the articles."""
    rows = []
    for name, (label, unit, digits) in STATISTICS.items():
        means = [mean(numbers[name] for numbers in run.statistics) for run in runs]
        if all(value is None for value in means):
            continue
        reference = mean(article["reference_statistics"][name] for article in runs[0].articles)
        rows.append([f"{label} ({unit})", shown(reference, digits), *(shown(value, digits) for value in means)])
    names = [run.name for run in runs] if len(runs) > 1 else ["Summaries"]
    caption = (
        f"Means over {len(runs[0].articles):,} articles. Words are lower-cased runs of letters and digits; novel "
        "n-grams count once each. Coverage and density are those of Grusky et al. (2018)."
    )
    return table(caption, ["Statistic", "References", *names], rows)


def settings_section(runs: Sequence[Run], split: str | None) -> str:
    """The arguments, decoding options and environment of each run, folded away."""
    parts = []
    for run in runs:
        scores = run.scores.get(split or "", {})
        shown_above = {*SCORE_NAMES, "intervals", "generation"}
        listed = {name: value for name, value in scores.items() if name not in shown_above}
        for title, source, content in (
            ("Training arguments", "arguments.yaml", run.arguments),
            ("Environment", "environment.json", run.environment),
            ("Decoding options", f"{split}_scores.json", scores.get("generation", {})),
            ("Scoring", f"{split}_scores.json", listed),
        ):
            if not isinstance(content, dict) or not content:
                continue
            rows = [[name, text] for name, text in flattened(content)]
            head = f"{run.name}: {title.lower()}" if len(runs) > 1 else title
            inner = element("summary", html.escape(head)) + table(f"From {source}.", ["Name", "Value"], rows, left=2)
            parts.append(element("details", inner))
    return section("settings", "Settings", *(parts or [absent("No arguments.yaml, environment.json or scores.")]))


def flattened(content: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Names and values of nested mappings; what is None is left out."""
    for name, value in content.items():
        if isinstance(value, dict):
            yield from flattened(value, f"{prefix}{name}.")
        elif value is not None:
            yield f"{prefix}{name}", ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def compressed(content: Any) -> str:
    """JSON, gzipped, as base64: letters that no HTML parser takes for markup, whatever an article holds."""
    # A lone surrogate, which UTF-8 has no bytes for, becomes a question mark.
    text = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode("utf-8", "replace")
    return base64.b64encode(gzip.compress(text, 6, mtime=0)).decode()


def rounded(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)


def article_data(runs: Sequence[Run]) -> Iterator[tuple[str, Any]]:
    """Names and contents of the page's data on articles.

    First the table, with all but the sources; then the sources in blocks, which the page reads while it is shown.
    """
    first = runs[0].articles
    scores = [name for name in SCORE_NAMES if name in first[0]]
    metrics = [
        {
            "key": name,
            "label": SCORE_NAMES[name],
            "short": SCORE_NAMES[name].replace("ROUGE", "R"),
            "title": SCORE_NAMES[name],
            "digits": 1,
            "values": [[rounded(number_of(a, name, run.folder), 3) for a in run.articles] for run in runs],
        }
        for name in scores
        if all(name in run.articles[0] for run in runs)
    ]
    metrics += [
        {
            "key": name,
            "label": label,
            "short": label,
            "title": f"{STATISTICS[name][0]} ({STATISTICS[name][1]})",
            "digits": digits,
            "values": [[rounded(numbers[name], 3) for numbers in run.statistics] for run in runs],
        }
        for name, (label, digits) in COLUMNS.items()
        if any(numbers[name] is not None for numbers in runs[0].statistics)
    ]
    yield (
        "article-table",
        {
            "runs": [run.name for run in runs],
            "references": [article["reference"] for article in first],
            "summaries": [[article["summary"] for article in run.articles] for run in runs],
            "metrics": metrics,
            "per_block": ARTICLES_PER_BLOCK,
        },
    )
    for block, start in enumerate(range(0, len(first), ARTICLES_PER_BLOCK)):
        part = slice(start, start + ARTICLES_PER_BLOCK)
        yield (
            f"article-block-{block}",
            {
                "sources": [article["source"] for article in first[part]],
                "alternatives": [[article.get("alternatives", []) for article in run.articles[part]] for run in runs],
            },
        )


def articles_section(runs: Sequence[Run], split: str | None) -> str:
    """The place of the article table; the page's script fills it."""
    if not runs:
        missing = f"{split}_articles.jsonl" if split else "test_articles.jsonl"
        return section("articles", "Articles", absent(f"No articles: {missing} is not there."))
    return section("articles", "Articles", (PAGE / "articles.html").read_text(encoding="utf-8"))


def page_of(runs: Sequence[Run], split: str | None) -> tuple[str, list[Chart]]:
    """The page as HTML, and its charts."""
    single = len(runs) == 1
    compared = same_articles(runs)
    curves, latency, lengths = training_charts(runs), latency_charts(runs, split or ""), length_charts(compared)
    timed = speed_table(runs, split or "")
    notes = []
    for run in runs if not single else ():
        if run not in compared and split:
            why = "has no articles" if not run.articles else f"has other articles than {compared[0].name}"
            notes.append(absent(f"{run.name} {why} of the {split} split, and is left out where articles are compared."))
    if single:
        head = paragraph(str(runs[0].folder.resolve()), class_="path") + facts(summary_facts(runs[0], split))
    else:
        head = runs_table(runs, split)
    sections = [
        section("runs", "The run" if single else "The runs", head, *notes),
        score_section(runs, split, compared if compared and compared[0] is runs[0] else []),
        section(
            "training",
            "Training",
            figures(curves) or absent("No learning curves: metrics.csv is not there, or has no values yet."),
        ),
        section(
            "speed",
            "Speed of scoring",
            element("div", figures(latency) + element("div", timed), class_="beside")
            if latency or timed
            else absent(f"No speeds: {split or 'test'}_speed.json is not there."),
        ),
        section(
            "texts",
            "Lengths, copying and repetition",
            *(
                [element("div", element("div", statistics_table(compared)) + figures(lengths), class_="beside")]
                if compared
                else [absent(f"No text statistics: {split or 'test'}_articles.jsonl is not there.")]
            ),
        ),
        articles_section(compared, split),
        settings_section(runs, split),
    ]
    title = runs[0].name if single else " · ".join(run.name for run in runs)
    data = {"charts": [asdict(chart) for chart in (*curves, *latency, *lengths)], "split": split}
    # "<" could end the script element early.
    embedded = [
        element("script", json.dumps(data, allow_nan=False).replace("<", "\\u003c"), type="application/json", id="data")
    ]
    embedded += [
        element("script", compressed(content), type="text/plain", id=name)
        for name, content in (article_data(compared) if compared else ())
    ]
    page = string.Template((PAGE / "page.html").read_text(encoding="utf-8")).substitute(
        title=html.escape(title),
        kind="Report of a run" if single else f"Comparison of {len(runs)} runs",
        style=(PAGE / "style.css").read_text(encoding="utf-8"),
        script=(PAGE / "page.js").read_text(encoding="utf-8"),
        sections="\n".join(sections),
        data="\n".join(embedded),
    )
    return page, [*curves, *latency, *lengths]


def build_report(
    folders: Sequence[str | os.PathLike[str]], output: str | os.PathLike[str] | None = None, split: str | None = None
) -> Path:
    """Write the page of a run, or one that compares several, and its charts as PNGs into a folder beside it.

    Args:
        folders: run directories.
        output: the page's file; by default `report.html` in the run's directory, or `comparison.html` beside the first
            run's. The charts go to a folder of its name with `_figures` at the end.
        split: whose articles are shown; by default the first of test, val and train that was scored.

    Returns:
        The page's path.

    Raises:
        InputError: a directory is not a run's, a file of it is damaged, or the output cannot be written.
    """
    runs = [read_run(folder) for folder in folders]
    if len({run.folder.resolve() for run in runs}) < len(runs):
        raise InputError(f"run directories {', '.join(map(str, folders))}: one is given twice")
    if len({run.name for run in runs}) < len(runs):
        for run in runs:
            run.name = str(run.folder)
    splits = scored_splits(runs)
    if split is not None and split not in splits:
        raise InputError(f"--split is {split}; scored in {', '.join(map(str, folders))}: {', '.join(splits) or 'none'}")
    split = split or (splits[0] if splits else None)
    for run in runs if split else ():
        add_articles(run, split)
    if output is None:
        output = runs[0].folder / REPORT if len(runs) == 1 else runs[0].folder.resolve().parent / COMPARISON
    output = Path(output)
    pictures = output.with_name(f"{output.stem}_figures")
    page, charts = page_of(runs, split)
    try:
        pictures.mkdir(parents=True, exist_ok=True)
        for chart in charts:
            draw(chart, pictures / f"{chart.name}.png")
        with replacing(output) as temporary:
            temporary.write_bytes(page.encode("utf-8", "replace"))
    except OSError as error:
        raise InputError(f"{output}: cannot be written ({error.strerror})") from None
    return output


def write_report(folder: str | os.PathLike[str], split: str | None = None) -> None:
    """Write the report of a run that has just ended; what keeps it from being written is a warning, as the run is done.

    Args:
        split: as for `build_report`.
    """
    try:
        path = build_report([folder], split=split)
    except Exception as error:
        logger.warning("%s was not written: %s: %s", Path(folder) / REPORT, type(error).__name__, error)
    else:
        logger.info("report: %s", path)


def main(argv: Sequence[str] | None = None) -> None:
    parser = ArgumentParser(
        prog="python -m utils.evaluation.report",
        description="Write a run's report as one HTML page, its charts as PNGs beside it; several runs are compared.",
    )
    parser.add_argument("run_dirs", metavar="RUN_DIR", nargs="+", help="what finetune.py or run_eval.py wrote")
    parser.add_argument(
        "--output",
        metavar="FILE",
        help=f"the page (default: RUN_DIR/{REPORT}; of several runs {COMPARISON} beside the first run's directory)",
    )
    parser.add_argument(
        "--split", choices=SPLITS, help="whose articles are shown (default: the first scored of test, val, train)"
    )
    args = parser.parse_args(argv)
    print(build_report(args.run_dirs, args.output, args.split))


if __name__ == "__main__":
    run_main(main)
