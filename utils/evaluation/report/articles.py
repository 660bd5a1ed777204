"""Articles of a scored split: read, counted, and laid out for the page's script."""

from __future__ import annotations

import math
from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import Any

from bart.errors import InputError
from utils.app.progress import progress
from utils.data.rows import json_values
from utils.evaluation.report.runs import Run, articles_path, label_of, scores_of
from utils.metrics.facts import MISSING, WRONG, differing_facts, names_in
from utils.metrics.text_statistics import NOVEL_ORDERS, length_ratio, text_statistics, words

STATISTICS = {
    "wrong": ("Wrong figures and names", "in neither source nor reference", 2),
    "words": ("Length", "words", 1),
    "length_ratio": ("Length ÷ reference", "ratio", 2),
    "compression": ("Compression: source ÷ summary", "ratio", 1),
    **{f"novel{n}": (f"Novel {n}-grams", "% not in the source", 1) for n in NOVEL_ORDERS},
    "coverage": ("Coverage", "% of words copied", 1),
    "density": ("Density", "words in the copied run of a word", 1),
    "repeated3": ("Repeated 3-grams", "% said before", 1),
}
# The statistics that the table of articles has: heading and digits.
COLUMNS = {
    "wrong": ("Wrong facts", 0),
    "words": ("Words", 0),
    "length_ratio": ("÷ ref.", 2),
    "novel2": ("New bigrams %", 0),
    "density": ("Density", 1),
    "repeated3": ("Repeats %", 0),
}
# Statistics that relate a summary to its source, which for a translation is in another language.
OF_THE_SOURCE = {"wrong", "compression", "coverage", "density", *(f"novel{n}" for n in NOVEL_ORDERS)}
INPUTS = ("source", "reference")  # texts that are the same for all runs; the others are a run's own


@dataclass
class Text:
    """One text of every article.

    Attributes:
        preview: whether the table shows it.
        facts: of each article's summary, as `facts_for_page` gives them.
    """

    number: int
    name: str
    heading: str
    values: list[str]
    facts: list[list[int]] | None = None

    @property
    def preview(self) -> bool:
        return self.name not in ("reference", "alternatives")


@dataclass
class Column:
    """One number of every article.

    Attributes:
        metric: what the number tells; where several runs are compared, readers choose columns by it.
        row: the run that the number is of.
        signed: whether positive numbers get a plus.
    """

    number: int
    metric: str
    row: str
    heading: str
    digits: int
    values: list[float | None]
    signed: bool = False


def add_articles(run: Run, split: str) -> None:
    """Read a run's articles of one split, and count the words of those that have source and summary.

    These get `statistics`, and `reference_statistics` if they have a reference, as `text_statistics` returns them, and
    `facts`, which are those of `facts_for_page`.

    Raises:
        InputError: the file is damaged, or its articles are not as many as were scored.
    """
    path, scores = articles_path(run, split), run.scores.get(split, {})
    run.articles = [article for _, article in json_values(path)] if path.exists() else []
    count, examples = len(run.articles), scores.get("examples")
    if run.articles and examples not in (None, count):
        raise InputError(f"{path}: has {count} articles; {split}_scores.json is of {examples!r}")
    for article in run.articles:
        if "alternatives" in article:  # sequences that were generated beside the best one
            article["alternatives"] = "\n".join(article["alternatives"])
    if not {"source", "summary"} <= texts_of(run).keys():
        return
    left_out = OF_THE_SOURCE if scores.get("task") == "translation" else set()
    names = names_in(text_of(article, name) for article in run.articles for name in ("reference", "summary"))
    for article in progress("report", len(run.articles), "articles", run.articles):
        source, reference, summary = (words(text_of(article, name)) for name in ("source", "reference", "summary"))
        for name, own in (("reference_statistics", reference), ("statistics", summary)):
            numbers = {"wrong": None, **text_statistics(source, own), "length_ratio": length_ratio(own, reference)}
            article[name] = {name: None if name in left_out else value for name, value in numbers.items()}
        if not isinstance(article.get("reference"), str):
            del article["reference_statistics"]
        article["statistics"]["source_words"] = len(source)
        if not left_out:
            article["facts"] = facts_for_page(article, names)
            article["statistics"]["wrong"] = article["facts"][2::3].count(WRONG)


