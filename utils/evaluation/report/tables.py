"""Facts and tables of runs, as text that the page's template lays out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from operator import itemgetter
from statistics import fmean
from typing import Any

import yaml

from utils.app.run_metrics import SECONDS
from utils.evaluation.report.runs import TARGETS, Run, scores_of
from utils.metrics.files import LABELS, label_of
from utils.metrics.significance import compare, p_shown

NOTHING, MINUS = "\N{EN DASH}", "\N{MINUS SIGN}"
SPEEDS = {
    "articles_per_second": ("{} per second", 2),
    "generated_tokens_per_second": ("Generated tokens per second", 0),
    "generation_seconds": ("Seconds in all", 2),
    "peak_memory_gb": ("Peak memory, GB", 2),
}
MOST_DRAWN, MOST_LISTED = 40, 20  # classes of a confusion matrix that is drawn, and confusions in a table
STATISTICS = {
    "wrong": ("Wrong numbers and names (in neither source nor reference)", 2),
    "words": ("Length (words)", 1),
    "length_ratio": ("Length ÷ reference (ratio)", 2),
    "compression": ("Compression: source ÷ summary (ratio)", 1),
    **{f"novel{n}": (f"Novel {n}-grams (% not in the source)", 1) for n in (1, 2, 3, 4)},
    "coverage": ("Coverage (% of words copied)", 1),
    "density": ("Density (words in the copied run of a word)", 1),
    "repeated3": ("Repeated 3-grams (% said before)", 1),
}


@dataclass
class ScoreTable:
    """A table whose first `words` columns hold words and whose others hold numbers; `notes` are lines below it.

    Columns of numbers that are empty are left out.
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
    """The most important facts of a run, as far as they are known."""
    trained, scores, speed = run.summary, run.scores.get(split, {}), run.speeds.get(split, {})
    rate = trained.get("tokens_per_second")
    wall = max([trained.get(SECONDS) or 0, *run.metrics.get(SECONDS, {}).values()])
    untimed = f" without {run.untimed} earlier sessions, whose time is not known" if run.untimed else ""
    facts = {
        "Started": str(run.environments[0].get("date") or "")[:16].replace("T", " ") if run.environments else None,
        "Trained on": "; ".join(dict.fromkeys(", ".join(each.get("devices", [])) for each in run.environments)),
        "Sessions": len(run.environments) if len(run.environments) > 1 else None,
        "Steps": shown(trained.get("steps"), 0),
        "Epochs": shown(trained.get("epochs"), 2),
        "Training, wall clock": f"{timedelta(seconds=round(wall))}{untimed}" if wall else None,
        "Training speed": rate and f"{shown(rate, 0)} tokens/s",
        "Best checkpoint": trained.get("best_checkpoint"),
        f"Examples scored, {split}": shown(scores.get("examples"), 0),
        "Beams": scores.get("generation", {}).get("num_beams"),
        "Precision": scores.get("precision"),
        "Scored on": speed.get("device"),
        "Batching": speed.get("batching") and f"{speed['batching']}, {speed.get('batch_size')} at once",
        "Note": scores.get("info"),
    }
    return {name: str(fact) for name, fact in facts.items() if fact not in (None, "", NOTHING)}


def runs_table(runs: Sequence[Run], split: str) -> ScoreTable:
    """The directories of runs and the facts of each, side by side."""
    facts = [{"Directory": str(run.folder.resolve()), **facts_of(run, split)} for run in runs]
    rows = [[name, *(each.get(name, NOTHING) for each in facts)] for name in _keys(facts)]
    return ScoreTable("", ["", *(run.name for run in runs)], rows, words=1 + len(runs))


