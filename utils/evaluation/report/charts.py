"""Charts of a run."""

from __future__ import annotations

from utils.app.charts import Chart, Series, histograms
from utils.evaluation.report.articles import has_statistics
from utils.evaluation.report.runs import ReportedRun
from utils.metrics.files import label_of


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
