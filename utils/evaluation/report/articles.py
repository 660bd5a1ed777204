"""Articles of a scored split: read, counted, and laid out for the page's script."""

from __future__ import annotations

import math
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


def has_statistics(run: Run) -> bool:
    return bool(run.articles) and "statistics" in run.articles[0]


def shown_texts(run: Run) -> list[dict[str, Any]]:
    """The texts that stand beside each other under an article's source: the reference, and what the run generated.

    Returns:
        `name` and `heading` of each text, its `values` and, of a summary, its `facts`, both in the articles' order.
    """
    names, texts = text_names(run), []
    for name in sorted(names, key=lambda name: name != "reference"):  # which comes first
        if name not in ("source", "id"):
            has_facts = name == "summary" and "facts" in run.articles[0]
            facts = [article["facts"] for article in run.articles] if has_facts else None
            values = [text_of(article, name) for article in run.articles]
            heading = name.replace("_", " ").capitalize()
            texts.append({"name": name, "heading": heading, "values": values, "facts": facts})
    return texts


def columns_of(run: Run) -> list[dict[str, Any]]:
    """The numbers of the articles: `heading`, `digits` and `values`, in the articles' order, of each column."""
    statistics = [article.get("statistics", {}) for article in run.articles]
    names = [name for article in run.articles[:1] for name in scores_of(article)]
    scores = {name: (label_of(name), 2 if name == "error" else 1) for name in names}
    columns = []
    for name, (heading, digits) in {"wrong": COLUMNS["wrong"], **scores, **COLUMNS}.items():  # wrong facts come first
        values = [_rounded(record.get(name)) for record in (statistics if name in COLUMNS else run.articles)]
        if any(value is not None for value in values):
            columns.append({"heading": heading, "digits": digits, "values": values})
    return columns


def _rounded(value: Any) -> float | None:
    """A number with three decimals, as the page gets it; None for what is no finite number."""
    return round(value, 3) if isinstance(value, (int, float)) and math.isfinite(value) else None