def score_table(runs: Sequence[Run], split: str, compared: Sequence[Run]) -> ScoreTable:
    """Scores of a split with their intervals, and for several runs their differences; without rows if there are none.

    Args:
        compared: the runs whose articles are the same.
    """
    several = len(runs) > 1
    records = [run.scores.get(split, {}) for run in runs]
    names = _keys(map(scores_of, records))
    leads = _keys(record.get("baselines", {}) for record in records)
    # The settings of scoring that a score depends on, such as ROUGE's mode. Runs that differ in them do not compare.
    settings = [
        {name: value for name, value in record.items() if name.endswith(("_mode", "_signature", "_exceptions"))}
        for record in records
    ]
    rows = []
    for name in names:
        values = [scores_of(record).get(name) for record in records]
        is_percent = (
            runs[0].task in TARGETS
            or name.startswith((*LABELS,))
            or max(abs(value) for value in values if value is not None) > 1
        )
        digits = 4 if name == "loss" or not is_percent else 2
        for run, record, value, setting in zip(runs, records, values, settings, strict=True):
            if value is None:
                continue
            interval = interval_shown(record.get("intervals", {}).get(name), digits)
            compares = run in compared[1:] and compared[0] is runs[0] and setting == settings[0]
            label = f"{label_of(name)} maximum" if f"{name}_mean" in names else label_of(name)
            row = [label, run.name if several else "", shown(value, digits), interval]
            row += difference(runs[0], run, name, digits) if compares else [""] * 3
            row += [shown(record.get("baselines", {}).get(lead, {}).get(name), digits) for lead in leads]
            rows.append(row)
    counts = {record.get("examples") for record in records} - {None}
    sentences = {
        f"The {split} split of {max(counts):,} examples." if len(counts) == 1 else f"The {split} split.": True,
        "ROUGE is F in percent.": any(name.startswith("rouge") for name in names),
        "The maximum and the mean are over the references of an example.": "rouge1_mean" in names,
        f"The loss is in {runs[0].loss_unit}.": "loss" in names,
        "Intervals: 95% bootstrap.": any("intervals" in record for record in records),
        "The last columns score the sources' first sentences, or the commonest label or tag for all, instead.": leads,
        "Differences and their p values are of a paired test over the examples.": len(compared) > 1,
    }
    caption = " ".join(sentence for sentence, applies in sentences.items() if applies)
    header = ["Score", "Run", "Mean", "95% interval", f"Difference from {runs[0].name}", "95% interval", "p"]
    notes = [
        f"{run.name}: {label_of(name)} {value}" if several else f"{label_of(name)}: {value}"
        for run, setting in zip(runs, settings, strict=True)
        for name, value in setting.items()
    ]
    header += [lead[:1].upper() + lead[1:] for lead in leads]
    return ScoreTable(caption, header, rows, 2 if several else 1, notes)


def group_tables(runs: Sequence[Run], split: str) -> list[ScoreTable]:
    """Scores of each class, kind of entity or kind of question; of several runs F1 alone."""
    records = [run.scores.get(split, {}).get("groups", {}) for run in runs]
    tables = []
    for kind in _keys(records):
        of_runs = [record.get(kind, {}) for record in records]
        columns = _keys(scores for groups in of_runs for scores in groups.values())
        chosen = [(groups, column) for groups in of_runs for column in (columns if len(runs) == 1 else ["f1"])]
        rows = []
        for name in _keys(of_runs):
            values = [groups.get(name, {}).get(column) for groups, column in chosen]
            rows.append([name, *(shown(value, 0 if isinstance(value, int) else 2) for value in values)])
        headings = list(map(label_of, columns)) if len(runs) == 1 else [f"F1, {run.name}" for run in runs]
        support = f" Support: how many of the {split} split are of the {kind}." if "support" in columns else ""
        tables.append(ScoreTable(f"In percent.{support}", [kind.capitalize(), *headings], rows))
    return tables


def confusion_table(run: Run, split: str) -> ScoreTable:
    """The classes that are taken for others most often."""
    counts = run.scores.get(split, {}).get("confusion", {})
    wrong = []
    for right, row in counts.items():
        wrong += [(count, right, predicted) for predicted, count in row.items() if predicted != right]
    wrong.sort(key=itemgetter(0), reverse=True)
    rows = [
        [right, predicted, shown(count, 0), shown(100 * count / sum(counts[right].values()), 1)]
        for count, right, predicted in wrong[:MOST_LISTED]
    ]
    return ScoreTable("The most frequent confusions.", ["Right", "Predicted", "Count", "% of the right"], rows, words=2)


