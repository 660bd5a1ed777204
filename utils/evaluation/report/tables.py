"""Facts and tables of a run, as text that the page's template lays out."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from datetime import timedelta
from operator import itemgetter
from statistics import fmean

import yaml

from utils.app.run_directory import SECONDS
from utils.evaluation.report.runs import ReportedRun, scores_of
from utils.metrics.files import LABELS, label_of
from utils.tasks.options import TOKEN

NOTHING, MINUS = "\N{EN DASH}", "\N{MINUS SIGN}"
MOST_LISTED = 20  # confusions in a table
ABSOLUTE = re.compile(r"(?<![^\s='\"])/(?:[^\s/]+/)*(?=[^\s/]+/[^\s/]+)")  # the folders of a path but for the last one
# Of an article's texts, with their digits in the list of articles.
STATISTICS = {
    "wrong": ("Unsupported", 0),
    "words": ("Words", 0),
    "length_ratio": ("÷ ref.", 2),
    "novel2": ("New bigrams %", 0),
    "repeated3": ("Repeats %", 0),
}


@dataclass
class ScoreTable:
    """A table whose first `words` columns hold words and whose others hold numbers, without empty ones of these."""

    caption: str
    header: list[str]
    rows: list[list[str]]
    words: int = 1

    def __post_init__(self) -> None:
        columns = list(zip(self.header, *self.rows, strict=True))
        kept = [column for i, column in enumerate(columns) if i < self.words or {*column[1:]} - {"", NOTHING}]
        self.header, *self.rows = map(list, zip(*kept, strict=True))


def shown(value: float | None, digits: int | None = None) -> str:
    """A number for readers, by default with two digits, or none if it is a count."""
    digits = (0 if isinstance(value, int) else 2) if digits is None else digits
    return NOTHING if value is None else f"{value:,.{digits}f}".replace("-", MINUS)


def facts_of(run: ReportedRun, split: str) -> dict[str, str]:
    """The most important facts of a run, as far as they are known."""
    trained, scores, speed = run.summary, run.scores.get(split, {}), run.speeds.get(split, {})
    rate = trained.get("tokens_per_second")
    wall = max([trained.get(SECONDS) or 0, *run.metrics.get(SECONDS, {}).values()])
    facts = {
        "Started": str(run.environments[0].get("date") or "")[:16].replace("T", " ") if run.environments else None,
        "Trained on": "; ".join(dict.fromkeys(", ".join(each.get("devices", [])) for each in run.environments)),
        "Sessions": len(run.environments) if len(run.environments) > 1 else None,
        "Steps": shown(trained.get("steps"), 0),
        "Epochs": shown(trained.get("epochs"), 2),
        "Training, wall clock": str(timedelta(seconds=round(wall))) if wall else None,
        "Training speed": rate and f"{shown(rate, 0)} tokens/s",
        "Best checkpoint": trained.get("best_checkpoint"),
        f"Examples scored, {split}": shown(scores.get("examples"), 0),
        "Beams": scores.get("generation", {}).get("num_beams"),
        "Precision": scores.get("precision"),
        "Scored on": speed.get("device"),
        "Batch size": speed.get("batch_size"),
        "Note": scores.get("info"),
    }
    return {name: str(fact) for name, fact in facts.items() if fact not in (None, "", NOTHING)}


def verdict_of(run: ReportedRun, split: str) -> list[str]:
    """Sentences about what the scores are worth: beside the best baseline, by the interval; and about facts."""
    record, sentences = run.scores.get(split, {}), []
    intervals, always = record.get("intervals", {}), record.get("baselines", {}).items()
    if known := [(scores[name], name, other) for other, scores in always for name in intervals if name in scores]:
        best, name, other = max(known, key=itemgetter(0))  # the hardest; of tags, "always O" has an F1 of 0
        low, high = intervals[name]
        found = "better than" if low > best else "worse than" if high < best else "not clearly better than"
        scores = f"{shown(record[name])} (95% interval: {shown(low)} to {shown(high)}) against {shown(best)}"
        sentences.append(f"By {label_of(name)}, the model is {found} the baseline “{other}”: {scores}.")
    if facts := record.get("unsupported_facts"):
        lacks = "the article does not have" if facts["not_in"] == "article" else "neither article nor reference has"
        found = f"{record['examples'] - facts['summaries_with_none']:,} of {record['examples']:,} summaries"
        sentences.append(f"{found} have a name or number that {lacks} ({facts['mean']:.2f} a summary).")
    return sentences


def score_table(run: ReportedRun, split: str) -> ScoreTable:
    """Scores of a split with their intervals, beside those of baselines; without rows if there are none."""
    record = run.scores.get(split, {})
    scores, baselines = scores_of(record), record.get("baselines", {})
    rows = []
    for name, value in scores.items():
        is_percent = run.target != TOKEN or name.startswith((*LABELS,)) or abs(value) > 1
        digits = 4 if name == "loss" or not is_percent else 2
        label = f"{label_of(name)} maximum" if f"{name}_mean" in scores else label_of(name)
        interval = record.get("intervals", {}).get(name)
        row = [label, shown(value, digits), " to ".join(shown(end, digits) for end in interval or ()) or NOTHING]
        rows.append(row + [shown(baseline.get(name), digits) for baseline in baselines.values()])
    of = f" of {record['examples']:,} examples" if record.get("examples") is not None else ""
    sentences = {
        f"The {split} split{of}.": True,
        "ROUGE is F in percent.": any(name.startswith("rouge") for name in scores),
        "The maximum and the mean are over the references of an example.": "rouge1_mean" in scores,
        f"The loss is in {run.loss_unit}.": "loss" in scores,
        "Intervals: 95% bootstrap.": "intervals" in record,
        "The last columns score the first sentences of the sources.": len(baselines) > 1,
        "The last column scores the commonest label for all.": len(baselines) == 1,
    }
    settings = {name: value for name, value in record.items() if name.endswith(("_mode", "_signature", "_exceptions"))}
    sentences |= {f"{label_of(name)}: {value}.": True for name, value in settings.items()}
    caption = " ".join(sentence for sentence, applies in sentences.items() if applies)
    header = ["Score", "Mean", "95% interval", *(name[:1].upper() + name[1:] for name in baselines)]
    return ScoreTable(caption, header, rows)


def group_tables(run: ReportedRun, split: str) -> list[ScoreTable]:
    """Scores of each class or kind of entity."""
    tables = []
    for kind, groups in run.scores.get(split, {}).get("groups", {}).items():
        columns = list(dict.fromkeys(column for scores in groups.values() for column in scores))
        rows = [[name, *(shown(scores.get(column)) for column in columns)] for name, scores in groups.items()]
        support = f" Support: how many of the {split} split are of the {kind}." if "support" in columns else ""
        tables.append(ScoreTable(f"In percent.{support}", [kind.capitalize(), *map(label_of, columns)], rows))
    return tables


def confusion_table(run: ReportedRun, split: str) -> ScoreTable:
    """The classes that are taken for others most often."""
    counts = run.scores.get(split, {}).get("confusion", {})
    pairs = {(right, guess): count for right, row in counts.items() for guess, count in row.items() if guess != right}
    rows = [
        [right, guess, shown(count, 0), shown(100 * count / sum(counts[right].values()), 1)]
        for (right, guess), count in Counter(pairs).most_common(MOST_LISTED)
    ]
    return ScoreTable("The most frequent confusions.", ["Right", "Predicted", "Count", "% of the right"], rows, words=2)


def errors_table(run: ReportedRun, split: str, with_texts: bool = True) -> ScoreTable:
    """The wrong classes of which the model was most certain; or, of a model of numbers, its largest errors."""
    errors = run.scores.get(split, {}).get("errors", [])
    measure = next((name for error in errors for name in ("confidence", "difference") if name in error), "confidence")
    words = {"text": "Text"} if with_texts else {}
    words |= {"reference": "Right", "prediction": "Predicted"}
    rows = [[*map(error.get, words), shown(error[measure]), shown(error["index"] + 1, 0)] for error in errors]
    unit = ", %" if measure == "confidence" else ""
    caption = f"The errors of the greatest {measure}, the greatest first."
    header = [*words.values(), f"{measure.capitalize()}{unit}", "Example"]
    return ScoreTable(caption, header, rows, words=len(words))


def speed_table(run: ReportedRun, split: str, noun: str) -> ScoreTable:
    """Throughput and the percentiles of latency; without rows where the run was not timed."""
    speed = run.speeds.get(split, {})
    rows = [
        [f"{noun.capitalize()}s per second", shown(speed.get("articles_per_second"))],
        ["Generated tokens per second", shown(speed.get("generated_tokens_per_second") or None, 0)],
        ["Seconds in all", shown(speed.get("generation_seconds"))],
        ["Peak memory, GB", shown(speed.get("peak_memory_gb"))],
        *([f"Latency, ms, {name}", shown(value, 0)] for name, value in speed.get("latency_ms", {}).items()),
    ]
    rows = [row for row in rows if row[1] != NOTHING]
    caption = f"Latency: from an {noun}'s entry into the batch to its end."
    if resumed := speed.get("resumed_articles"):
        caption += f" {resumed:,} {noun}s were predicted before the run was broken off, and are not timed."
    return ScoreTable(caption, ["Speed", "Value"], rows)


def statistics_table(run: ReportedRun) -> ScoreTable:
    """Copying, repetition and lengths of references and summaries, as means over the articles."""
    references = [article.get("reference_statistics", {}) for article in run.articles]
    summaries = [article["statistics"] for article in run.articles]
    rows = []
    for name, (label, _) in STATISTICS.items():
        columns = [[each[name] for each in group if each.get(name) is not None] for group in (references, summaries)]
        if columns[1]:
            rows.append([label, *(shown(fmean(values) if values else None) for values in columns)])
    caption = (
        f"Means over {len(run.articles):,} articles. Unsupported: names and numbers in neither article nor reference. "
        "÷ ref.: the length by the reference's. Repeats: 3-grams said before. New bigrams: pairs not in the article."
    )
    return ScoreTable(caption, ["Statistic", "References", "Summaries"], rows)


def settings_of(run: ReportedRun, split: str) -> dict[str, str]:
    """Arguments, environment and settings of scoring as YAML, by their headings."""
    scores = run.scores.get(split, {})
    shown_above = {*scores_of(scores), "intervals", "baselines", "groups", "confusion", "errors", "unsupported_facts"}
    scoring = {name: value for name, value in scores.items() if name not in shown_above}
    environment = run.environments[-1] if run.environments else {}
    parts = {"Training arguments": run.arguments, "Environment": environment, "Scoring": scoring}
    texts = {title: yaml.safe_dump(part, sort_keys=False, allow_unicode=True) for title, part in parts.items() if part}
    return {title: ABSOLUTE.sub("", text) for title, text in texts.items()}