def facts_for_page(article: dict[str, Any], names: Set[str]) -> list[int]:
    """Figures and names by which reference and summary differ: begin, end and kind of one after the other.

    The kinds are those of `differing_facts`, places are counted as JavaScript does it, in 16-bit units.
    """
    reference = article.get("reference") if isinstance(article.get("reference"), str) else None
    summary, numbers = text_of(article, "summary"), []
    for begin, end, kind in differing_facts(text_of(article, "source"), reference, summary, names):
        text = reference or "" if kind == MISSING else summary
        numbers += [place + sum(c > "\uffff" for c in text[:place]) for place in (begin, end)] + [kind]
    return numbers


def text_of(article: dict[str, Any], name: str) -> str:
    return article[name] if isinstance(article.get(name), str) else ""


def texts_of(run: Run) -> dict[str, str]:
    """The first article's texts by name; all articles of a run have the same ones."""
    return {name: text for name, text in (run.articles or [{}])[0].items() if isinstance(text, str)}


def have_statistics(runs: Sequence[Run]) -> bool:
    return bool(runs) and all("statistics" in run.articles[0] for run in runs)


def same_articles(runs: Sequence[Run]) -> list[Run]:
    """The first run that has articles, and those whose articles have the same sources and references."""

    def inputs(run: Run) -> list[tuple[str, ...]]:
        return [tuple(text_of(article, name) for name in INPUTS) for article in run.articles]

    first, *others = [run for run in runs if run.articles] or [None]
    if first is None:
        return []
    wanted = inputs(first)
    return [first, *(run for run in others if any(wanted[0]) and inputs(run) == wanted)]


def shown_texts(runs: Sequence[Run]) -> list[Text]:
    """The texts that stand beside each other under an article's source: the reference, and each run's own ones."""
    own = [name for name in texts_of(runs[0]) if name not in INPUTS]
    chosen = [("Reference", runs[0], "reference")] if "reference" in texts_of(runs[0]) else []
    for run in runs:
        for name in own:
            heading = name.replace("_", " ").capitalize()
            if len(runs) > 1:
                heading = run.name if name == "summary" else f"{run.name}: {heading}"
            chosen.append((heading, run, name))
    texts = [
        Text(number, name, heading, [text_of(one, name) for one in run.articles])
        for number, (heading, run, name) in enumerate(chosen)
    ]
    for text, (_, run, name) in zip(texts, chosen, strict=True):
        if name == "summary" and "facts" in run.articles[0]:
            text.facts = [article["facts"] for article in run.articles]
    return texts


def columns_of(runs: Sequence[Run]) -> list[Column]:
    """The numbers of each run's articles, and for several runs how much higher they are than the first run's."""

    def of_each(part: str | None, name: str) -> list[list[float | None]]:
        return [[rounded((article[part] if part else article).get(name)) for article in run.articles] for run in runs]

    scores = {name: None for run in runs for name in scores_of(run.articles[0])}
    counted = []
    if have_statistics(runs):
        counted = [(label, digits, of_each("statistics", name)) for name, (label, digits) in COLUMNS.items()]
    metrics = counted[:1]  # wrong facts are what readers look for
    for name in scores:
        values = of_each(None, name)
        digits = 1 if any(isinstance(value, float) for value in values[0]) else 0
        metrics.append((label_of(name), digits, values))
    metrics += counted[1:]
    columns: list[Column] = []
    for metric, digits, values in metrics:
        short = metric.replace("ROUGE", "R")
        if all(value is None for value in values[0]):
            continue
        for run, own in zip(runs, values, strict=True):
            heading = f"{short}, {run.name}" if len(runs) > 1 else short
            columns.append(Column(len(columns), metric, run.name, heading, digits, own))
        for run, own in zip(runs[1:], values[1:], strict=True):
            less = [None if None in pair else rounded(pair[1] - pair[0]) for pair in zip(values[0], own, strict=True)]
            row = f"{run.name} less {runs[0].name}" if len(runs) > 2 else "Difference"
            columns.append(Column(len(columns), metric, row, row, digits, less, signed=True))
    return columns


def rounded(value: Any) -> float | None:
    """A number as the page gets it; None for what is no finite number."""
    return round(value, 3) if isinstance(value, (int, float)) and math.isfinite(value) else None