def errors_table(run: Run, split: str) -> ScoreTable:
    """The wrong classes of which the model was most certain; or, of a model of numbers, its largest errors."""
    errors = run.scores.get(split, {}).get("errors", [])
    measure = next((name for error in errors for name in ("confidence", "difference") if name in error), "confidence")
    texts = ("text", "reference", "prediction")
    rows = [[*map(error.get, texts), shown(error[measure]), shown(error["index"] + 1, 0)] for error in errors]
    unit = ", %" if measure == "confidence" else ""
    caption = f"The errors of the greatest {measure}, the greatest first."
    header = ["Text", "Right", "Predicted", f"{measure.capitalize()}{unit}", "Example"]
    return ScoreTable(caption, header, rows, words=3)


def difference(first: Run, second: Run, score: str, digits: int) -> list[str]:
    """The difference of the second run from the first in a score of the same articles: its interval and p value."""
    ours, theirs = ([article.get(score) for article in run.articles] for run in (second, first))
    if None in ours + theirs:
        return [""] * 3
    result = compare(ours, theirs)
    interval = interval_shown(result["interval"], digits, "+")
    return [shown(result["difference"], digits, "+"), interval, p_shown(result["p_value"])]


def speed_table(runs: Sequence[Run], split: str, noun: str) -> ScoreTable:
    """Throughput and the percentiles of latency; without rows where no run was timed."""
    speeds = [run.speeds.get(split, {}) for run in runs]
    latencies = [speed.get("latency_ms", {}) for speed in speeds]
    rows = [
        [label.format(f"{noun.capitalize()}s"), *(shown(speed.get(name) or None, digits) for speed in speeds)]
        for name, (label, digits) in SPEEDS.items()
    ]
    for name in _keys(latencies):
        rows.append([f"Latency, ms, {name}", *(shown(latency.get(name), 0) for latency in latencies)])
    rows = [row for row in rows if set(row[1:]) != {NOTHING}]
    caption = f"Latency: from an {noun}'s entry into the batch to its end."
    notes = [
        f"{run.name}: {count:,} {noun}s were predicted before the run was broken off, and are not timed."
        for run, speed in zip(runs, speeds, strict=True)
        if (count := speed.get("resumed_articles"))
    ]
    return ScoreTable(caption, ["Speed", *_headings(runs, "Value")], rows, notes=notes)


def statistics_table(runs: Sequence[Run]) -> ScoreTable:
    """Copying, repetition and lengths of references and summaries, as means over the articles."""
    groups = [[article.get("reference_statistics", {}) for article in runs[0].articles]]
    groups += [[article["statistics"] for article in run.articles] for run in runs]
    rows = []
    for name, (label, digits) in STATISTICS.items():
        present = [[value for each in group if (value := each.get(name)) is not None] for group in groups]
        if any(present[1:]):
            rows.append([label, *(shown(fmean(values) if values else None, digits) for values in present)])
    caption = (
        f"Means over {len(runs[0].articles):,} articles. Words are lower-cased runs of letters and digits; novel "
        "n-grams count once each. Coverage and density are those of Grusky et al. (2018)."
    )
    return ScoreTable(caption, ["Statistic", "References", *_headings(runs, "Summaries")], rows)


def settings_of(runs: Sequence[Run], split: str) -> dict[str, str]:
    """Arguments, environment and settings of scoring of each run as YAML, by their headings."""
    settings = {}
    for run in runs:
        scores = run.scores.get(split, {})
        shown_above = {*scores_of(scores), "intervals", "baselines", "groups", "confusion", "errors"}
        scoring = {name: value for name, value in scores.items() if name not in shown_above}
        parts = {"Training arguments": run.arguments, "Environment": run.environment, "Scoring": scoring}
        for title, content in parts.items():
            heading = f"{run.name}: {title.lower()}" if len(runs) > 1 else title
            if content:
                settings[heading] = yaml.safe_dump(content, sort_keys=False, allow_unicode=True)
    return settings


def _keys(mappings: Iterable[dict[str, Any]]) -> list[str]:
    """The keys of several mappings, each key once, in the order of their first places."""
    return list(dict.fromkeys(key for mapping in mappings for key in mapping))


def _headings(runs: Sequence[Run], alone: str) -> list[str]:
    """The headings of the runs' columns; `alone` is that of a single run."""
    return [run.name for run in runs] if len(runs) > 1 else [alone]
