"""Facts and tables of runs, as text that the page's template lays out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

import yaml

from utils.evaluation.report.articles import STATISTICS
from utils.evaluation.report.runs import LABELS, Run, label_of, scores_of
from utils.metrics.significance import compare, p_shown
from utils.metrics.text_statistics import mean

NOTHING, MINUS = "\N{EN DASH}", "\N{MINUS SIGN}"
SPEEDS = {
    "articles_per_second": ("Articles per second", 2),
    "generated_tokens_per_second": ("Generated tokens per second", 0),
    "generation_seconds": ("Seconds in all", 2),
    "peak_memory_gb": ("Peak memory, GB", 2),
}


@dataclass
class Table:
    """A table whose first `words` columns hold words and whose others hold numbers; `notes` are lines below it.

    Columns in which nothing stands are left out.
    """

    caption: str
    header: list[str]
    rows: list[list[str]]
    words: int = 1
    notes: Sequence[str] = ()

    def __post_init__(self) -> None:
        columns = list(zip(self.header, *self.rows, strict=True))
        kept = [column for i, column in enumerate(columns) if i < self.words or {*column[1:]} - {"", NOTHING}]
        self.header, *self.rows = map(list, zip(*kept, strict=True))


def shown(value: float | None, digits: int = 2, sign: str = "") -> str:
    return NOTHING if value is None else f"{value:{sign},.{digits}f}".replace("-", MINUS)


def interval_shown(interval: Sequence[float] | None, digits: int, sign: str = "") -> str:
    return NOTHING if not interval else " to ".join(shown(end, digits, sign) for end in interval)


def facts_of(run: Run, split: str) -> dict[str, str]:
    """What there is to know of a run in short, as far as it is known."""
    trained, scores, speed = run.summary, run.scores.get(split, {}), run.speeds.get(split, {})

    wall = trained.get("wall_seconds")

    def number(name: str, digits: int, unit: str = "") -> str | None:
        return None if (value := trained.get(name)) is None else f"{value:,.{digits}f}{unit}"

    facts = {
        "Started": str(run.environment.get("date") or "")[:16].replace("T", " "),
        "Trained on": ", ".join(run.environment.get("devices", [])),
        "Steps": number("steps", 0),
        "Epochs": number("epochs", 2),
        "Training, wall clock": None if wall is None else timedelta(seconds=round(wall)),
        "Training speed": number("tokens_per_second", 0, " tokens/s"),
        "Best checkpoint": trained.get("best_checkpoint"),
        f"Examples scored, {split}": f"{scores['examples']:,}" if scores.get("examples") is not None else None,
        "Beams": scores.get("generation", {}).get("num_beams"),
        "Precision": scores.get("precision"),
        "Scored on": speed.get("device"),
        "Batching": speed.get("batching") and f"{speed['batching']}, {speed.get('batch_size')} at once",
        "Note": scores.get("info"),
    }
    return {name: str(fact) for name, fact in facts.items() if fact not in (None, "")}


def runs_table(runs: Sequence[Run], split: str) -> Table:
    """Where the runs lie, and the facts of each, side by side."""
    told = [{"Directory": str(run.folder.resolve()), **facts_of(run, split)} for run in runs]
    names = {name: None for one in told for name in one}
    rows = [[name, *(one.get(name, NOTHING) for one in told)] for name in names]
    return Table("", ["", *(run.name for run in runs)], rows, words=1 + len(runs))


def score_table(runs: Sequence[Run], split: str, compared: Sequence[Run]) -> Table:
    """Scores of a split with their intervals, and for several runs their differences; without rows if there are none.

    Args:
        compared: the runs whose articles are the same.
    """
    records = {run: run.scores.get(split, {}) for run in runs}
    values = {run: scores_of(record) for run, record in records.items()}
    names = list({name: None for scores in values.values() for name in scores})
    # How the scores were computed, such as ROUGE's mode. Runs that differ in this do not compare.
    measures = {
        run: {n: v for n, v in record.items() if n.endswith(("_mode", "_signature", "_exceptions"))}
        for run, record in records.items()
    }
    baselines = {run: record.get("baselines", {}) for run, record in records.items()}
    baseline_names = list({name: None for found in baselines.values() for name in found})
    rows = []
    for name in names:
        found = [scores[name] for scores in values.values() if name in scores]
        digits = 4 if name == "loss" or (name not in LABELS and max(map(abs, found)) <= 1) else 2
        for run in runs:
            if name in values[run]:
                interval = records[run].get("intervals", {}).get(name)
                row = [shown(values[run][name], digits), interval_shown(interval, digits)]
                leads = [shown(baselines[run].get(lead, {}).get(name), digits) for lead in baseline_names]
                compares = run in compared[1:] and compared[0] is runs[0] and measures[run] == measures[runs[0]]
                others = difference(runs[0], run, name, digits) if compares else [""] * 3
                whose, others = ([], []) if len(runs) == 1 else ([run.name], others)
                rows.append([label_of(name), *whose, *row, *others, *leads])
    counts = {record.get("examples") for record in records.values()} - {None}
    sentences = [f"The {split} split of {counts.pop():,} examples." if len(counts) == 1 else f"The {split} split."]
    if any(name.startswith("rouge") for name in names):
        sentences.append("ROUGE is F in percent.")
    if "loss" in names:
        sentences.append("The loss is in nats per target token.")
    if any("intervals" in record for record in records.values()):
        sentences.append("Intervals: 95% bootstrap of the mean.")
    if baseline_names:
        sentences.append("The last columns score the sources' first sentences in place of summaries.")
    header = ["Score", "Mean", "95% interval"]
    if len(compared) > 1:
        sentences.append("Differences and their p values are of a paired test over the articles.")
    if len(runs) > 1:
        header = ["Score", "Run", "Mean", "95% interval", f"Difference from {runs[0].name}", "95% interval", "p"]
    header += [name.capitalize() for name in baseline_names]
    notes = [
        f"{run.name}: {label_of(name)} {value}" if len(runs) > 1 else f"{label_of(name)}: {value}"
        for run, measure in measures.items()
        for name, value in measure.items()
    ]
    return Table(" ".join(sentences), header, rows, min(2, len(runs)), notes)


def difference(first: Run, other: Run, score: str, digits: int) -> list[str]:
    """How much higher a run's score is than the first run's, its interval and p value, over the same articles."""
    pairs = [(a.get(score), b.get(score)) for a, b in zip(other.articles, first.articles, strict=True)]
    if any(None in pair for pair in pairs):
        return [""] * 3
    found = compare(*zip(*pairs, strict=True))
    interval = interval_shown(found["interval"], digits, "+")
    return [shown(found["difference"], digits, "+"), interval, p_shown(found["p_value"])]


def speed_table(runs: Sequence[Run], split: str) -> Table:
    """Throughput and the percentiles of latency; without rows where no run was timed."""
    speeds = [run.speeds.get(split, {}) for run in runs]
    latencies = [speed.get("latency_ms", {}) for speed in speeds]
    rows = [[label, *(shown(speed.get(n), digits) for speed in speeds)] for n, (label, digits) in SPEEDS.items()]
    for name in {name: None for latency in latencies for name in latency}:
        rows.append([f"Latency, ms, {name}", *(shown(latency.get(name), 0) for latency in latencies)])
    names = [run.name for run in runs] if len(runs) > 1 else ["Value"]
    rows = [row for row in rows if set(row[1:]) != {NOTHING}]
    return Table("Latency: from an article's entry into the batch to its end.", ["Speed", *names], rows)


def statistics_table(runs: Sequence[Run]) -> Table:
    """Copying, repetition and lengths of references and summaries, as means over the articles."""
    rows = []
    for name, (label, unit, digits) in STATISTICS.items():
        reference = mean(article.get("reference_statistics", {}).get(name) for article in runs[0].articles)
        means = [mean(article["statistics"][name] for article in run.articles) for run in runs]
        if any(value is not None for value in means):
            rows.append([f"{label} ({unit})", *(shown(value, digits) for value in (reference, *means))])
    names = [run.name for run in runs] if len(runs) > 1 else ["Summaries"]
    caption = (
        f"Means over {len(runs[0].articles):,} articles. Words are lower-cased runs of letters and digits; novel "
        "n-grams count once each. Coverage and density are those of Grusky et al. (2018)."
    )
    return Table(caption, ["Statistic", "References", *names], rows)


def settings_of(runs: Sequence[Run], split: str) -> dict[str, str]:
    """Arguments, environment and settings of scoring of each run as YAML, by their headings."""
    settings = {}
    for run in runs:
        scores = run.scores.get(split, {})
        shown_above = {*scores_of(scores), "intervals", "baselines"}
        scoring = {name: value for name, value in scores.items() if name not in shown_above}
        parts = {"Training arguments": run.arguments, "Environment": run.environment, "Scoring": scoring}
        for title, content in parts.items():
            if content:
                heading = f"{run.name}: {title.lower()}" if len(runs) > 1 else title
                settings[heading] = yaml.safe_dump(content, sort_keys=False, allow_unicode=True)
    return settings
