"""Charts of runs."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from utils.app.charts import Chart, Series, histograms
from utils.evaluation.report.articles import have_statistics
from utils.evaluation.report.runs import Run, label_of


def curve(run: Run, column: str, name: str) -> list[Series]:
    """One column of metrics.csv over the optimizer steps, as a list of one; none where it has no values."""
    # Lightning counts steps from 0; the log and the checkpoints' names say how many are done.
    pairs = zip(run.metrics.get("step", []), run.metrics.get(column, []), strict=False)
    points = [(step + 1, value) for step, value in pairs if step is not None and value is not None]
    return [Series(name, *map(list, zip(*points, strict=True)))] if points else []


def training_charts(runs: Sequence[Run]) -> list[Chart]:
    """Curves of training: for one run, related ones in one chart; for several runs, a chart for each quantity."""
    # Without search, validation scores the arg-max under teacher forcing, far above what the model generates.
    forced = ", teacher-forced" * any(run.arguments.get("eval_beams") == 0 for run in runs)
    apart = ("val_loss", "val_perplexity")  # which have charts of their own
    scores = {name: None for run in runs for name in run.metrics if name.startswith("val_") and name not in apart}
    ratios = {f"trust_ratio_{kind}": kind for kind in ("min", "mean", "max")}
    validation = {name: label_of(name.removeprefix("val_").removesuffix("_forced")) for name in scores}
    charts = []
    for name, title, unit, from_zero, columns in (
        ("loss", "Loss", "nats per target token", False, {"train_loss": "training", "val_loss": "validation"}),
        ("learning_rate", "Learning rate", "learning rate", True, {"lr": ""}),
        ("validation", "Validation" + forced, "score", False, validation),
        ("perplexity", "Validation perplexity", "perplexity", False, {"val_perplexity": ""}),
        ("gradient", "Gradient norm", "before clipping", True, {"grad_norm": ""}),
        ("trust_ratios", "Trust ratios of LAMB", "of all tensors", True, ratios),
        ("mfu", "Model FLOP utilisation", "share of the GPUs' peak", True, {"mfu": ""}),
        ("throughput", "Training throughput", "tokens per second", True, {"tokens_per_second": ""}),
    ):
        if len(runs) == 1:
            lines = [line for column, label in columns.items() for line in curve(runs[0], column, label or title)]
            charts.append(Chart(name, title, "step", unit, lines, from_zero=from_zero))
            continue
        for column, label in columns.items():
            part, heading = (f"{name}_{column}", f"{title}: {label}") if label else (name, title)
            lines = [line for run in runs for line in curve(run, column, run.name)]
            heading += f", {lines[0].name}" if len(lines) == 1 else ""  # a single line has no legend
            charts.append(Chart(part, heading, "step", unit, lines, from_zero=from_zero))
    return [chart for chart in charts if chart.series]


def latency_charts(runs: Sequence[Run], split: str) -> list[Chart]:
    """How long articles took: a histogram for one run; for several, whose bins differ, the share done by each time."""
    timed = [run for run in runs if run.speeds.get(split, {}).get("latency_histogram", {}).get("counts")]
    if not timed:
        return []
    histograms_of = {run: run.speeds[split]["latency_histogram"] for run in timed}
    if len(runs) > 1:
        lines = []
        for run, histogram in histograms_of.items():
            done = list(accumulate(histogram["counts"], initial=0))
            lines.append(Series(run.name, histogram["edges_ms"], [100 * count / done[-1] for count in done]))
        return [Chart("latency", "Latency", "ms", "% of articles done", lines, from_zero=True)]
    [(run, histogram)] = histograms_of.items()
    marks = [(name, run.speeds[split]["latency_ms"][name]) for name in ("p50", "p90", "p99")]
    bars = [Series("Articles", histogram["edges_ms"], histogram["counts"])]
    return [Chart("latency", "Latency of an article", "ms", "articles", bars, True, marks)]


def length_charts(runs: Sequence[Run]) -> list[Chart]:
    """Distributions of the lengths in words of sources, and of references and summaries together."""
    if not have_statistics(runs):
        return []
    first = runs[0].articles
    lengths = {}
    if "reference_statistics" in first[0]:
        lengths["Reference"] = [article["reference_statistics"]["words"] for article in first]
    for run in runs:
        lengths[run.name if len(runs) > 1 else "Summary"] = [article["statistics"]["words"] for article in run.articles]
    sources = histograms({"Source": [article["source_words"] for article in first]})
    title = " and ".join([*["references"] * ("Reference" in lengths), "summaries"])
    return [
        Chart("source_length", "Length of sources", "words", "articles", sources, from_zero=True),
        Chart("summary_length", f"Length of {title}", "words", "articles", histograms(lengths), from_zero=True),
    ]
