"""Articles of a scored split: read, counted, and laid out for the page's script."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from bart.errors import InputError
from utils.app.progress import progress
from utils.data.rows import json_lines
from utils.evaluation.report.runs import Run, scores_of
from utils.metrics.facts import WRONG, differing_facts, names_in
from utils.metrics.files import label_of
from utils.metrics.text_statistics import NOVEL_ORDERS, text_statistics, words

# Statistics that the table of articles shows: heading and digits.
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
INPUTS = ("source", "reference")  # texts that are the same for all runs; all other texts are a run's output


def add_articles(run: Run, split: str) -> None:
    """Read a run's articles of one split, and analyse those that have source and summary.

    These get `source_words`, `statistics` and, if they have a reference, `reference_statistics` as `text_statistics`
    returns them, and `facts` as `differing_facts` does.

    Raises:
        InputError: the file is damaged, or its articles are not as many as were scored.
    """
    path, scores = run.articles_path(split), run.scores.get(split, {})
    run.articles = [article for _, article in json_lines(path)] if path.exists() else []
    count, examples = len(run.articles), scores.get("examples")
    if run.articles and examples not in (None, count):
        raise InputError(f"{path}: has {count} articles; {split}_scores.json is of {examples!r}")
    for article in run.articles:
        if "alternatives" in article:  # sequences that were generated beside the best one
            article["alternatives"] = "\n".join(article["alternatives"])
        if "references" in article:  # to be read; lengths are compared with the first one's
            article["reference"] = "\n".join(article["references"])
    if not {"source", "summary"} <= set(text_names(run)):
        return
    left_out = OF_THE_SOURCE if scores.get("task") == "translation" else set()
    names = names_in(text_of(article, name) for article in run.articles for name in ("reference", "summary"))
    for article in progress("report", len(run.articles), "articles", run.articles):
        texts = {name: text_of(article, name) for name in ("source", "reference", "summary")}
        first = article.get("references", [texts["reference"]])[0]
        source, reference, summary = map(words, (texts["source"], first, texts["summary"]))
        article["source_words"] = len(source)
        for key, text in (("reference_statistics", reference), ("statistics", summary)):
            ratio = len(text) / len(reference) if reference else None
            statistics = {**text_statistics(source, text), "length_ratio": ratio}
            article[key] = {name: value for name, value in statistics.items() if name not in left_out}
        if not isinstance(article.get("reference"), str):
            del article["reference_statistics"]
            texts["reference"] = None
        if not left_out:
            article["facts"] = differing_facts(**texts, names=names)
            article["statistics"]["wrong"] = sum(kind == WRONG for _, _, kind in article["facts"])


def text_of(article: dict[str, Any], name: str) -> str:
    return article[name] if isinstance(article.get(name), str) else ""


def text_names(run: Run) -> list[str]:
    """Names of the first article's texts; all articles of a run have the same ones."""
    return [name for article in run.articles[:1] for name, text in article.items() if isinstance(text, str)]


def have_statistics(runs: Sequence[Run]) -> bool:
    return bool(runs) and all("statistics" in run.articles[0] for run in runs)


def same_articles(runs: Sequence[Run]) -> list[Run]:
    """The first run that has articles, and those whose articles have the same sources and references."""

    def inputs(run: Run) -> list[tuple[str, ...]]:
        return [tuple(text_of(article, name) for name in INPUTS) for article in run.articles]

    scored = [run for run in runs if run.articles]
    wanted = inputs(scored[0]) if scored else []
    return scored[:1] + [run for run in scored[1:] if any(wanted[0]) and inputs(run) == wanted]


def shown_texts(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """The texts that stand beside each other under an article's source: the reference, and what each run generated.

    Returns:
        `name` and `heading` of each text, its `values` and, of a summary, its `facts`, both in the articles' order.
    """
    names = [name for run in runs[:1] for name in text_names(run)]
    chosen = [("Reference", "reference", runs[0])] if "reference" in names else []
    for run in runs:
        for name in names:
            heading = name.replace("_", " ").capitalize()
            if len(runs) > 1:
                heading = run.name if name == "summary" else f"{run.name}: {heading}"
            if name not in (*INPUTS, "id"):
                chosen.append((heading, name, run))
    texts = []
    for heading, name, run in chosen:
        has_facts = name == "summary" and "facts" in run.articles[0]
        facts = [article["facts"] for article in run.articles] if has_facts else None
        values = [text_of(article, name) for article in run.articles]
        texts.append({"name": name, "heading": heading, "values": values, "facts": facts})
    return texts


def columns_of(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """The numbers of each run's articles, and for several runs how much higher they are than the first run's.

    Returns:
        `values` of each column in the articles' order, its `heading` and `digits`; `metric`, by which readers of a
        comparison choose columns; `row`, the run or the difference; `signed`, true where positive numbers get a plus.
    """

    def values_of(name: str, part: str | None = None) -> list[list[float | None]]:
        records = [[article.get(part, {}) if part else article for article in run.articles] for run in runs]
        return [[_rounded(record.get(name)) for record in group] for group in records]

    wrong, *others = [(label, digits, values_of(name, "statistics")) for name, (label, digits) in COLUMNS.items()]
    names = dict.fromkeys(name for run in runs for name in scores_of(run.articles[0]))
    scores = [(label_of(name), 2 if name == "error" else 1, values_of(name)) for name in names]
    columns = []
    for metric, digits, values in (wrong, *scores, *others):  # readers look for wrong facts first
        if all(value is None for numbers in values for value in numbers):
            continue
        shared = {"metric": metric, "digits": digits}
        for run, numbers in zip(runs, values, strict=True):
            heading = metric.replace("ROUGE", "R") + (f", {run.name}" if len(runs) > 1 else "")
            columns.append({"heading": heading, "row": run.name, "values": numbers, "signed": False, **shared})
        for run, numbers in zip(runs[1:], values[1:], strict=True):
            pairs = zip(values[0], numbers, strict=True)
            differences = [None if None in (first, own) else _rounded(own - first) for first, own in pairs]
            row = f"{run.name} less {runs[0].name}" if len(runs) > 2 else "Difference"
            columns.append({"heading": row, "row": row, "values": differences, "signed": True, **shared})
    return columns


def _rounded(value: Any) -> float | None:
    """A number with three decimals, as the page gets it; None for what is no finite number."""
    return round(value, 3) if isinstance(value, (int, float)) and math.isfinite(value) else None
