"""Charts of runs."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from utils.app.charts import Chart, Matrix, Series, histograms
from utils.evaluation.report.articles import have_statistics
from utils.evaluation.report.runs import Run
from utils.evaluation.report.tables import MOST_DRAWN
from utils.metrics.files import label_of


def curve(run: Run, column: str, name: str) -> list[Series]:
    """One metric over the optimizer steps, as a list of one; empty where it has no values."""
    values = run.metrics.get(column)
    return [Series(name, list(values), list(values.values()))] if values else []


def training_charts(runs: Sequence[Run]) -> list[Chart]:
    """Curves of training: for one run, related ones in one chart; for several runs, a chart for each quantity."""
    # Without search, validation scores the arg-max under teacher forcing, far above what the model generates.
    is_forced = any(run.arguments.get("eval_beams") == 0 for run in runs)
    names = dict.fromkeys(name for run in runs for name in run.metrics if name.startswith("val_"))
    scores = [name for name in names if name not in ("val_loss", "val_perplexity")]  # these have charts of their own
    validation = {name: label_of(name.removeprefix("val_").removesuffix("_forced")) for name in scores}
    ratios = {f"trust_ratio_{kind}": kind for kind in ("min", "mean", "max")}
    charts = []
    for name, title, unit, from_zero, columns in (
        ("loss", "Loss", runs[0].loss_unit, False, {"train_loss": "training", "val_loss": "validation"}),
        ("learning_rate", "Learning rate", "learning rate", True, {"lr": ""}),
        ("validation", "Validation, teacher-forced" if is_forced else "Validation", "score", False, validation),
        ("perplexity", "Validation perplexity", "perplexity", False, {"val_perplexity": ""}),
        ("gradient", "Gradient norm", "before clipping", True, {"grad_norm": ""}),
        ("trust_ratios", "Trust ratios of LAMB", "of all tensors", True, ratios),
        ("mfu", "Model FLOP utilisation", "share of the GPUs' peak", True, {"mfu": ""}),
        ("throughput", "Training throughput", "tokens per second", True, {"tokens_per_second": ""}),
    ):
        if len(runs) == 1:
            lines = [line for column, label in columns.items() for line in curve(runs[0], column, label or title)]
            charts.append(Chart(name, title, "step", unit, lines, from_zero))
            continue
        for column, label in columns.items():
            part, heading = (f"{name}_{column}", f"{title}: {label}") if label else (name, title)
            lines = [line for run in runs for line in curve(run, column, run.name)]
            heading += f", {lines[0].name}" if len(lines) == 1 else ""  # a single line has no legend
            charts.append(Chart(part, heading, "step", unit, lines, from_zero))
    return [chart for chart in charts if chart.series]


def confusion_matrices(runs: Sequence[Run], split: str) -> list[Matrix]:
    """The confusion matrix of a run with at most MOST_DRAWN classes."""
    counts = runs[0].scores.get(split, {}).get("confusion", {})
    if len(runs) > 1 or not 0 < len(counts) <= MOST_DRAWN:
        return []
    return [Matrix("confusion", "Confusion matrix", counts)]


def latency_charts(runs: Sequence[Run], split: str, noun: str) -> list[Chart]:
    """Latencies of articles: a histogram for one run; for several, whose bins differ, the share done by each time."""
    speeds = {run: run.speeds.get(split, {}) for run in runs}
    latencies = {run: speed.get("latency_histogram", {}) for run, speed in speeds.items()}
    lines, marks = [], []
    for run, latency in latencies.items():
        if not latency.get("counts"):  # all articles may have been decoded to warm up
            continue
        if len(runs) == 1:
            marks = [(name, speeds[run]["latency_ms"][name]) for name in ("p50", "p90", "p99")]
            lines.append(Series(f"{noun.capitalize()}s", latency["edges_ms"], latency["counts"]))
        else:
            done = list(accumulate(latency["counts"], initial=0))
            lines.append(Series(run.name, latency["edges_ms"], [100 * count / done[-1] for count in done]))
    title, unit = (f"Latency of an {noun}", f"{noun}s") if len(runs) == 1 else ("Latency", f"% of {noun}s done")
    return [Chart("latency", title, "ms", unit, lines, from_zero=True, marks=marks)] if lines else []


def length_charts(runs: Sequence[Run]) -> list[Chart]:
    """Distributions of the lengths in words of sources, and of references and summaries together."""
    if not have_statistics(runs):
        return []
    articles = runs[0].articles
    source = {"Source": [article["source_words"] for article in articles]}
    lengths, title = {}, "Length of summaries"
    if "reference_statistics" in articles[0]:
        lengths["Reference"] = [article["reference_statistics"]["words"] for article in articles]
        title = "Length of references and summaries"
    for run in runs:
        lengths[run.name if len(runs) > 1 else "Summary"] = [article["statistics"]["words"] for article in run.articles]
    return [
        Chart("source_length", "Length of sources", "words", "articles", histograms(source), from_zero=True),
        Chart("summary_length", title, "words", "articles", histograms(lengths), from_zero=True),
    ]
